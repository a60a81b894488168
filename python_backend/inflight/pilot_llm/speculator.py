"""Adds drafts to a planned step, of the budget and the blocks that nobody else wants; counts what becomes of them."""

from pilot_llm.block_pool import BlockPool
from pilot_llm.limits import blocks_for
from pilot_llm.ngram import NgramDrafter
from pilot_llm.plan import StepPlan
from pilot_llm.speculation import SpeculativeConfig


class Speculator:
    """Owned by the scheduler. Without a configuration it never guesses."""

    def __init__(self, config: SpeculativeConfig | None, *, block_size: int, max_num_batched_tokens: int) -> None:
        self._config = config
        self._block_size = block_size
        self._max_num_batched_tokens = max_num_batched_tokens
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0

    def add_drafts(self, plan: StepPlan, pool: BlockPool, *, num_running: int, headroom: int) -> None:
        """`headroom` is the number of blocks to leave to those who run. A draft takes blocks, but preempts nobody."""
        config = self._config
        if config is None or num_running > config.disable_by_batch_size:
            return
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if chunk.end - chunk.start != 1 or not chunk.samples or not sequence.output_token_ids:
                continue
            num_tokens = min(
                config.num_speculative_tokens,
                self._max_num_batched_tokens - plan.num_tokens,
                sequence.group.max_total_tokens - chunk.end - 1,  # one more is sampled behind the draft
            )
            if num_tokens <= 0:
                continue
            if sequence.drafter is None:
                sequence.drafter = NgramDrafter(config.prompt_lookup_max, config.prompt_lookup_min)
            draft = sequence.drafter.draft(sequence.token_ids, num_tokens)
            num_new = blocks_for(chunk.end + len(draft), self._block_size) - len(sequence.blocks)
            if not draft or num_new > pool.num_available - headroom:
                continue
            if num_new > 0:
                sequence.blocks.extend(pool.allocate(num_new))
            chunk.draft = draft
            plan.is_plain = False
            plan.num_tokens += len(draft)

    def count(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens

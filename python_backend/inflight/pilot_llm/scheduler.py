"""Decides, before every step, which tokens of which sequences the model runs on; afterwards, what that has ended.

    waiting queue --admit: find prefix, allocate--> running --sampled its last token--> done
         ^                                            |
         +------------- preempted: blocks given back -+

One step has one budget of `max_num_batched_tokens`, spent in this order:

    1. decodes     every running sequence that needs only its next token: one token each, so that streams flow evenly
    2. chunks      prompts that are partly computed go on, in order of rank
    3. admissions  waiting sequences, best rank first, as long as budget, places and KV blocks last
    4. drafts      guesses of what follows the decodes (speculator.py), of what is left; nobody makes way for a guess

Rank is static: fcfs orders by arrival; priority by `priority + arrival / ageing_s`, so that waiting improves all alike
and nobody is passed for ever. If a decode finds no block, the running sequence of the worst rank is
preempted (never one that this step has planned already). The best one always goes on, so everybody finishes at last.

No prefix is computed twice at the same time. Within a step, K and V of all tokens are written before anybody attends;
so a full block becomes findable when it is planned, and prompts that arrive together share their prefix at once.
And a prompt is begun only in a step that plans all prompts begun before to their end: who brings a prefix that another
one is still computing in chunks waits for it, and goes on by itself if that one is cancelled, fails or is preempted.

Pure policy: no torch, no clock, no lock. One thread, the engine's, uses it.
"""

import bisect
import itertools
from collections.abc import Iterator, Sequence

from pilot_llm.block_keys import HashBlock, sha256_block
from pilot_llm.block_pool import BlockPool
from pilot_llm.errors import LlmError, OutOfBlocksError
from pilot_llm.limits import blocks_for
from pilot_llm.plan import Chunk, SequenceEvent, StepPlan, StepResult
from pilot_llm.request import FinishReason
from pilot_llm.sample_row import SampledToken
from pilot_llm.sequence import LiveSequence, Place, RequestGroup, first_sequence, forked_sequence, no_blocks
from pilot_llm.speculation import SpeculativeConfig
from pilot_llm.speculator import Speculator
from pilot_llm.waiting_queue import WaitingQueue


class Scheduler:
    """Owns all sequences, from admission to their end, and their blocks."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        enable_chunked_prefill: bool = True,
        reserve_all_blocks: bool = False,
        speculation: SpeculativeConfig | None = None,
        hash_block: HashBlock = sha256_block,
    ) -> None:
        self._pool = pool
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._enable_chunked_prefill = enable_chunked_prefill
        self._reserve_all_blocks = reserve_all_blocks
        self.speculator = Speculator(speculation, block_size=block_size, max_num_batched_tokens=max_num_batched_tokens)
        self._hash_block = hash_block
        self._groups: dict[int, RequestGroup] = {}
        self._waiting = WaitingQueue()
        self._num_not_started = 0  # of the waiting ones
        self._running: list[LiveSequence] = []  # best rank first
        self._ahead: StepPlan | None = None  # the last step, if it was planned ahead and has not landed
        self.num_prefix_query_tokens = 0
        self.num_prefix_hit_tokens = 0
        self.num_preemptions = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting_again(self) -> int:
        """Sequences that wait although their request has started: preempted ones, and forks without a place."""
        return len(self._waiting) - self._num_not_started

    @property
    def has_work(self) -> bool:
        return bool(self._groups)

    def groups(self) -> list[RequestGroup]:
        """All requests that are not done."""
        return list(self._groups.values())

    def running(self) -> Sequence[LiveSequence]:
        """Best rank first."""
        return tuple(self._running)

    def add(self, group: RequestGroup) -> None:
        """A request that `SequenceLimits` has let through joins the queue."""
        self._groups[group.ticket] = group
        self._num_not_started += 1
        self._waiting.push(first_sequence(group, self._block_size, self._hash_block))

    def abort(self, ticket: int) -> RequestGroup | None:
        """The request is over, wherever it is; its blocks are available at once. None if it was over already."""
        group = self._groups.pop(ticket, None)
        if group is None:
            return None
        if group.first_scheduled_s is None:
            self._num_not_started -= 1
        for sequence in group.sequences:
            if sequence.place is Place.WAITING:
                self._waiting.remove(sequence)
            elif sequence.place is Place.RUNNING:
                self._stop_running(sequence)
            sequence.place = Place.DONE
        return group

    def fail(self, plan: StepPlan) -> list[RequestGroup]:
        """The step went wrong: its requests are over, and what it should have written is not to be found any more.

        Returns all its requests, also those that a commit has ended before it failed itself.
        """
        self._land(plan)
        for block in plan.published:
            self._pool.forget(block)
        groups = {chunk.sequence.group.ticket: chunk.sequence.group for chunk in plan.chunks}
        for ticket in groups:
            self.abort(ticket)
        return list(groups.values())

    def schedule(self, now_s: float) -> StepPlan:
        """Plan one step. Empty only if there is no work."""
        plan = StepPlan(now_s)
        self._plan_decodes(plan)
        self._plan_chunks(plan)
        self._admit(plan)
        self.speculator.add_drafts(plan, self._pool, num_running=len(self._running), headroom=self._headroom())
        if not plan.chunks and self._groups:
            raise LlmError(
                f"defect: {len(self._groups)} requests, of which none can run, with {self._pool.num_available} "
                f"of {self._pool.num_blocks} KV blocks available"
            )
        return plan

    def plan_ahead(self, plan: StepPlan, now_s: float) -> StepPlan | None:
        """Plan the step behind `plan`, which `leaves_tokens` and runs: one more token for everybody in it.

        None, and nothing changed, where anything else may have to come first: an admission, a chunk of a prompt, a
        preemption. Blocks that the step fills are published when it is committed, since keys need tokens; until then,
        whoever ends keeps its blocks.
        """
        if len(self._waiting) and len(self._running) < self._max_num_seqs:
            return None
        ahead = StepPlan(now_s)
        num_running = num_new = 0
        for place, chunk in enumerate(plan.chunks):
            sequence = chunk.sequence
            if sequence.place is not Place.RUNNING:  # dropped since
                continue
            num_running += 1
            if chunk.end + 1 < sequence.group.max_total_tokens:  # else the token that is on its way is its last
                ahead.chunks.append(Chunk(sequence, chunk.end, chunk.end + 1, True, previous_place=place))
                num_new += len(sequence.blocks) * self._block_size <= chunk.end
        if not ahead.chunks or num_running < len(self._running) or num_new > self._pool.num_available:
            return None
        for chunk in ahead.chunks:
            if len(chunk.sequence.blocks) * self._block_size < chunk.end:
                chunk.sequence.blocks.extend(self._pool.allocate(1))
        ahead.num_tokens = len(ahead.chunks)
        self._ahead = ahead
        return ahead

    def commit(self, plan: StepPlan, sampled: Sequence[SampledToken]) -> StepResult:
        """Take in the tokens that the step has sampled: for each sampling chunk one, and one for each token of its
        draft or for each of its forks."""
        self._land(plan)
        result = StepResult()
        tokens = iter(sampled)
        is_plain, done = plan.is_plain, Place.DONE
        for chunk in plan.chunks:
            sequence = chunk.sequence
            sequence.num_computed = chunk.end
            if chunk.previous_place is not None and sequence.place is Place.RUNNING:
                self._publish(plan, sequence, chunk.end // self._block_size)
            if not is_plain and self._commit_more(chunk, tokens, result):
                continue
            token = next(tokens)
            # DONE: another sequence of its request has just failed, and all with it.
            if sequence.place is not done and self._commit_token(sequence, token, result):
                self._finish(sequence)
        return result

    # ---- planning ----

    def _plan_decodes(self, plan: StepPlan) -> None:
        block_size, chunks, running = self._block_size, plan.chunks, Place.RUNNING
        for sequence in self._running.copy():
            num_tokens = len(sequence.token_ids)
            if (
                num_tokens - sequence.num_computed != 1
                or sequence.place is not running  # preempted for the sake of a better one
                or (len(sequence.blocks) * block_size < num_tokens and not self._make_room(sequence))
            ):
                continue
            has_full_block = sequence.keys is not None and num_tokens // block_size > sequence.num_published
            if sequence.output_token_ids and not has_full_block:
                # Nearly always: past its prompt, and no block to be published.
                chunks.append(Chunk(sequence, num_tokens - 1, num_tokens, True))
                plan.num_tokens += 1
            else:
                self._plan_chunk(plan, sequence, num_tokens)

    def _plan_chunks(self, plan: StepPlan) -> None:
        for sequence in self._running:
            budget = self._max_num_batched_tokens - plan.num_tokens
            if budget <= 0:
                return
            if sequence.num_remaining > 1:
                self._plan_chunk(plan, sequence, min(len(sequence.token_ids), sequence.num_computed + budget))

    def _admit(self, plan: StepPlan) -> None:
        while len(self._running) < self._max_num_seqs:
            budget = self._max_num_batched_tokens - plan.num_tokens
            sequence = self._waiting.first()
            if sequence is None or budget <= 0:
                return
            found = self._find_prefix(sequence)
            num_new = self._num_blocks_wanted(sequence) - len(found)
            num_computed = len(found) * self._block_size
            if num_new + self._headroom() > self._pool.num_available_beside(found):
                return
            if not self._enable_chunked_prefill and len(sequence.token_ids) - num_computed > budget:
                return
            self._waiting.pop_first(Place.RUNNING)
            sequence.blocks.extend(self._pool.allocate(num_new, found))
            sequence.num_computed = num_computed
            sequence.num_published = len(found)
            bisect.insort(self._running, sequence, key=_rank)
            if sequence.index == 0 and sequence.num_preemptions == 0:
                self._count_start(plan, sequence)
            self._plan_chunk(plan, sequence, min(len(sequence.token_ids), num_computed + budget))

    def _plan_chunk(self, plan: StepPlan, sequence: LiveSequence, end: int) -> None:
        start = sequence.num_computed
        chunk = Chunk(sequence, start, end, end == len(sequence.token_ids))
        group = sequence.group
        if group.params.prompt_logprobs is not None and sequence.index == 0:
            last = len(group.prompt_token_ids) - 1
            chunk.prompt_positions = range(max(start, group.num_prompt_logprobs), max(start, min(end, last)))
        plan.chunks.append(chunk)
        plan.num_tokens += end - start
        if sequence.keys is not None and end // self._block_size > sequence.num_published:
            self._publish(plan, sequence, end // self._block_size)
        if chunk.samples and len(group.sequences) < group.params.n:
            chunk.forks = [forked_sequence(sequence, index) for index in range(1, group.params.n)]
        if not chunk.samples or chunk.prompt_positions or chunk.forks:
            plan.is_plain = False

    def _publish(self, plan: StepPlan, sequence: LiveSequence, end: int) -> None:
        keys = sequence.keys
        if keys is None:
            return
        for index in range(sequence.num_published, end):
            self._pool.publish(keys, index, sequence.blocks[index])
            plan.published.append(sequence.blocks[index])
        sequence.num_published = end

    def _make_room(self, sequence: LiveSequence) -> bool:
        """See to it that the next token has a block. False if `sequence` itself had to make way."""
        while len(sequence.blocks) * self._block_size < len(sequence.token_ids):
            try:
                sequence.blocks.extend(self._pool.allocate(1))
            except OutOfBlocksError:
                victim = self._running[-1]
                self._preempt(victim)
                if victim is sequence:
                    return False
        return True

    def _preempt(self, sequence: LiveSequence) -> None:
        self._stop_running(sequence)
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._waiting.push(sequence)

    # ---- admission ----

    def _find_prefix(self, sequence: LiveSequence) -> list[int]:
        if sequence.keys is None:
            return []
        return self._pool.find_prefix(sequence.keys, self._num_reusable_blocks(sequence))

    def _num_reusable_blocks(self, sequence: LiveSequence) -> int:
        group = sequence.group
        if group.params.prompt_logprobs is not None and group.num_prompt_logprobs < len(group.prompt_token_ids) - 1:
            return 0  # the model has to run on all of the prompt
        return (len(sequence.token_ids) - 1) // self._block_size

    def _num_blocks_wanted(self, sequence: LiveSequence) -> int:
        if self._reserve_all_blocks:
            return blocks_for(sequence.group.max_total_tokens - 1, self._block_size)
        return blocks_for(len(sequence.token_ids), self._block_size)

    def _headroom(self) -> int:
        """Blocks to leave to those that run, so that an admission is not undone at once: one more for each."""
        return 0 if self._reserve_all_blocks else len(self._running)

    def _count_start(self, plan: StepPlan, sequence: LiveSequence) -> None:
        group = sequence.group
        group.num_cached_tokens = sequence.num_computed
        group.first_scheduled_s = plan.now_s
        self._num_not_started -= 1
        plan.started.append(group)
        if sequence.keys is not None:
            self.num_prefix_query_tokens += len(sequence.token_ids)
            self.num_prefix_hit_tokens += sequence.num_computed

    # ---- after the step ----

    def _commit_more(self, chunk: Chunk, tokens: Iterator[SampledToken], result: StepResult) -> bool:
        """Whatever is not the next token alone. False if that one is still to be taken."""
        if chunk.prompt_positions:
            chunk.sequence.group.num_prompt_logprobs = chunk.prompt_positions.stop
        if chunk.draft:
            self._commit_draft(chunk, list(itertools.islice(tokens, 1 + len(chunk.draft))), result)
        elif chunk.forks:
            self._commit_forks(chunk, tokens, result)
        elif chunk.samples:
            return False
        return True

    def _commit_token(self, sequence: LiveSequence, token: SampledToken, result: StepResult) -> bool:
        """Returns whether this token is its last, and it has to give back its place. An error ends all its request."""
        token_id, error = token.token_id, token.error
        if error is not None:
            self._fail_group(sequence, error, result)
            return False
        group, token_ids, output = sequence.group, sequence.token_ids, sequence.output_token_ids
        token_ids.append(token_id)
        output.append(token_id)
        finish_reason: FinishReason | None = None
        stop_reason = None
        if token_id in group.eos_token_ids:
            if len(output) >= group.params.min_tokens:
                finish_reason = "stop"
        elif token_id in group.stop_token_ids and len(output) >= group.params.min_tokens:
            finish_reason, stop_reason = "stop", token_id
        if finish_reason is None and len(token_ids) >= group.max_total_tokens:
            finish_reason = "length"
        result.events.append(SequenceEvent(sequence, token, finish_reason, stop_reason))
        return finish_reason is not None

    def _commit_draft(self, chunk: Chunk, tokens: Sequence[SampledToken], result: StepResult) -> None:
        """Take the sampled tokens as long as each stands behind the token that was guessed before it.

        A guess is accepted exactly if it is what the sampler chose at its position. For a guess that is certain of
        itself that is the rejection rule of Leviathan et al., "Fast Inference from Transformers via Speculative
        Decoding" (2023): accept x with probability p(x), else take one from p without x. And since the sampler's
        number depends on seed and position alone, the tokens are the very ones that come without speculation.
        """
        sequence, draft = chunk.sequence, chunk.draft
        if sequence.place is Place.DONE:
            return
        num_accepted = 0
        is_last = self._commit_token(sequence, tokens[0], result)
        for guess, previous, token in zip(draft, tokens, tokens[1:], strict=False):
            if is_last or previous.error is not None or previous.token_id != guess:
                break
            num_accepted += 1
            sequence.num_computed += 1
            is_last = self._commit_token(sequence, token, result)
        self.speculator.count(len(draft), num_accepted)
        if is_last:
            self._finish(sequence)

    def _commit_forks(self, chunk: Chunk, tokens: Iterator[SampledToken], result: StepResult) -> None:
        sequence, forks = chunk.sequence, chunk.forks
        token = next(tokens)
        fork_tokens = [next(tokens) for _ in forks]
        error = token.error or next((other.error for other in fork_tokens if other.error is not None), None)
        if error is not None:
            self._fail_group(sequence, error, result)
            return
        is_last = self._commit_token(sequence, token, result)
        for fork, fork_token in zip(forks, fork_tokens, strict=True):
            if self._commit_token(fork, fork_token, result):
                fork.place = Place.DONE
            else:
                self._place_fork(sequence, fork, result)
        if is_last:
            self._finish(sequence)

    def _finish(self, sequence: LiveSequence) -> None:
        self._stop_running(sequence)
        sequence.place = Place.DONE
        if sequence.group.is_done:
            del self._groups[sequence.group.ticket]

    def _fail_group(self, sequence: LiveSequence, error: str, result: StepResult) -> None:
        # Whatever made the logits unusable may sit in the cache: nobody else is to find it.
        for block in sequence.blocks:
            self._pool.forget(block)
        self.abort(sequence.group.ticket)
        result.failed.append((sequence.group, error))

    def _place_fork(self, parent: LiveSequence, fork: LiveSequence, result: StepResult) -> None:
        """Let `fork` run on the parent's prompt, if there is room; else it waits, as one that was preempted does."""
        num_prompt_tokens = len(parent.group.prompt_token_ids)
        shared = parent.blocks[: num_prompt_tokens // self._block_size]
        num_new = self._num_blocks_wanted(fork) - len(shared)
        if len(self._running) >= self._max_num_seqs or num_new > self._pool.num_available:
            self._waiting.push(fork)
            return
        fork.blocks.extend(self._pool.allocate(num_new, shared))
        fork.num_computed = num_prompt_tokens
        fork.num_published = len(shared)
        fork.place = Place.RUNNING
        bisect.insort(self._running, fork, key=_rank)
        if num_prompt_tokens % self._block_size:  # both are going to write into the block that the prompt ends in
            result.block_copies.append((parent.blocks[len(shared)], fork.blocks[len(shared)]))

    def _stop_running(self, sequence: LiveSequence) -> None:
        """Give back its place and its blocks."""
        self._running.remove(sequence)
        if self._ahead is None:
            self._pool.release(sequence.blocks)
        else:
            self._ahead.released.append(sequence.blocks)
        sequence.blocks = no_blocks()

    def _land(self, plan: StepPlan) -> None:
        """The step has run: nobody writes any more to the blocks that had to be kept for its sake."""
        if plan is self._ahead:
            self._ahead = None
        for blocks in plan.released:
            self._pool.release(blocks)
        plan.released = []


def _rank(sequence: LiveSequence) -> tuple[float, int, int]:
    return sequence.rank

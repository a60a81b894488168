"""Can this request ever be answered? Asked once, before it is admitted, with numbers in the answer."""

from dataclasses import dataclass

from pilot_llm.errors import InvalidRequestError

MOST_SEQUENCES = 4096
"""That may run at once, and that one request may ask for, whatever a model's `max_num_seqs` is."""


@dataclass(frozen=True)
class SequenceLimits:
    """What one sequence may take: positions of the model, and KV blocks when all others have been preempted."""

    max_model_len: int
    num_blocks: int
    block_size: int

    @property
    def capacity_tokens(self) -> int:
        """Longest sequence that the pool can hold: the last token is never written to the cache."""
        return self.num_blocks * self.block_size + 1

    def max_total_tokens(self, num_prompt_tokens: int, max_tokens: int | None) -> int:
        """Length at which a sequence ends with finish reason "length".

        Without `max_tokens` it is what model and pool can hold.

        Raises:
            InvalidRequestError: no prompt, a prompt without room for a token behind it, or more than the pool holds.
        """
        if num_prompt_tokens < 1:
            raise InvalidRequestError("the prompt is empty")
        if num_prompt_tokens >= self.max_model_len:
            raise InvalidRequestError(
                f"the prompt has {num_prompt_tokens} tokens; with max_model_len {self.max_model_len} it may have at "
                f"most {self.max_model_len - 1}, so that one token can follow"
            )
        if max_tokens is None and num_prompt_tokens < self.capacity_tokens:
            return min(self.max_model_len, self.capacity_tokens)
        wanted = min(num_prompt_tokens + (max_tokens or 1), self.max_model_len)
        if wanted > self.capacity_tokens:
            blocks = blocks_for(wanted - 1, self.block_size)
            raise InvalidRequestError(
                f"{num_prompt_tokens} prompt tokens and up to {wanted - num_prompt_tokens} output tokens need {blocks} "
                f"KV blocks of {self.block_size} tokens, but the model has {self.num_blocks}"
            )
        return wanted


def blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)

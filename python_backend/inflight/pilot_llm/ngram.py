"""Guesses the next tokens of a sequence from its own past: what followed when its last tokens stood there before.

    ... the old bridge was closed ...... since the old bridge
        ^^^^^^^^^^^^^^ ~~~~~~~~~~               ^^^^^^^^^^^^^^   the longest of the last n-grams that has been seen,
        its latest occurrence, and the draft                    prompt_lookup_max tokens down to prompt_lookup_min

Prompt lookup decoding (Saxena, 2023), under vLLM's name "ngram". It costs no model: it pays where answers repeat their
prompt or themselves (code, summaries, corrections).
"""

from array import array
from collections.abc import Sequence

_TOKEN_TYPE = "i"
_TOKEN_BYTES = array(_TOKEN_TYPE).itemsize


class NgramDrafter:
    """One sequence's past. Its tokens are kept as bytes, in which a search is a search for a string."""

    def __init__(self, longest: int, shortest: int) -> None:
        self._longest = longest
        self._shortest = shortest
        self._past = bytearray()

    def draft(self, token_ids: Sequence[int], num_tokens: int) -> list[int]:
        """At most `num_tokens` tokens that may follow `token_ids`, which only grows from call to call."""
        num_known = len(self._past) // _TOKEN_BYTES
        self._past += array(_TOKEN_TYPE, token_ids[num_known:]).tobytes()
        for length in range(min(self._longest, len(token_ids) - 1), self._shortest - 1, -1):
            start = self._latest(self._past[-length * _TOKEN_BYTES :])
            if start is not None:
                draft = list(token_ids[start + length : start + length + num_tokens])
                while len(draft) < num_tokens:  # what follows has ended: a text that repeats itself goes round again
                    draft.append(draft[len(draft) - (len(token_ids) - start - length)])
                return draft
        return []

    def _latest(self, ngram: bytearray) -> int | None:
        """Index of the token at which `ngram` stands for the last time before the end."""
        end = len(self._past) - _TOKEN_BYTES
        while (start := self._past.rfind(ngram, 0, end)) >= 0:
            if start % _TOKEN_BYTES == 0:
                return start // _TOKEN_BYTES
            end = start + len(ngram) - 1
        return None

"""From a request to a group that the scheduler can take: tokens, limits, stop tokens, keys. Runs on its own thread.

Whatever is wrong with a request is found here, or before: the step loop never meets a bad one.
"""

import random
from collections.abc import Sequence

from pilot_llm.block_keys import Namespace
from pilot_llm.config import EngineConfig
from pilot_llm.errors import InvalidRequestError
from pilot_llm.limits import SequenceLimits
from pilot_llm.request import Request
from pilot_llm.sequence import RequestGroup
from pilot_llm.tokenizer import Tokenizer


class Admission:
    """Prepares requests one after the other."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer,
        *,
        limits: SequenceLimits,
        vocab_size: int,
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._limits = limits
        self._vocab_size = vocab_size
        self._seeds = random.Random(config.seed)

    def prepare(self, ticket: int, request: Request, arrival_s: float) -> RequestGroup:
        """Raises InvalidRequestError: says what is wrong with the request."""
        config = self._config
        params = request.params.check_against(
            self._tokenizer,
            vocab_size=self._vocab_size,
            max_logprobs=config.max_logprobs,
            max_num_seqs=config.max_num_seqs,
        )
        token_ids = self._prompt_token_ids(request)
        max_total_tokens = self._limits.max_total_tokens(len(token_ids), params.max_tokens)
        _check_token_ids(token_ids, self._vocab_size)
        special_stops = (self._tokenizer.special_token_id(stop) for stop in params.stop)
        stop_token_ids = frozenset(params.stop_token_ids).union(t for t in special_stops if t is not None)
        return RequestGroup(
            ticket=ticket,
            params=params,
            prompt_token_ids=token_ids,
            score=self._score(request, arrival_s),
            arrival_s=arrival_s,
            max_total_tokens=max_total_tokens,
            stop_token_ids=stop_token_ids,
            eos_token_ids=frozenset() if params.ignore_eos else self._tokenizer.eos_token_ids,
            seed=self._seeds.getrandbits(64) if params.seed is None else params.seed,
            namespace=Namespace(request.cache_salt, request.adapter) if config.enable_prefix_caching else None,
            wants_logprobs=request.return_cumulative_logprob or params.logprobs is not None,
        )

    def _prompt_token_ids(self, request: Request) -> list[int]:
        keep = request.params.truncate_prompt_tokens
        if keep == -1:
            keep = self._limits.max_model_len - 1
        if isinstance(request.prompt, str):
            text = self._hopeful_text(request.prompt, keep)
            token_ids = self._tokenizer.encode(text, add_special_tokens=request.add_special_tokens)
        else:
            token_ids = list(request.prompt)
        return token_ids if keep is None else token_ids[-keep:]

    def _hopeful_text(self, text: str, keep: int | None) -> str:
        """The part of the prompt that is worth encoding: some megabytes take many seconds, in which nobody else's
        prompt is encoded."""
        if not text:
            raise InvalidRequestError("the prompt is empty")
        limit, longest = self._limits.max_model_len, self._tokenizer.longest_token_chars
        if keep is not None and keep < limit:
            # Twice what the last `keep` tokens can stand for: how the text is cut shows at its beginning only.
            return text[-2 * keep * longest :]
        if len(text) > limit * longest:
            raise InvalidRequestError(
                f"the prompt of {len(text)} characters is more than {limit} tokens, the model's max_model_len"
            )
        return text

    def _score(self, request: Request, arrival_s: float) -> float:
        if self._config.scheduling_policy == "fcfs":
            return 0.0
        return request.priority + arrival_s / self._config.inflight.ageing_s


def _check_token_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise InvalidRequestError(f"prompt token id {token_id!r} is not in the model's vocabulary of {vocab_size}")

"""Log probabilities and token ids as JSON text, in the format of Triton's vllm_backend.

a position     {"<token id>": {"logprob": -0.1, "rank": 1, "decoded_token": " sky"}, ...}   the chosen token first
a sequence     [position, ...]     of its new tokens only; null if the request asked for no logprobs
a prompt       [null, position, ...]     no token before the first one predicts it
"""

import json
from collections.abc import Sequence

from pilot_llm.request import PositionLogprobs


def output_logprobs_json(positions: Sequence[PositionLogprobs] | None) -> str:
    return "null" if positions is None else json.dumps([_position(position) for position in positions])


def prompt_logprobs_json(positions: Sequence[PositionLogprobs | None] | None) -> str:
    if positions is None:
        return "null"
    return json.dumps([None if position is None else _position(position) for position in positions])


def token_ids_json(token_ids: Sequence[int]) -> str:
    return json.dumps(list(token_ids))


def _position(entries: PositionLogprobs) -> dict[int, dict[str, object]]:
    # The chosen token is often among the most probable ones as well: one key, one entry.
    return {
        entry.token_id: {"logprob": entry.logprob, "rank": entry.rank, "decoded_token": entry.decoded_token}
        for entry in entries
    }

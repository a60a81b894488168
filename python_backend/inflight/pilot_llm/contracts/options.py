"""What is not sampling but rides with it: priority, timeout, cache salt, special tokens; names of vLLM and Triton.

They are accepted as request parameters and, where there is one, inside the JSON of `sampling_parameters`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilot_llm.errors import InvalidRequestError

OPTION_NAMES = ("priority", "timeout", "cache_salt", "add_special_tokens")

_LONGEST_JSON = 4 << 20
"""Characters. To read more takes a good part of a second, in which no other request is taken."""

# Clients and Triton's own front ends put these beside the real parameters; they mean nothing to a model.
_IGNORED = frozenset({"id", "model", "headers", "binary_data_output", "sequence_id", "sequence_start", "sequence_end"})
_IGNORED_PREFIX = "triton_"


@dataclass(frozen=True)
class Options:
    """`priority`: lower is served first. `timeout_s`: from arrival to the last token; None for no limit.

    `add_special_tokens`: False for a text that holds its own, as a chat template writes it.
    """

    priority: int = 0
    timeout_s: float | None = None
    cache_salt: str | None = None
    add_special_tokens: bool = True


def without_ignored(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in parameters.items()
        if name not in _IGNORED and not name.startswith(_IGNORED_PREFIX)
    }


def take_options(parameters: dict[str, Any], timeout_us: int) -> Options:
    """Remove the options from `parameters`; what is left there is sampling.

    `timeout_us` is what Triton itself has read from the request, 0 for none. A `timeout` parameter has its unit.

    Raises:
        InvalidRequestError: an option of the wrong kind; names it.
    """
    own_timeout_us = _integer("timeout", parameters.pop("timeout", 0))
    if own_timeout_us < 0:
        raise InvalidRequestError(f"timeout: microseconds, 0 for no limit, not {own_timeout_us}")
    timeout_us = own_timeout_us or timeout_us
    priority = _integer("priority", parameters.pop("priority", 0))
    cache_salt = parameters.pop("cache_salt", None)
    if cache_salt is not None and not isinstance(cache_salt, str):
        raise InvalidRequestError(f"cache_salt: text expected, not {cache_salt!r}")
    add_special_tokens = parameters.pop("add_special_tokens", True)
    if not isinstance(add_special_tokens, bool):
        raise InvalidRequestError(f"add_special_tokens: true or false expected, not {add_special_tokens!r}")
    return Options(priority, timeout_us / 1e6 if timeout_us else None, cache_salt or None, add_special_tokens)


def parse_json_object(name: str, text: str) -> dict[str, Any]:
    """The JSON object in `text`.

    Raises:
        InvalidRequestError: anything else.
    """
    if len(text) > _LONGEST_JSON:
        raise InvalidRequestError(f"{name}: at most {_LONGEST_JSON} characters, not {len(text)}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{name}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequestError(f'{name}: a JSON object expected, as in {{"max_tokens": 32}}, not {text[:80]!r}')
    return value


def _integer(name: str, value: Any) -> int:
    try:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequestError(f"{name}: an integer expected, not {value!r}") from None
    if not -(2**63) <= number < 2**63:  # which a float can hold, too
        raise InvalidRequestError(f"{name}: an integer of 64 bits expected, not {number}")
    return number

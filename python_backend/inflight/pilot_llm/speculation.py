"""`speculative_config` of model.json: guessing tokens ahead, by vLLM's names.

    "speculative_config": {
      "method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2
    }

Answers do not change with it, only their speed: a step checks a guess of several tokens in one pass over the weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilot_llm.fields import Integer, Text, checked, checked_values


@dataclass(frozen=True)
class SpeculativeConfig:
    """Without a prompt_lookup_* both are 5, and one stands for the other, as in vLLM."""

    method: str = checked("ngram", Text(choices=("ngram",)))
    num_speculative_tokens: int = checked(4, Integer(at_least=1, at_most=64))
    prompt_lookup_max: int = checked(5, Integer(at_least=1))
    prompt_lookup_min: int = checked(5, Integer(at_least=1))
    disable_by_batch_size: int = checked(4096, Integer(at_least=1))  # with more running sequences nothing is guessed


def read_speculative_config(value: object, name: str = "speculative_config") -> SpeculativeConfig | None:
    """
    Raises:
        ValueError: no object, no method, an unknown name, or a value out of range.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object, got {value!r}")
    for required in ("method", "num_speculative_tokens"):
        if required not in value:
            raise ValueError(f"{name}.{required} is missing")
    given: dict[str, Any] = dict(value)
    for one, other in (("prompt_lookup_max", "prompt_lookup_min"), ("prompt_lookup_min", "prompt_lookup_max")):
        if given.get(one) is None and given.get(other) is not None:
            given[one] = given[other]
    try:
        values: dict[str, Any] = checked_values(SpeculativeConfig, given)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    config = SpeculativeConfig(**values)
    if config.prompt_lookup_min > config.prompt_lookup_max:
        raise ValueError(
            f"{name}: prompt_lookup_min ({config.prompt_lookup_min}) must be at most prompt_lookup_max "
            f"({config.prompt_lookup_max})"
        )
    return config

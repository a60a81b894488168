"""What model.py asks of a contract: read a Triton request, write its responses. Arrays in, arrays out, no Triton.

request's tensors and parameters --parse--> [ParsedRequest, one per row of the batch]
                                                 | prompt, params, ... -> engine
                                                 | format              <- engine's outputs
response's tensors  <--------------------format.responses(output)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from pilot_llm.contracts.tensors import Arrays, TensorSpec
from pilot_llm.request import RequestOutput
from pilot_llm.sampling import SamplingParams

Response = dict[str, npt.NDArray[Any]]


class ResponseFormat(Protocol):
    """How one request wants its answer."""

    def responses(self, output: RequestOutput) -> list[Response]:
        """The responses that carry `output`, in order; empty if there is nothing to tell yet."""


@dataclass(frozen=True)
class ParsedRequest:
    """One prompt with all that the engine has to know of it; its params are validated."""

    prompt: str | Sequence[int]
    params: SamplingParams
    stream: bool
    priority: int
    timeout_s: float | None
    cache_salt: str | None
    add_special_tokens: bool
    format: ResponseFormat
    return_cumulative_logprob: bool = False


class Contract(Protocol):
    """A set of tensor names and their meaning, which a family of clients already speaks."""

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> tuple[TensorSpec, ...]: ...
    @property
    def outputs(self) -> tuple[TensorSpec, ...]: ...
    @property
    def max_batch_size(self) -> int | None:
        """None: tensors have no batch axis (Triton's max_batch_size 0)."""

    def parse(self, arrays: Arrays, parameters: Mapping[str, Any], timeout_us: int) -> list[ParsedRequest]:
        """Read every row of a request.

        `parameters` are the request's own; `timeout_us` is Triton's timeout of the request, 0 for none.

        Raises:
            InvalidRequestError: anything wrong with it; the message names the field. No row of it is served.
        """

"""Prompts and parameters as the tensors of a language model, and its responses as pieces of text.

Two dialects, told apart by one input each:

    sampling_parameters    Triton's vllm_backend, our inflight backend     all sampling as one JSON text
    max_tokens             TensorRT-LLM's ensemble and BLS models          a tensor per parameter, batch axis first
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tritonclient.grpc import InferResult, service_pb2

from pilot_client.errors import BadRequestError, ModelNotReadyError


@dataclass(frozen=True)
class Piece:
    """What one response brought, or a whole answer. Each tuple has an entry per sequence (n of the parameters).

    None stands for what the model does not tell. `logprobs` has one mapping per token, as the model wrote it.
    """

    texts: tuple[str, ...]
    finish_reasons: tuple[str | None, ...]
    num_input_tokens: int | None
    num_output_tokens: tuple[int, ...] | None
    num_cached_tokens: int | None = None
    logprobs: tuple[tuple[dict[str, Any], ...], ...] | None = None

    @property
    def text(self) -> str:
        """The text of the first sequence."""
        return self.texts[0]


def join(pieces: Sequence[Piece]) -> Piece:
    """All that `pieces` (at least one) brought, as one piece."""
    last = pieces[-1]
    counts = [piece.num_output_tokens for piece in pieces if piece.num_output_tokens is not None]
    logprobs = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    reasons = zip(*(piece.finish_reasons for piece in reversed(pieces)), strict=True)
    return Piece(
        texts=tuple("".join(texts) for texts in zip(*(piece.texts for piece in pieces), strict=True)),
        finish_reasons=tuple(next((reason for reason in column if reason), None) for column in reasons),
        num_input_tokens=last.num_input_tokens,
        num_output_tokens=tuple(sum(column) for column in zip(*counts, strict=True)) if counts else None,
        num_cached_tokens=last.num_cached_tokens,
        logprobs=tuple(sum(column, ()) for column in zip(*logprobs, strict=True)) if logprobs else None,
    )


class Dialect(Protocol):
    """How a model wants to be asked."""

    def request(
        self, model: str, prompt: str | Sequence[int], params: Mapping[str, Any], *, is_stream: bool
    ) -> service_pb2.ModelInferRequest: ...

    def piece(self, result: InferResult, params: Mapping[str, Any]) -> Piece: ...


def dialect_of(model: str, input_names: Collection[str]) -> Dialect:
    """The dialect of a model with these inputs.

    Raises:
        ModelNotReadyError: it is no language model of a known kind.
    """
    if "text_input" in input_names and "sampling_parameters" in input_names:
        return VllmDialect(input_names)
    if "text_input" in input_names and "max_tokens" in input_names:
        return TensorRtLlmDialect()
    raise ModelNotReadyError(
        f"model {model!r} takes {', '.join(sorted(input_names)) or 'nothing'}: not the tensors of a language model "
        "(text_input, and sampling_parameters or max_tokens)"
    )


class VllmDialect:
    def __init__(self, input_names: Collection[str]) -> None:
        self._input_names = input_names

    def request(
        self, model: str, prompt: str | Sequence[int], params: Mapping[str, Any], *, is_stream: bool
    ) -> service_pb2.ModelInferRequest:
        request = service_pb2.ModelInferRequest(model_name=model)
        if isinstance(prompt, str):
            _add(request, "text_input", "BYTES", [1], [_utf8("prompt", prompt)])
        elif "input_ids" in self._input_names:
            _add(request, "input_ids", "INT32", [len(prompt)], list(prompt))
        else:
            raise BadRequestError(f"model {model!r} takes no token ids; give the prompt as text")
        try:
            sampling = json.dumps(dict(params), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise BadRequestError(f"sampling parameters cannot be sent: {error}") from error
        _add(request, "sampling_parameters", "BYTES", [1], [sampling.encode()])
        flags = {"return_finish_reason", "return_num_input_tokens", "return_num_output_tokens"}
        flags |= {"return_num_cached_tokens"} | ({"return_logprobs"} if "logprobs" in params else set())
        for flag in sorted(flags.intersection(self._input_names)):
            _add(request, flag, "BOOL", [1], [True])
        _add(request, "stream", "BOOL", [1], [is_stream])
        _add(request, "exclude_input_in_output", "BOOL", [1], [True])
        return request

    def piece(self, result: InferResult, params: Mapping[str, Any]) -> Piece:
        texts = _texts(result, "text_output") or []
        reasons = _texts(result, "finish_reason") or ["None"] * len(texts)
        logprobs = _texts(result, "logprobs")
        return Piece(
            texts=tuple(texts),
            # vllm_backend writes Python's None as text for a sequence that goes on.
            finish_reasons=tuple(None if reason == "None" else reason for reason in reasons),
            num_input_tokens=_first(_integers(result, "num_input_tokens")),
            num_output_tokens=_integers(result, "num_output_tokens"),
            num_cached_tokens=_first(_integers(result, "num_cached_tokens")),
            logprobs=None if logprobs is None else tuple(tuple(json.loads(text) or ()) for text in logprobs),
        )


# vLLM's name -> TensorRT-LLM's name and type.
_TENSOR_BY_PARAMETER = {
    "max_tokens": ("max_tokens", "INT32"),
    "min_tokens": ("min_tokens", "INT32"),
    "n": ("num_return_sequences", "INT32"),
    "temperature": ("temperature", "FP32"),
    "top_k": ("top_k", "INT32"),
    "top_p": ("top_p", "FP32"),
    "seed": ("seed", "UINT64"),
    "presence_penalty": ("presence_penalty", "FP32"),
    "frequency_penalty": ("frequency_penalty", "FP32"),
    "repetition_penalty": ("repetition_penalty", "FP32"),
    "stop": ("stop_words", "BYTES"),
    "bad_words": ("bad_words", "BYTES"),
}
_DEFAULT_MAX_TOKENS = 16  # vLLM's; TensorRT-LLM insists on a number


class TensorRtLlmDialect:
    def request(
        self, model: str, prompt: str | Sequence[int], params: Mapping[str, Any], *, is_stream: bool
    ) -> service_pb2.ModelInferRequest:
        if not isinstance(prompt, str):
            raise BadRequestError(f"model {model!r} takes no token ids; give the prompt as text")
        request = service_pb2.ModelInferRequest(model_name=model)
        _add(request, "text_input", "BYTES", [1, 1], [_utf8("prompt", prompt)])
        for name, value in {"max_tokens": _DEFAULT_MAX_TOKENS, **params}.items():
            if name not in _TENSOR_BY_PARAMETER:
                raise BadRequestError(f"TensorRT-LLM's tensors have no place for parameter {name!r}")
            tensor, datatype = _TENSOR_BY_PARAMETER[name]
            values = list(value) if isinstance(value, (list, tuple)) else [value]
            values = [_utf8(name, item) if isinstance(item, str) else item for item in values]
            try:
                _add(request, tensor, datatype, [1, len(values)], values)
            except (TypeError, ValueError) as error:
                raise BadRequestError(f"parameter {name} is {value!r}: {error}") from error
        for flag in ("exclude_input_in_output", "return_num_input_tokens", "return_num_output_tokens"):
            _add(request, flag, "BOOL", [1, 1], [True])
        _add(request, "stream", "BOOL", [1, 1], [is_stream])
        return request

    def piece(self, result: InferResult, params: Mapping[str, Any]) -> Piece:
        """Each response is about one sequence; the others have no news in it."""
        num_sequences = int(params.get("n", 1))
        index = _first(_integers(result, "sequence_index")) or 0
        texts, counts = [""] * num_sequences, [0] * num_sequences
        texts[index] = "".join(_texts(result, "text_output") or ())
        count = _first(_integers(result, "num_output_tokens"))
        counts[index] = count or 0
        return Piece(
            texts=tuple(texts),
            finish_reasons=(None,) * num_sequences,
            num_input_tokens=_first(_integers(result, "num_input_tokens")),
            num_output_tokens=None if count is None else tuple(counts),
        )


_CONTENTS = {
    "BYTES": "bytes_contents",
    "BOOL": "bool_contents",
    "INT32": "int_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
}


def _add(request: service_pb2.ModelInferRequest, name: str, datatype: str, shape: list[int], values: list[Any]) -> None:
    tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
    getattr(tensor.contents, _CONTENTS[datatype]).extend(values)


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:  # a byte that a terminal or an argument could not decode
        raise BadRequestError(f"{name} is no Unicode text: {error.reason} at character {error.start}") from None


def _texts(result: InferResult, name: str) -> list[str] | None:
    array = result.as_numpy(name)
    # A token that is no valid UTF-8 on its own is the model's matter, not a reason to fail.
    return None if array is None else [bytes(value).decode(errors="replace") for value in array.reshape(-1)]


def _integers(result: InferResult, name: str) -> tuple[int, ...] | None:
    array = result.as_numpy(name)
    return None if array is None else tuple(int(value) for value in array.reshape(-1))


def _first(values: tuple[int, ...] | None) -> int | None:
    return values[0] if values else None

"""Contract A: the tensors of Triton's vllm_backend, so that its clients get their answers unchanged.

    one-dimensional tensors, no batch axis; sampling as JSON text in `sampling_parameters`, else as request parameters

What it does as vllm_backend does: a streamed text is a delta; an answer in one piece begins with the prompt unless
`exclude_input_in_output` is true; an unfinished chunk has finish_reason "None"; extra outputs come when asked for;
where `sampling_parameters` is given, sampling parameters among the request parameters are not looked at.

Ours in addition: `input_ids` instead of text, token ids, prompt logprobs and the count of cached prompt tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pilot_llm.contracts.contract import ParsedRequest, Response
from pilot_llm.contracts.logprobs_json import output_logprobs_json, prompt_logprobs_json, token_ids_json
from pilot_llm.contracts.options import OPTION_NAMES, parse_json_object, take_options, without_ignored
from pilot_llm.contracts.tensors import Arrays, Fields, TensorSpec, strings
from pilot_llm.errors import InvalidRequestError
from pilot_llm.request import RequestOutput, SequenceDelta
from pilot_llm.sampling import SamplingParams

_RETURN_FLAGS = (
    "return_finish_reason",
    "return_cumulative_logprob",
    "return_logprobs",
    "return_num_input_tokens",
    "return_num_output_tokens",
    # From here on ours.
    "return_token_ids",
    "return_prompt_logprobs",
    "return_num_cached_tokens",
)
_FLAGS = ("stream", "exclude_input_in_output", *_RETURN_FLAGS)


class VllmContract:
    name = "vllm"
    max_batch_size = None
    inputs = (
        TensorSpec("text_input", "TYPE_STRING", optional=False),
        TensorSpec("image", "TYPE_STRING", (-1,)),
        TensorSpec("stream", "TYPE_BOOL"),
        TensorSpec("sampling_parameters", "TYPE_STRING"),
        TensorSpec("exclude_input_in_output", "TYPE_BOOL"),
        *(TensorSpec(flag, "TYPE_BOOL") for flag in _RETURN_FLAGS),
        TensorSpec("embedding_request", "TYPE_STRING"),
        TensorSpec("input_ids", "TYPE_INT32", (-1,)),
    )
    outputs = (
        TensorSpec("text_output", "TYPE_STRING", (-1,)),
        TensorSpec("finish_reason", "TYPE_STRING", (-1,)),
        TensorSpec("cumulative_logprob", "TYPE_FP32", (-1,)),
        TensorSpec("logprobs", "TYPE_STRING", (-1,)),
        TensorSpec("num_input_tokens", "TYPE_UINT32"),
        TensorSpec("num_output_tokens", "TYPE_UINT32", (-1,)),
        TensorSpec("token_ids", "TYPE_STRING", (-1,)),
        TensorSpec("prompt_logprobs", "TYPE_STRING"),
        TensorSpec("num_cached_tokens", "TYPE_UINT32"),
    )

    def parse(self, arrays: Arrays, parameters: Mapping[str, Any], timeout_us: int) -> list[ParsedRequest]:
        fields = Fields(arrays)
        for name in ("image", "embedding_request"):
            if name in fields:
                raise InvalidRequestError(f"{name}: this backend serves text generation only")
        request_parameters = without_ignored(parameters)
        flags = {flag: _flag(fields, request_parameters, flag) for flag in _FLAGS}
        sampling = request_parameters
        sampling_text = fields.text("sampling_parameters")
        if sampling_text is not None:
            sampling = parse_json_object("sampling_parameters", sampling_text)
            # Options may stand beside the JSON as well; those inside it win.
            for name in OPTION_NAMES:
                if name in request_parameters:
                    sampling.setdefault(name, request_parameters[name])
        options = take_options(sampling, timeout_us)
        prompt = _prompt(fields)
        params = SamplingParams.from_dict(sampling)
        stream = flags["stream"] or False
        return [
            ParsedRequest(
                prompt=prompt,
                params=params,
                stream=stream,
                priority=options.priority,
                timeout_s=options.timeout_s,
                cache_salt=options.cache_salt,
                add_special_tokens=options.add_special_tokens,
                format=VllmFormat(
                    num_sequences=params.n,
                    prefix=_prefix(prompt, stream, flags["exclude_input_in_output"]),
                    asked=frozenset(name for name in _RETURN_FLAGS if flags[name]),
                ),
                return_cumulative_logprob=flags["return_cumulative_logprob"] or False,
            )
        ]


class VllmFormat:
    """Each response has an entry for all `n` sequences, as vllm_backend's have; the engine tells only what is new."""

    def __init__(self, num_sequences: int, prefix: str, asked: frozenset[str]) -> None:
        """`prefix` stands before the text of an answer in one piece; `asked` holds the return_* flags that are set."""
        self._prefix = prefix
        self._asked = asked
        self._last = [SequenceDelta(index, "", (), None, None, None, None) for index in range(num_sequences)]

    def responses(self, output: RequestOutput) -> list[Response]:
        sequences = self._all_sequences(output)
        response: Response = {"text_output": strings([self._prefix + sequence.text for sequence in sequences])}
        if "return_finish_reason" in self._asked:
            response["finish_reason"] = strings([str(sequence.finish_reason) for sequence in sequences])
        if "return_cumulative_logprob" in self._asked:
            response["cumulative_logprob"] = np.array(
                [s.cumulative_logprob or 0.0 for s in sequences], dtype=np.float32
            )
        if "return_logprobs" in self._asked:
            response["logprobs"] = strings([output_logprobs_json(sequence.logprobs) for sequence in sequences])
        if "return_num_input_tokens" in self._asked:
            response["num_input_tokens"] = np.array([output.num_prompt_tokens], dtype=np.uint32)
        if "return_num_output_tokens" in self._asked:
            response["num_output_tokens"] = np.array([len(s.token_ids) for s in sequences], dtype=np.uint32)
        if "return_token_ids" in self._asked:
            response["token_ids"] = strings([token_ids_json(sequence.token_ids) for sequence in sequences])
        if "return_prompt_logprobs" in self._asked:
            response["prompt_logprobs"] = strings([prompt_logprobs_json(output.prompt_logprobs)])
        if "return_num_cached_tokens" in self._asked:
            response["num_cached_tokens"] = np.array([output.num_cached_tokens], dtype=np.uint32)
        return [response]

    def _all_sequences(self, output: RequestOutput) -> list[SequenceDelta]:
        """A sequence without news repeats its finish reason and cumulative logprob, with no text and no tokens."""
        sequences = [replace(last, text="", token_ids=(), logprobs=last.logprobs and ()) for last in self._last]
        for delta in output.sequences:
            sequences[delta.index] = delta
        self._last = sequences
        return sequences


def _flag(fields: Fields, parameters: dict[str, Any], name: str) -> bool | None:
    """A flag as tensor or, failing that, as request parameter, where it would else be taken for sampling."""
    parameter = parameters.pop(name, None)
    value = fields.flag(name)
    if value is not None or parameter is None:
        return value
    if not isinstance(parameter, bool):
        raise InvalidRequestError(f"{name}: true or false expected, not {parameter!r}")
    return parameter


def _prompt(fields: Fields) -> str | Sequence[int]:
    text, token_ids = fields.text("text_input"), fields.integers("input_ids")
    if token_ids is None:
        if text is None:
            raise InvalidRequestError("text_input: missing, and no input_ids either")
        return text
    if text:
        raise InvalidRequestError("input_ids: give the prompt as text_input or as input_ids, not both")
    return token_ids


def _prefix(prompt: str | Sequence[int], stream: bool, exclude_input: bool | None) -> str:
    if stream:
        if exclude_input is False:
            raise InvalidRequestError("When streaming, `exclude_input_in_output` = False is not allowed.")
        return ""
    if isinstance(prompt, str):
        return "" if exclude_input else prompt
    if exclude_input is False:
        raise InvalidRequestError("exclude_input_in_output: only a prompt given as text can stand before the answer")
    return ""

"""Contract B: the tensors of TensorRT-LLM's ensemble and BLS models, with their batch axis: [B, 1] on the wire.

Each row of a batch is a request of its own, and each of its n sequences answers in responses of its own, marked by
`batch_index` where B > 1 and `sequence_index` where n > 1, as TensorRT-LLM does.

    max_tokens    required               stop_words, bad_words    "" is padding and means nothing
    top_k, top_p  neither: greedy        end_id                   replaces the model's own end tokens; -1: none
    stream        deltas                 exclude_input_in_output  counts only for an answer in one piece

What has no meaning in this engine is accepted where it changes nothing (pad_id, since nothing is padded;
length_penalty, which needs beams) and refused by name where it would.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pilot_llm.contracts.contract import ParsedRequest, Response
from pilot_llm.contracts.options import Options, take_options, without_ignored
from pilot_llm.contracts.tensors import Arrays, Fields, TensorSpec, strings
from pilot_llm.errors import InvalidRequestError
from pilot_llm.request import RequestOutput
from pilot_llm.sampling import SamplingParams

# The inputs whose value goes to a sampling parameter as it is.
_INTEGERS = {"max_tokens": "max_tokens", "min_tokens": "min_tokens", "min_length": "min_tokens", "seed": "seed"}
_NUMBERS = ("temperature", "repetition_penalty", "presence_penalty", "frequency_penalty")
# What the engine cannot do, and the values that ask for nothing.
_REFUSED_IF_SET = {
    "beam_width": (0, 1),
    "return_context_logits": (False,),
    "return_generation_logits": (False,),
    "return_perf_metrics": (False,),
    "num_draft_tokens": (0,),
    "use_draft_logits": (False,),
}
_REFUSED = (
    TensorSpec("decoder_text_input", "TYPE_STRING"),
    TensorSpec("prompt_embedding_table", "TYPE_FP16", (-1, -1)),
    TensorSpec("prompt_table_extra_id", "TYPE_UINT64"),
    TensorSpec("prompt_vocab_size", "TYPE_INT32"),
    TensorSpec("embedding_bias_words", "TYPE_STRING", (-1,)),
    TensorSpec("embedding_bias_weights", "TYPE_FP32", (-1,)),
    TensorSpec("lora_task_id", "TYPE_UINT64"),
    TensorSpec("lora_weights", "TYPE_FP16", (-1, -1)),
    TensorSpec("lora_config", "TYPE_INT32", (-1, 3)),
    TensorSpec("guided_decoding_guide_type", "TYPE_STRING"),
    TensorSpec("guided_decoding_guide", "TYPE_STRING"),
)


class TensorRtLlmContract:
    name = "tensorrtllm"
    # Only a bound for the rows of one request; how many run at once is the engine's max_num_seqs.
    max_batch_size = 1024
    inputs = (
        TensorSpec("text_input", "TYPE_STRING", optional=False),
        TensorSpec("max_tokens", "TYPE_INT32", optional=False),
        TensorSpec("num_return_sequences", "TYPE_INT32"),
        TensorSpec("bad_words", "TYPE_STRING", (-1,)),
        TensorSpec("stop_words", "TYPE_STRING", (-1,)),
        TensorSpec("exclude_input_in_output", "TYPE_BOOL"),
        TensorSpec("end_id", "TYPE_INT32"),
        TensorSpec("pad_id", "TYPE_INT32"),
        TensorSpec("top_k", "TYPE_INT32"),
        TensorSpec("top_p", "TYPE_FP32"),
        TensorSpec("temperature", "TYPE_FP32"),
        TensorSpec("length_penalty", "TYPE_FP32"),
        TensorSpec("repetition_penalty", "TYPE_FP32"),
        TensorSpec("min_tokens", "TYPE_INT32"),
        TensorSpec("min_length", "TYPE_INT32"),
        TensorSpec("presence_penalty", "TYPE_FP32"),
        TensorSpec("frequency_penalty", "TYPE_FP32"),
        TensorSpec("seed", "TYPE_UINT64"),
        TensorSpec("stream", "TYPE_BOOL"),
        TensorSpec("return_log_probs", "TYPE_BOOL"),
        TensorSpec("return_num_input_tokens", "TYPE_BOOL"),
        TensorSpec("return_num_output_tokens", "TYPE_BOOL"),
        TensorSpec("beam_width", "TYPE_INT32"),
        TensorSpec("return_context_logits", "TYPE_BOOL"),
        TensorSpec("return_generation_logits", "TYPE_BOOL"),
        TensorSpec("return_perf_metrics", "TYPE_BOOL"),
        TensorSpec("num_draft_tokens", "TYPE_INT32"),
        TensorSpec("use_draft_logits", "TYPE_BOOL"),
        *_REFUSED,
    )
    outputs = (
        TensorSpec("text_output", "TYPE_STRING", (-1,)),
        TensorSpec("cum_log_probs", "TYPE_FP32", (-1,)),
        TensorSpec("output_log_probs", "TYPE_FP32", (-1, -1)),
        TensorSpec("batch_index", "TYPE_INT32"),
        TensorSpec("sequence_index", "TYPE_INT32"),
        TensorSpec("num_input_tokens", "TYPE_INT32"),
        TensorSpec("num_output_tokens", "TYPE_INT32"),
    )

    def parse(self, arrays: Arrays, parameters: Mapping[str, Any], timeout_us: int) -> list[ParsedRequest]:
        rest = without_ignored(parameters)
        options = take_options(rest, timeout_us)
        if rest:
            raise InvalidRequestError(
                f"request parameter {next(iter(rest))!r} is unknown: in this contract every setting is a tensor"
            )
        if "text_input" not in arrays:
            raise InvalidRequestError("text_input: missing")
        num_rows = len(arrays["text_input"])
        if num_rows == 0:
            raise InvalidRequestError("text_input: a batch of no rows has no answer")
        return [_parse_row(Fields(arrays, row), row, num_rows, options) for row in range(num_rows)]


@dataclass(frozen=True)
class TensorRtLlmFormat:
    """`prefix` stands before the text of an answer in one piece; an index is None where there is only one."""

    prefix: str
    batch_index: int | None
    has_sequence_index: bool
    asked: frozenset[str]

    def responses(self, output: RequestOutput) -> list[Response]:
        responses = []
        for sequence in output.sequences:
            response: Response = {"text_output": strings([self.prefix + sequence.text]).reshape(1, 1)}
            if "return_log_probs" in self.asked:
                response["cum_log_probs"] = np.array([[sequence.cumulative_logprob]], dtype=np.float32)
                chosen = [position[0].logprob for position in sequence.logprobs or ()]
                response["output_log_probs"] = np.array([[chosen]], dtype=np.float32)
            if self.batch_index is not None:
                response["batch_index"] = _int32(self.batch_index)
            if self.has_sequence_index:
                response["sequence_index"] = _int32(sequence.index)
            if "return_num_input_tokens" in self.asked:
                response["num_input_tokens"] = _int32(output.num_prompt_tokens)
            if "return_num_output_tokens" in self.asked:
                response["num_output_tokens"] = _int32(len(sequence.token_ids))
            responses.append(response)
        return responses


def _parse_row(fields: Fields, row: int, num_rows: int, options: Options) -> ParsedRequest:
    _refuse(fields)
    text, max_tokens = fields.text("text_input"), fields.integer("max_tokens")
    if text is None or max_tokens is None:
        raise InvalidRequestError("max_tokens: missing")
    stream = fields.flag("stream") or False
    sampling = _sampling(fields)
    returns = ("return_log_probs", "return_num_input_tokens", "return_num_output_tokens")
    return ParsedRequest(
        prompt=text,
        params=SamplingParams.from_dict(sampling),
        stream=stream,
        priority=options.priority,
        timeout_s=options.timeout_s,
        cache_salt=options.cache_salt,
        add_special_tokens=options.add_special_tokens,
        format=TensorRtLlmFormat(
            prefix="" if stream or fields.flag("exclude_input_in_output") else text,
            batch_index=row if num_rows > 1 else None,
            has_sequence_index=sampling.get("n", 1) > 1,
            asked=frozenset(name for name in returns if fields.flag(name)),
        ),
    )


def _refuse(fields: Fields) -> None:
    for spec in _REFUSED:
        if spec.name in fields:
            raise InvalidRequestError(f"{spec.name}: not supported by this backend")
    for name, harmless in _REFUSED_IF_SET.items():
        value = fields.integer(name)
        if value is not None and value not in harmless:
            raise InvalidRequestError(f"{name}: not supported by this backend (got {value})")


def _sampling(fields: Fields) -> dict[str, Any]:
    sampling: dict[str, Any] = {}
    for name, ours in _INTEGERS.items():
        value = fields.integer(name)
        if value is None:
            continue
        if ours in sampling and sampling[ours] != value:
            raise InvalidRequestError(f"{name}: {value} contradicts {ours} {sampling[ours]}")
        sampling[ours] = value
    for name in _NUMBERS:
        number = fields.number(name)
        if number is not None:
            sampling[name] = number
    num_sequences = fields.integer("num_return_sequences")
    if num_sequences is not None:
        sampling["n"] = num_sequences
    for name, ours in (("stop_words", "stop"), ("bad_words", "bad_words")):
        words = [word for word in fields.texts(name) or () if word]
        if words:
            sampling[ours] = words
    end_id = fields.integer("end_id")
    if end_id is not None:
        sampling["ignore_eos"] = True
        if end_id != -1:
            sampling["stop_token_ids"] = [end_id]
    if fields.flag("return_log_probs"):
        sampling["logprobs"] = 0
    return {**sampling, **_choice(fields.integer("top_k"), fields.number("top_p"))}


def _choice(top_k: int | None, top_p: float | None) -> dict[str, Any]:
    """TensorRT-LLM reads 0 as "not given" for both, and is greedy when neither is given."""
    if not top_k and not top_p:
        return {"temperature": 0.0}
    choice: dict[str, Any] = {"top_k": top_k or 0}
    if top_p:
        choice["top_p"] = top_p
    return choice


def _int32(value: int) -> Any:
    return np.array([[value]], dtype=np.int32)

"""Requests as messages, and pieces put together; the answers of real models are in test_generate.py."""

import json
from typing import Any

import pytest

from pilot_client.errors import BadRequestError, ModelNotReadyError
from pilot_client.generate_tensors import Piece, dialect_of, join

VLLM_INPUTS = {"text_input", "stream", "sampling_parameters", "exclude_input_in_output", "return_finish_reason"}
OURS = VLLM_INPUTS | {"input_ids", "return_num_cached_tokens", "return_logprobs"}
TENSORRT_LLM_INPUTS = {"text_input", "max_tokens", "stream"}


def sent(inputs: set[str], prompt: Any = "Hi", **params: Any) -> dict[str, tuple[str, list[int], list[Any]]]:
    request = dialect_of("m", inputs).request("m", prompt, params, is_stream=True)
    tensors = {}
    for tensor in request.inputs:
        ((_, values),) = tensor.contents.ListFields()
        tensors[tensor.name] = (tensor.datatype, list(tensor.shape), list(values))
    return tensors


def test_vllm_gets_its_sampling_as_one_json_text() -> None:
    tensors = sent(VLLM_INPUTS, max_tokens=3, stop=["."])
    assert tensors["text_input"] == ("BYTES", [1], [b"Hi"])
    assert json.loads(tensors["sampling_parameters"][2][0]) == {"max_tokens": 3, "stop": ["."]}
    assert tensors["stream"] == ("BOOL", [1], [True])


def test_only_outputs_that_the_model_has_are_asked_for() -> None:
    assert "return_num_cached_tokens" not in sent(VLLM_INPUTS)
    assert {"return_num_cached_tokens", "return_finish_reason"} <= set(sent(OURS))
    assert "return_logprobs" in sent(OURS, logprobs=2)
    assert "return_logprobs" not in sent(OURS)


def test_token_ids_go_where_they_are_taken() -> None:
    assert sent(OURS, [5, 6])["input_ids"] == ("INT32", [2], [5, 6])
    for inputs in (VLLM_INPUTS, TENSORRT_LLM_INPUTS):
        with pytest.raises(BadRequestError, match="takes no token ids"):
            sent(inputs, [5, 6])


def test_tensorrt_llm_gets_a_tensor_per_parameter() -> None:
    tensors = sent(TENSORRT_LLM_INPUTS, n=2, temperature=0.5, stop=["a", "b"], seed=7)
    assert tensors["num_return_sequences"] == ("INT32", [1, 1], [2])
    assert tensors["temperature"] == ("FP32", [1, 1], [0.5])
    assert tensors["stop_words"] == ("BYTES", [1, 2], [b"a", b"b"])
    assert tensors["seed"] == ("UINT64", [1, 1], [7])
    assert tensors["max_tokens"] == ("INT32", [1, 1], [16])


@pytest.mark.parametrize(
    ("inputs", "params", "message"),
    [
        (TENSORRT_LLM_INPUTS, {"min_p": 0.1}, "no place for parameter 'min_p'"),
        (TENSORRT_LLM_INPUTS, {"top_k": "many"}, "parameter top_k is 'many'"),
        (VLLM_INPUTS, {"temperature": float("nan")}, "sampling parameters cannot be sent"),
        (VLLM_INPUTS, {"temperature": object()}, "sampling parameters cannot be sent"),
    ],
)
def test_what_cannot_be_sent_is_refused_here(inputs: set[str], params: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        sent(inputs, **params)


@pytest.mark.parametrize("inputs", [VLLM_INPUTS, TENSORRT_LLM_INPUTS])
def test_a_prompt_with_a_byte_that_is_no_text_is_refused_here(inputs: set[str]) -> None:
    with pytest.raises(BadRequestError, match="prompt is no Unicode text: surrogates not allowed at character 2"):
        sent(inputs, "Hi\udcff")


def test_a_model_that_is_no_language_model_is_named() -> None:
    with pytest.raises(ModelNotReadyError, match="model 'm' takes attention_mask, input_ids: not the tensors"):
        dialect_of("m", {"input_ids", "attention_mask"})


def test_joined_pieces_hold_all_that_was_told() -> None:
    pieces = [
        Piece(("a", "x"), (None, "stop"), 3, (1, 2), 0, (({"1": {}},), ())),
        Piece(("b", ""), (None, None), 3, (1, 0), 0, (({"2": {}},), ())),
        Piece(("", ""), ("length", None), 3, (0, 0), 2, ((), ())),
    ]
    assert join(pieces) == Piece(("ab", "x"), ("length", "stop"), 3, (2, 2), 2, (({"1": {}}, {"2": {}}), ()))


def test_a_count_that_no_piece_told_is_none() -> None:
    joined = join([Piece(("a",), (None,), None, None), Piece(("b",), (None,), None, None)])
    assert (joined.num_output_tokens, joined.num_input_tokens, joined.logprobs) == (None, None, None)

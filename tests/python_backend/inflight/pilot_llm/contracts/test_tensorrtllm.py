"""Contract B as arrays in, arrays out: what TensorRT-LLM's clients send and expect."""

from typing import Any

import numpy as np
import pytest

from pilot_llm.contracts.contract import ParsedRequest
from pilot_llm.contracts.tensorrtllm import TensorRtLlmContract
from pilot_llm.errors import InvalidRequestError
from pilot_llm.request import LogprobEntry, RequestOutput, SequenceDelta


def rows(*values: list[str]) -> Any:
    return np.array([[item.encode() for item in row] for row in values], dtype=object)


def column(dtype: type[Any], *values: float) -> Any:
    return np.array([[value] for value in values], dtype=dtype)


def parse_all(parameters: dict[str, Any] | None = None, **arrays: Any) -> list[ParsedRequest]:
    defaults = {"text_input": rows(["Once"]), "max_tokens": column(np.int32, 9)}
    return TensorRtLlmContract().parse({**defaults, **arrays}, parameters or {}, 0)


def parse(**arrays: Any) -> ParsedRequest:
    (parsed,) = parse_all(**arrays)
    return parsed


def output(*indices: int) -> RequestOutput:
    position = (LogprobEntry(7, -0.25, 1, "x"),)
    deltas = [SequenceDelta(index, f" {index}", (7, 7), (position, position), -0.5, None, None) for index in indices]
    return RequestOutput("r", tuple(deltas), num_prompt_tokens=5, num_cached_tokens=0, finished=False)


def test_sampling_tensors_become_sampling_parameters() -> None:
    params = parse(
        temperature=column(np.float32, 0.7),
        top_k=column(np.int32, 40),
        top_p=column(np.float32, 0.9),
        repetition_penalty=column(np.float32, 1.1),
        presence_penalty=column(np.float32, 0.1),
        frequency_penalty=column(np.float32, 0.2),
        seed=column(np.uint64, 2**64 - 1),
        min_tokens=column(np.int32, 3),
    ).params
    assert (params.temperature, params.top_k, params.top_p) == (0.7, 40, 0.9)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.1, 0.1, 0.2)
    assert (params.seed, params.min_tokens, params.max_tokens) == (2**64 - 1, 3, 9)


def test_min_length_is_genai_perfs_name_for_min_tokens() -> None:
    assert parse(min_length=column(np.int32, 9)).params.min_tokens == 9
    with pytest.raises(InvalidRequestError, match="min_length: 5 contradicts min_tokens 3"):
        parse(min_tokens=column(np.int32, 3), min_length=column(np.int32, 5))


@pytest.mark.parametrize("choice", [{}, {"top_k": column(np.int32, 0)}, {"top_p": column(np.float32, 0.0)}])
def test_neither_top_k_nor_top_p_is_greedy_whatever_the_temperature(choice: dict[str, Any]) -> None:
    assert parse(**choice, temperature=column(np.float32, 1.0)).params.is_greedy


def test_top_p_alone_draws_from_all_tokens() -> None:
    params = parse(top_p=column(np.float32, 0.5)).params
    assert (params.top_k, params.top_p, params.is_greedy) == (0, 0.5, False)


def test_empty_words_are_padding() -> None:
    params = parse(stop_words=rows(["", "."]), bad_words=rows([""])).params
    assert (params.stop, params.bad_words) == ((".",), ())


def test_end_id_replaces_the_models_end_tokens() -> None:
    params = parse(end_id=column(np.int32, 5)).params
    assert (params.stop_token_ids, params.ignore_eos) == ((5,), True)
    params = parse(end_id=column(np.int32, -1)).params
    assert (params.stop_token_ids, params.ignore_eos) == ((), True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("beam_width", column(np.int32, 4)),
        ("return_context_logits", column(np.bool_, True)),
        ("return_generation_logits", column(np.bool_, True)),
        ("return_perf_metrics", column(np.bool_, True)),
        ("num_draft_tokens", column(np.int32, 3)),
        ("lora_task_id", column(np.uint64, 1)),
        ("guided_decoding_guide", rows(["{}"])),
        ("prompt_embedding_table", np.zeros((1, 2, 2), np.float16)),
        ("embedding_bias_words", rows(["a"])),
    ],
)
def test_what_the_engine_cannot_do_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name}: not supported"):
        parse(**{name: value})


def test_number_that_is_none_is_refused_even_where_nothing_is_drawn() -> None:
    with pytest.raises(InvalidRequestError, match="temperature: a finite number expected, not nan"):
        parse(temperature=column(np.float32, np.nan))


def test_values_that_ask_for_nothing_are_accepted() -> None:
    assert parse(
        beam_width=column(np.int32, 1),
        return_context_logits=column(np.bool_, False),
        pad_id=column(np.int32, 2),
        length_penalty=column(np.float32, 1.0),
    )


def test_an_unknown_request_parameter_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="'temperature' is unknown"):
        parse_all({"temperature": 0.5, "model": "m", "triton_x": 1})


def test_each_row_is_a_request_of_its_own() -> None:
    first, second = parse_all(
        text_input=rows(["Once"], ["Twice"]), max_tokens=column(np.int32, 9, 4), stream=column(np.bool_, True, False)
    )
    assert (first.prompt, first.params.max_tokens, first.stream) == ("Once", 9, True)
    assert (second.prompt, second.params.max_tokens, second.stream) == ("Twice", 4, False)
    (response,) = second.format.responses(output(0))
    assert response["text_output"].tolist() == [[b"Twice 0"]]
    assert response["batch_index"].tolist() == [[1]]


def test_a_row_that_a_tensor_lacks_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens: 1 rows for a batch of at least 2"):
        parse_all(text_input=rows(["Once"], ["Twice"]))


def test_one_bad_row_refuses_the_request() -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens must be at least 1"):
        parse_all(text_input=rows(["Once"], ["Twice"]), max_tokens=column(np.int32, 9, 0))


def test_each_sequence_answers_in_a_response_of_its_own() -> None:
    parsed = parse(num_return_sequences=column(np.int32, 2), top_k=column(np.int32, 5), stream=column(np.bool_, True))
    first, second = parsed.format.responses(output(0, 1))
    assert (first["sequence_index"].tolist(), second["sequence_index"].tolist()) == ([[0]], [[1]])
    assert second["text_output"].tolist() == [[b" 1"]]


def test_indices_are_left_out_where_there_is_only_one() -> None:
    (response,) = parse().format.responses(output(0))
    assert set(response) == {"text_output"}


def test_types_and_shapes_are_those_that_config_pbtxt_promises() -> None:
    asked = {
        name: column(np.bool_, True, True)
        for name in ("return_log_probs", "return_num_input_tokens", "return_num_output_tokens")
    }
    parsed, _ = parse_all(
        text_input=rows(["a"], ["b"]),
        max_tokens=column(np.int32, 1, 1),
        num_return_sequences=column(np.int32, 2, 2),
        top_k=column(np.int32, 2, 2),
        **asked,
    )
    (response,) = parsed.format.responses(output(1))
    expected = {"TYPE_STRING": np.object_, "TYPE_FP32": np.float32, "TYPE_INT32": np.int32}
    assert set(response) == {spec.name for spec in TensorRtLlmContract.outputs}
    for spec in TensorRtLlmContract.outputs:
        array = response[spec.name]
        assert array.dtype == expected[spec.data_type], spec.name
        assert array.ndim == 1 + len(spec.dims), spec.name
        assert array.shape[0] == 1, spec.name
    assert response["output_log_probs"].tolist() == [[[-0.25, -0.25]]]


def test_a_batch_of_no_rows_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="text_input: a batch of no rows has no answer"):
        parse_all(text_input=np.empty((0, 1), np.object_), max_tokens=np.empty((0, 1), np.int32))

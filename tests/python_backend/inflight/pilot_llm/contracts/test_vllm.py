"""Contract A as arrays in, arrays out: what vllm_backend's clients send and expect."""

import json
from typing import Any

import numpy as np
import pytest

from pilot_llm.contracts.contract import ParsedRequest
from pilot_llm.contracts.vllm import VllmContract
from pilot_llm.errors import ErrorCode, InvalidRequestError
from pilot_llm.request import LogprobEntry, RequestOutput, SequenceDelta


def text(*values: str | bytes) -> Any:
    return np.array([value if isinstance(value, bytes) else value.encode() for value in values], dtype=object)


def flag(value: bool) -> Any:
    return np.array([value])


def parse(parameters: dict[str, Any] | None = None, timeout_us: int = 0, **arrays: Any) -> ParsedRequest:
    (parsed,) = VllmContract().parse({"text_input": text("Once"), **arrays}, parameters or {}, timeout_us)
    return parsed


def sampling(**values: Any) -> dict[str, Any]:
    return {"sampling_parameters": text(json.dumps(values))}


def delta(index: int = 0, new_text: str = " upon", **changes: Any) -> SequenceDelta:
    fields: dict[str, Any] = {"token_ids": (7, 8), "logprobs": None, "cumulative_logprob": -1.5}
    return SequenceDelta(index, new_text, **{**fields, "finish_reason": None, "stop_reason": None, **changes})


def output(*deltas: SequenceDelta, finished: bool = False, **changes: Any) -> RequestOutput:
    return RequestOutput("r", deltas, num_prompt_tokens=5, num_cached_tokens=4, finished=finished, **changes)


def texts_of(array: Any) -> list[str]:
    return [value.decode() for value in array]


def test_numbers_that_arrive_as_strings_are_numbers() -> None:
    params = parse(**sampling(max_tokens="100", min_tokens="100", temperature="0.5")).params
    assert (params.max_tokens, params.min_tokens, params.temperature) == (100, 100, 0.5)


def test_request_parameters_serve_where_sampling_parameters_are_missing() -> None:
    assert parse({"max_tokens": 32, "top_k": 5}).params.max_tokens == 32


def test_sampling_parameters_win_over_request_parameters() -> None:
    assert parse({"max_tokens": 32}, **sampling(max_tokens=3)).params.max_tokens == 3


def test_parameters_of_clients_and_front_ends_are_ignored() -> None:
    assert parse({"id": "7", "model": "m", "triton_enable_empty_final_response": True, "binary_data_output": True})


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"sampling_parameters": text('{"max_tokens": ')}, "sampling_parameters: not JSON"),
        ({"sampling_parameters": text("[1]")}, "a JSON object expected"),
        ({"sampling_parameters": text("[" * 100_000)}, "sampling_parameters: not JSON"),
        ({"sampling_parameters": text(" " * (5 << 20) + "{}")}, "sampling_parameters: at most 4194304 characters"),
        ({"sampling_parameters": text('{"temperature": NaN}')}, "temperature must be finite"),
        ({"sampling_parameters": text(b"\xff{}")}, "sampling_parameters: not UTF-8"),
        ({"text_input": text(b"a\xff")}, "text_input: not UTF-8"),
        (sampling(temprature=1), "did you mean 'temperature'"),
        (sampling(lora_name="x"), "lora_name"),
        (sampling(priority="high"), "priority: an integer expected"),
        (sampling(priority=2**63), "priority: an integer of 64 bits expected"),
        (sampling(timeout=-1), "timeout: microseconds"),
        (sampling(timeout=10**400), "timeout: an integer of 64 bits expected"),
        (sampling(cache_salt=7), "cache_salt: text expected"),
        ({"image": text("aGk=")}, "image: this backend serves text"),
        ({"embedding_request": text("{}")}, "embedding_request: this backend serves text"),
        ({"input_ids": np.array([1, 2], np.int32)}, "text_input or as input_ids, not both"),
        (
            {"stream": flag(True), "exclude_input_in_output": flag(False)},
            "When streaming, `exclude_input_in_output` = False is not allowed.",
        ),
    ],
)
def test_what_is_wrong_is_refused_by_name(arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse(**arrays)


def test_an_unknown_request_parameter_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="'colour'"):
        parse({"colour": "red"})


def test_options_come_from_either_place() -> None:
    beside = parse({"priority": "3", "cache_salt": "a", "timeout": 2_000_000}, **sampling(max_tokens=3))
    inside = parse(**sampling(max_tokens=3, priority=3, cache_salt="a", timeout=2_000_000))
    for parsed in (beside, inside):
        assert (parsed.priority, parsed.cache_salt, parsed.timeout_s) == (3, "a", 2.0)


def test_tritons_own_timeout_holds_and_zero_is_none() -> None:
    assert parse(timeout_us=1_500_000).timeout_s == 1.5
    assert parse(timeout_us=0).timeout_s is None


def test_stream_as_request_parameter() -> None:
    assert parse({"stream": True}).stream
    with pytest.raises(InvalidRequestError, match="stream: true or false expected"):
        parse({"stream": "yes"})


def test_token_ids_instead_of_text() -> None:
    parsed = parse(text_input=text(""), input_ids=np.array([3, 4], np.int32))
    assert list(parsed.prompt) == [3, 4]
    assert texts_of(parsed.format.responses(output(delta(), finished=True))[0]["text_output"]) == [" upon"]


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({}, "Once upon"),
        ({"exclude_input_in_output": flag(False)}, "Once upon"),
        ({"exclude_input_in_output": flag(True)}, " upon"),
        ({"stream": flag(True)}, " upon"),
        ({"stream": flag(True), "exclude_input_in_output": flag(True)}, " upon"),
    ],
)
def test_the_prompt_stands_before_an_answer_in_one_piece(arrays: dict[str, Any], expected: str) -> None:
    (response,) = parse(**arrays).format.responses(output(delta(finish_reason="stop"), finished=True))
    assert texts_of(response["text_output"]) == [expected]


def test_outputs_come_only_when_asked() -> None:
    assert set(parse().format.responses(output(delta()))[0]) == {"text_output"}
    asked = {name: flag(True) for name in ("return_finish_reason", "return_num_output_tokens")}
    (response,) = parse(**asked, return_logprobs=flag(False)).format.responses(output(delta()))
    assert set(response) == {"text_output", "finish_reason", "num_output_tokens"}


def test_types_and_shapes_are_those_that_config_pbtxt_promises() -> None:
    asked = {spec.name: flag(True) for spec in VllmContract.inputs if spec.name.startswith("return_")}
    (response,) = parse(**asked).format.responses(output(delta()))
    expected = {"TYPE_STRING": np.object_, "TYPE_FP32": np.float32, "TYPE_UINT32": np.uint32}
    assert {spec.name for spec in VllmContract.outputs} == set(response)
    for spec in VllmContract.outputs:
        assert response[spec.name].dtype == expected[spec.data_type], spec.name
        assert response[spec.name].shape == (1,), spec.name


def test_an_unfinished_chunk_says_none_in_letters() -> None:
    (response,) = parse(return_finish_reason=flag(True)).format.responses(output(delta()))
    assert texts_of(response["finish_reason"]) == ["None"]


def test_logprobs_are_json_of_the_new_tokens_with_the_chosen_one_first() -> None:
    positions = ((LogprobEntry(7, -2.0, 3, " up"), LogprobEntry(9, -0.1, 1, "!"), LogprobEntry(7, -2.0, 3, " up")),)
    asked = {"return_logprobs": flag(True), "return_prompt_logprobs": flag(True)}
    (response,) = parse(**asked).format.responses(
        output(delta(logprobs=positions), prompt_logprobs=(None, positions[0]))
    )
    seven = {"logprob": -2.0, "rank": 3, "decoded_token": " up"}
    (told,) = json.loads(response["logprobs"][0])
    assert list(told.items()) == [("7", seven), ("9", {"logprob": -0.1, "rank": 1, "decoded_token": "!"})]
    assert json.loads(response["prompt_logprobs"][0]) == [None, told]
    (response,) = parse(**asked).format.responses(output(delta()))
    assert texts_of(response["logprobs"]) == ["null"]


def test_every_response_has_an_entry_for_each_of_n_sequences() -> None:
    asked = {name: flag(True) for name in ("stream", "return_finish_reason", "return_num_output_tokens")}
    response_format = parse(**asked, **sampling(n=3)).format
    first = response_format.responses(output(delta(1, "b", finish_reason="stop")))[0]
    assert texts_of(first["text_output"]) == ["", "b", ""]
    assert texts_of(first["finish_reason"]) == ["None", "stop", "None"]
    second = response_format.responses(output(delta(2, "c")))[0]
    assert texts_of(second["text_output"]) == ["", "", "c"]
    assert texts_of(second["finish_reason"]) == ["None", "stop", "None"]
    assert second["num_output_tokens"].tolist() == [0, 0, 2]


def test_a_text_keeps_its_nul_bytes() -> None:
    (response,) = parse(stream=flag(True)).format.responses(output(delta(new_text="a\0")))
    assert response["text_output"][0] == b"a\0"


def test_the_codes_of_errors_are_names_of_triton() -> None:
    assert {code.value for code in ErrorCode} <= {
        "UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED",
    }  # fmt: skip

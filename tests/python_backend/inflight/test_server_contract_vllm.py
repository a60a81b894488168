"""Contract A on the wire: what Triton's vllm_backend clients send, and what they get."""

import json
import threading
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from pilot_server.running import RunningServer
from pilot_testing.llm_clients import bytes_tensor, generate, generate_stream, grpc_inputs, grpc_stream, post

pytestmark = pytest.mark.triton

YES, NO = np.array([True]), np.array([False])
GREEDY = {"temperature": 0, "max_tokens": 12}


def tensors(prompt: str = "Once upon", stream: bool = True, **more: Any) -> dict[str, Any]:
    """`more`: tensors by name, or sampling parameters."""
    named = {name: value for name, value in more.items() if isinstance(value, np.ndarray)}
    sampling = {**GREEDY, **{name: value for name, value in more.items() if name not in named}}
    return {
        "text_input": bytes_tensor(prompt),
        "stream": np.array([stream]),
        "sampling_parameters": bytes_tensor(json.dumps(sampling)),
        **named,
    }


def ask(server: RunningServer, *, parameters: dict[str, Any] | None = None, **sent: Any) -> Any:
    return grpc_stream(server.grpc_url, "tiny", tensors(**sent), parameters=parameters)


@pytest.fixture(scope="module")
def oracle(tiny_server: RunningServer) -> str:
    """The greedy answer to "Once upon", alone."""
    return str(ask(tiny_server).text)


def test_one_line_of_config_becomes_the_whole_contract(tiny_server: RunningServer) -> None:
    with tritonclient.grpc.InferenceServerClient(tiny_server.grpc_url) as client:
        config = client.get_model_config("tiny", as_json=True)["config"]
    assert config.get("max_batch_size", 0) == 0
    assert config["model_transaction_policy"] == {"decoupled": True}
    inputs = {tensor["name"]: tensor for tensor in config["input"]}
    assert inputs["text_input"]["dims"] == ["1"]
    assert not inputs["text_input"].get("optional")
    assert all(tensor["optional"] for name, tensor in inputs.items() if name != "text_input")


def test_a_stream_ends_with_one_final_flag_on_its_last_piece(tiny_server: RunningServer) -> None:
    answer = ask(tiny_server, return_finish_reason=YES, return_num_output_tokens=YES, return_num_input_tokens=YES)
    assert answer.errors == []
    assert answer.is_final == [False] * (len(answer.responses) - 1) + [True]
    assert len(answer.responses) > 1
    reasons = [response["finish_reason"][0] for response in answer.responses]
    assert reasons == [b"None"] * (len(reasons) - 1) + [b"length"]
    assert sum(int(response["num_output_tokens"][0]) for response in answer.responses) == GREEDY["max_tokens"]
    assert {int(response["num_input_tokens"][0]) for response in answer.responses} == {
        int(answer.responses[0]["num_input_tokens"][0])
    }


def test_no_piece_before_the_last_is_empty(tiny_server: RunningServer) -> None:
    for prompt in ("Once upon", "Ein Stück Öl", "日本語", "🙂🙂"):
        answer = ask(tiny_server, prompt=prompt, max_tokens=40)
        assert all(answer.texts()[:-1]), answer.texts()


def test_an_answer_in_one_piece_is_the_prompt_and_the_streamed_text(tiny_server: RunningServer, oracle: str) -> None:
    whole = ask(tiny_server, stream=False)
    assert whole.is_final == [True]
    assert whole.text == "Once upon" + oracle
    assert ask(tiny_server, stream=False, exclude_input_in_output=YES).text == oracle


def test_stream_with_the_prompt_in_the_output_is_refused_in_vllm_backends_words(tiny_server: RunningServer) -> None:
    (error,) = ask(tiny_server, exclude_input_in_output=NO).errors
    assert "When streaming, `exclude_input_in_output` = False is not allowed." in error


def test_only_outputs_that_were_asked_for_come(tiny_server: RunningServer) -> None:
    assert {name for response in ask(tiny_server).responses for name in response} == {"text_output"}


def test_cached_tokens_are_whole_blocks_of_the_prompt_under_the_same_salt(tiny_server: RunningServer) -> None:
    def num_cached(salt: str) -> int:
        sent = {"stream": False, "return_num_cached_tokens": YES, "return_num_input_tokens": YES}
        (response,) = ask(tiny_server, prompt="Why is the sky? " * 20, cache_salt=salt, **sent).responses
        assert response["num_input_tokens"][0] > 32
        return int(response["num_cached_tokens"][0])

    first, second, under_another_salt = (num_cached(salt) for salt in ("mine", "mine", "yours"))
    assert (first, under_another_salt) == (0, 0)
    assert second >= 32
    assert second % 16 == 0


def test_token_ids_logprobs_and_prompt_logprobs(tiny_server: RunningServer) -> None:
    flags = (
        "return_token_ids", "return_logprobs", "return_cumulative_logprob", "return_prompt_logprobs",
        "return_num_input_tokens",
    )  # fmt: skip
    asked: dict[str, Any] = dict.fromkeys(flags, YES)
    answer = ask(tiny_server, stream=False, prompt="light of the sun", logprobs=2, prompt_logprobs=1, **asked)
    (response,) = answer.responses
    token_ids = json.loads(response["token_ids"][0])
    positions = json.loads(response["logprobs"][0])
    assert len(token_ids) == len(positions) == GREEDY["max_tokens"]
    chosen = [position[str(token_id)] for token_id, position in zip(token_ids, positions, strict=True)]
    assert {entry["rank"] for entry in chosen} == {1}
    assert response["cumulative_logprob"][0] == pytest.approx(sum(entry["logprob"] for entry in chosen), rel=1e-4)
    prompt_positions = json.loads(response["prompt_logprobs"][0])
    assert len(prompt_positions) == response["num_input_tokens"][0]
    assert prompt_positions[0] is None


def test_logprobs_are_json_even_where_all_other_tokens_are_impossible(tiny_server: RunningServer) -> None:
    answer = ask(tiny_server, temperature=1.0, top_k=1, logprobs=5, return_logprobs=YES)
    for response in answer.responses:
        json.loads(response["logprobs"][0], parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_several_sequences_share_each_response(tiny_server: RunningServer) -> None:
    answer = ask(tiny_server, n=3, temperature=1.0, seed=5, return_finish_reason=YES)
    assert answer.is_final.count(True) == 1
    assert {response["text_output"].shape for response in answer.responses} == {(3,)}
    whole = ask(tiny_server, n=3, temperature=1.0, seed=5, stream=False, exclude_input_in_output=YES)
    streamed = ["".join(answer.texts(index)) for index in range(3)]
    assert [text.decode() for text in whole.responses[0]["text_output"]] == streamed
    assert len(set(streamed)) == 3
    assert set(answer.responses[-1]["finish_reason"]) == {b"length"}


def test_token_ids_as_prompt_are_the_same_over_every_transport(tiny_server: RunningServer) -> None:
    token_ids = [0, 40, 41, 42]
    sampling = json.dumps(GREEDY)
    sent = {"input_ids": np.array(token_ids, np.int32), "sampling_parameters": bytes_tensor(sampling)}
    over_grpc = grpc_stream(tiny_server.grpc_url, "tiny", sent).text
    status, over_http = generate(
        tiny_server.http_url, "tiny", {"input_ids": token_ids, "sampling_parameters": sampling}
    )
    assert status == 200
    assert over_http["text_output"] == over_grpc != ""
    (error,) = grpc_stream(tiny_server.grpc_url, "tiny", {**sent, "text_input": bytes_tensor("x")}).errors
    assert "not both" in error


def test_a_plain_infer_is_told_to_stream(tiny_server: RunningServer) -> None:
    with (
        tritonclient.grpc.InferenceServerClient(tiny_server.grpc_url) as client,
        pytest.raises(InferenceServerException, match="doesn't support models with decoupled"),
    ):
        client.infer("tiny", grpc_inputs(tensors()))
    body = {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}
    status, text = post(tiny_server.http_url, "/v2/models/tiny/infer", body)
    assert status == 501
    assert "decoupled" in text


class TestGenerate:
    def test_parameters_may_stand_anywhere(self, tiny_server: RunningServer, oracle: str) -> None:
        for body in (
            {"parameters": {**GREEDY, "stream": False}},
            {**GREEDY, "stream": False},
            {"sampling_parameters": json.dumps(GREEDY)},
            {"parameters": {"max_tokens": "12", "temperature": "0"}},
        ):
            status, answer = generate(tiny_server.http_url, "tiny", {"text_input": "Once upon", **body})
            assert (status, answer.get("text_output")) == (200, "Once upon" + oracle), answer

    def test_events_are_the_pieces(self, tiny_server: RunningServer, oracle: str) -> None:
        body = {"text_input": "Once upon", "parameters": {**GREEDY, "stream": True}}
        status, events = generate_stream(tiny_server.http_url, "tiny", body)
        assert status == 200
        assert "".join(event["text_output"] for event in events) == oracle
        assert len(events) > 1
        assert all(event["text_output"] for event in events[:-1])

    def test_lists_go_through_the_json_text(self, tiny_server: RunningServer, oracle: str) -> None:
        sampling = json.dumps({**GREEDY, "stop": [oracle[3:5], "never"]})
        body = {"text_input": "Once upon", "sampling_parameters": sampling, "exclude_input_in_output": True}
        status, answer = generate(tiny_server.http_url, "tiny", body)
        assert (status, answer["text_output"]) == (200, oracle[: oracle.index(oracle[3:5])])

    def test_genai_perf(self, tiny_server: RunningServer, oracle: str) -> None:
        """Text as a list, numbers as strings, its own key `model`."""
        body = {
            "model": "tiny",
            "text_input": ["Once upon"],
            "stream": [True],
            "exclude_input_in_output": [True],
            "sampling_parameters": json.dumps({**GREEDY, "max_tokens": "12", "min_tokens": "12"}),
        }
        status, events = generate_stream(tiny_server.http_url, "tiny", body)
        assert status == 200, events
        assert "".join(event["text_output"] for event in events) == oracle

    def test_an_error_is_a_400_with_a_reason(self, tiny_server: RunningServer) -> None:
        body = {"text_input": "x", "parameters": {"temperature": 9}}
        status, answer = generate(tiny_server.http_url, "tiny", body)
        assert status == 400
        assert "temperature must be at most 2.0" in answer["error"]
        status, (answer,) = generate_stream(tiny_server.http_url, "tiny", body)
        assert status == 400
        assert "temperature" in answer["error"]


def test_openai_frontend(tiny_server: RunningServer, oracle: str) -> None:
    """One string per response, counts always asked for, defaults of OpenAI's API among the sampling parameters."""
    sampling = {
        "frequency_penalty": 0.0, "logit_bias": {}, "n": 1, "presence_penalty": 0.0, "seed": None, "stop": None,
        "temperature": 0.0, "top_p": 1.0, "max_tokens": 12,
    }  # fmt: skip
    sent = {
        "text_input": bytes_tensor("Once upon"),
        "exclude_input_in_output": YES,
        "return_logprobs": NO,
        "return_num_input_tokens": YES,
        "return_num_output_tokens": YES,
        "sampling_parameters": bytes_tensor(json.dumps({k: v for k, v in sampling.items() if v is not None})),
    }
    for stream in (YES, NO):
        answer = grpc_stream(tiny_server.grpc_url, "tiny", {**sent, "stream": stream})
        assert answer.text == oracle
        assert {response["text_output"].size for response in answer.responses} == {1}
        assert {response["num_input_tokens"].dtype for response in answer.responses} == {np.dtype(np.uint32)}
        assert sum(int(response["num_output_tokens"][0]) for response in answer.responses) == 12


BAD: list[tuple[dict[str, Any], str]] = [
    ({"sampling_parameters": bytes_tensor("{")}, "INVALID_ARG: sampling_parameters: not JSON"),
    ({"text_input": bytes_tensor(b"\xff")}, "INVALID_ARG: text_input: not UTF-8"),
    ({"prompt": "x" * 4000}, "INVALID_ARG"),
    ({"prompt": ""}, "the prompt is empty"),
    ({"max_tokens": 0}, "max_tokens must be at least 1"),
    ({"max_tokens": -1}, "max_tokens must be at least 1"),
    ({"top_k": 0.01}, "top_k must be a whole number"),
    ({"logit_bias": "AI"}, "logit_bias must map"),
    ({"logit_bias": {"99999": 1}}, "outside the vocabulary"),
    ({"stop": [""]}, "stop"),
    ({"lora_name": "x"}, "lora_name"),
    ({"guided_json": "{}"}, "unknown name 'guided_json'"),
    ({"image": bytes_tensor("aGk=")}, "image: this backend serves text"),
    ({"n": 1000, "temperature": 1}, "n is 1000"),
    ({"logprobs": 1000}, "max_logprobs"),
    ({"stop_token_ids": [99999]}, "outside the vocabulary"),
]


def test_bad_requests_are_refused_while_others_run_undisturbed(tiny_server: RunningServer) -> None:
    long = {"max_tokens": 300}
    expected = ask(tiny_server, **long).text
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(tiny_server, **long).text)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for sent, message in BAD:
        answer = ask(tiny_server, **sent)
        assert len(answer.errors) == 1, (sent, answer)
        assert message in answer.errors[0]
        assert answer.errors[0].startswith("INVALID_ARG: ")
    for thread in threads:
        thread.join()
    assert answers == [expected] * 4


@pytest.mark.parametrize("prompt", ["a\0b\0", "\0", "Ω" * 50, " \n\t "])
def test_a_strange_prompt_comes_back_byte_for_byte(tiny_server: RunningServer, prompt: str) -> None:
    assert ask(tiny_server, prompt=prompt, stream=False).text.startswith(prompt)


def test_a_prompt_of_ten_megabytes_is_refused_and_the_next_one_served(tiny_server: RunningServer, oracle: str) -> None:
    (error,) = ask(tiny_server, prompt="Once upon a time " * 600_000).errors
    assert error.startswith("INVALID_ARG: ")
    assert ask(tiny_server).text == oracle


@pytest.mark.parametrize("max_tokens", [None, 2**31])
def test_more_tokens_than_the_context_holds_end_at_its_end(tiny_server: RunningServer, max_tokens: int | None) -> None:
    answer = ask(tiny_server, max_tokens=max_tokens, stream=False, return_finish_reason=YES, return_token_ids=YES)
    assert answer.responses[0]["finish_reason"].tolist() == [b"length"]
    assert 500 < len(json.loads(answer.responses[0]["token_ids"][0])) < 512

"""Contract B on the wire: what TensorRT-LLM's clients send, and what they get."""

import queue
import time
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc

from pilot_client.generate import generate as generate_text
from pilot_client.generate import stream as stream_text
from pilot_server.running import RunningServer
from pilot_testing.llm_clients import generate, generate_stream, grpc_inputs, grpc_stream, model_metrics, wait_for

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def server(start_tiny: Any) -> RunningServer:
    # Eight seats, of which four run.
    started: RunningServer = start_tiny(
        max_num_seqs=4, max_num_batched_tokens=64, inflight={"contract": "tensorrtllm", "max_queue_size": 4}
    )
    return started


def rows(*values: str) -> Any:
    return np.array([[value.encode()] for value in values], dtype=object)


def column(dtype: type[Any], *values: float) -> Any:
    return np.array([[value] for value in values], dtype=dtype)


def ask(server: RunningServer, **tensors: Any) -> Any:
    """Greedy, 12 tokens of "Once upon", unless `tensors` say otherwise."""
    defaults = {"text_input": rows("Once upon"), "max_tokens": column(np.int32, 12)}
    return grpc_stream(server.grpc_url, "tiny", {**defaults, **tensors})


STREAM = {"stream": column(np.bool_, True)}
EXCLUDE = {"exclude_input_in_output": column(np.bool_, True)}


@pytest.fixture(scope="module")
def oracle(server: RunningServer) -> str:
    return str(ask(server, **STREAM).text)


def test_one_line_of_config_becomes_the_whole_contract(server: RunningServer) -> None:
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        config = client.get_model_config("tiny", as_json=True)["config"]
    assert config["max_batch_size"] > 0
    assert config["model_transaction_policy"] == {"decoupled": True}
    required = {tensor["name"] for tensor in config["input"] if not tensor.get("optional")}
    assert required == {"text_input", "max_tokens"}


def test_a_stream_ends_with_one_final_flag_on_its_last_piece(server: RunningServer, oracle: str) -> None:
    counts = {name: column(np.bool_, True) for name in ("return_num_input_tokens", "return_num_output_tokens")}
    answer = ask(server, **STREAM, **counts)
    assert answer.is_final == [False] * (len(answer.responses) - 1) + [True]
    assert len(answer.responses) > 1
    assert all(answer.texts()[:-1])
    assert {response["text_output"].shape for response in answer.responses} == {(1, 1)}
    assert sum(int(response["num_output_tokens"][0, 0]) for response in answer.responses) == 12


def test_an_answer_in_one_piece_is_the_prompt_and_the_streamed_text(server: RunningServer, oracle: str) -> None:
    assert ask(server).text == "Once upon" + oracle
    assert ask(server, **EXCLUDE).text == oracle


def test_stop_words_of_every_shape_match(server: RunningServer, oracle: str) -> None:
    stop = oracle[3:5]
    expected = oracle[: oracle.index(stop)]
    for words in ([stop], ["", stop], ["never", stop]):
        sent = np.array([[word.encode() for word in words]], dtype=object)
        assert ask(server, **EXCLUDE, stop_words=sent).text == expected


def test_each_row_of_a_batch_is_answered_and_marked(server: RunningServer) -> None:
    prompts = ("Once upon", "light of the sun", "lazy dog")
    alone = [ask(server, **EXCLUDE, text_input=rows(prompt)).text for prompt in prompts]
    batch = {
        "text_input": rows(*prompts),
        "max_tokens": column(np.int32, 12, 12, 12),
        "exclude_input_in_output": column(np.bool_, True, True, True),
    }
    for stream in (False, True):
        answer = ask(server, **batch, stream=column(np.bool_, stream, stream, stream))
        assert answer.errors == []
        assert answer.is_final.count(True) == 1
        texts = [""] * 3
        for response in answer.responses:
            texts[response["batch_index"][0, 0]] += response["text_output"][0, 0].decode()
        assert texts == alone


def test_a_row_that_is_refused_later_does_not_silence_the_others(server: RunningServer) -> None:
    answer = ask(server, text_input=rows("Once upon", "x" * 4000), max_tokens=column(np.int32, 12, 12))
    assert len(answer.errors) == 1
    assert answer.errors[0].startswith("INVALID_ARG: ")


def test_sequences_come_one_by_one_and_marked(server: RunningServer) -> None:
    drawn = {
        "num_return_sequences": column(np.int32, 3),
        "top_k": column(np.int32, 50),
        "temperature": column(np.float32, 1.0),
        "seed": column(np.uint64, 7),
    }
    whole = ask(server, **EXCLUDE, **drawn)
    assert [int(response["sequence_index"][0, 0]) for response in whole.responses] == [0, 1, 2]
    assert whole.is_final == [False, False, True]
    streamed = ask(server, **STREAM, **drawn)
    assert streamed.is_final.count(True) == 1
    texts = [""] * 3
    for response in streamed.responses:
        texts[response["sequence_index"][0, 0]] += response["text_output"][0, 0].decode()
    assert texts == whole.texts()


def test_log_probs_have_an_entry_per_token(server: RunningServer) -> None:
    (response,) = ask(server, return_log_probs=column(np.bool_, True)).responses
    assert response["output_log_probs"].shape == (1, 1, 12)
    assert response["cum_log_probs"][0, 0] == pytest.approx(response["output_log_probs"].sum(), rel=1e-4)


def test_requests_with_and_without_optional_fields_run_side_by_side(server: RunningServer, oracle: str) -> None:
    """One step holds requests that set a field and requests that do not."""
    from concurrent.futures import ThreadPoolExecutor

    fields: list[dict[str, Any]] = [
        {},
        {"top_k": column(np.int32, 1)},
        {"repetition_penalty": column(np.float32, 1.0)},
        {"end_id": column(np.int32, -1)},
        {"seed": column(np.uint64, 3)},
        {"stop_words": rows("never")},
    ]
    with ThreadPoolExecutor(len(fields)) as threads:
        texts = list(threads.map(lambda more: ask(server, **EXCLUDE, **more).text, fields))
    assert texts == [oracle] * len(fields)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"beam_width": column(np.int32, 4)}, "beam_width: not supported"),
        ({"max_tokens": column(np.int32, 0)}, "max_tokens must be at least 1"),
        ({"lora_task_id": column(np.uint64, 1)}, "lora_task_id: not supported"),
        ({"end_id": column(np.int32, 99999)}, "outside the vocabulary"),
    ],
)
def test_what_is_wrong_is_refused_by_name(server: RunningServer, tensors: dict[str, Any], message: str) -> None:
    (error,) = ask(server, **tensors).errors
    assert error.startswith("INVALID_ARG: ")
    assert message in error


def test_generate_hides_the_batch_axis(server: RunningServer, oracle: str) -> None:
    body = {"text_input": "Once upon", "max_tokens": 12, "bad_words": "", "stop_words": ""}
    status, answer = generate(server.http_url, "tiny", body)
    assert (status, answer["text_output"]) == (200, "Once upon" + oracle)
    status, events = generate_stream(server.http_url, "tiny", {**body, "stream": True})
    assert (status, "".join(event["text_output"] for event in events)) == (200, oracle)


def test_genai_perf(server: RunningServer, oracle: str) -> None:
    answer = ask(server, **STREAM, **EXCLUDE, min_length=column(np.int32, 12))
    assert answer.text == oracle


def test_our_client_speaks_it_too(server: RunningServer, oracle: str) -> None:
    params = {"max_tokens": 12}
    assert generate_text(server.grpc_url, "tiny", "Once upon", params).text == oracle
    pieces = list(stream_text(server.grpc_url, "tiny", "Once upon", params))
    assert "".join(piece.text for piece in pieces) == oracle
    assert len(pieces) > 1


def counted(server: RunningServer, reason: str) -> float:
    return model_metrics(server.metrics_url, "tiny")[f"vllm:request_success_total{{finished_reason={reason}}}"]


def test_a_client_that_leaves_ends_all_rows_of_its_batch(server: RunningServer) -> None:
    before = counted(server, "abort")
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    batch = {
        "text_input": rows("Once", "upon", "a time"),
        "max_tokens": column(np.int32, 480, 480, 480),
        "end_id": column(np.int32, -1, -1, -1),
        "stream": column(np.bool_, True, True, True),
    }
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: arrived.put(result or error))
        client.async_stream_infer("tiny", grpc_inputs(batch))
        arrived.get(timeout=30)
        client.stop_stream(cancel_requests=True)
    wait_for(lambda: counted(server, "abort") == before + 3, 3, "each row is cancelled")
    assert ask(server, **EXCLUDE).is_final == [True]


def test_a_batch_that_the_queue_cannot_hold_is_refused_at_once_as_a_whole(server: RunningServer) -> None:
    batch = {
        "text_input": rows(*["Once upon"] * 16),
        "max_tokens": column(np.int32, *[400] * 16),
        "stream": column(np.bool_, *[True] * 16),
    }
    assert ask(server, **EXCLUDE).is_final == [True]
    time.sleep(1.1)  # the metrics show everything a second later
    finished, aborted = counted(server, "length"), counted(server, "abort")
    for _ in range(3):
        answer = ask(server, **batch)
        assert len(answer.errors) == 1
        assert answer.errors[0].startswith("UNAVAILABLE: the queue is full")
    # The rows that had found a place were not worked on to their end first.
    wait_for(lambda: counted(server, "abort") > aborted, 5, "they are cancelled")
    assert counted(server, "length") == finished
    assert ask(server, **EXCLUDE).is_final == [True]

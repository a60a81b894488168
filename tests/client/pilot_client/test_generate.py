"""Our client of language models: what it raises, and what it leaves behind. (Transports: tests of the backend.)"""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilot_client.errors import (
    BadRequestError,
    ModelNotReadyError,
    RequestTimeoutError,
    ServerUnreachableError,
)
from pilot_client.generate import generate, stream
from pilot_server.running import RunningServer
from pilot_testing.tiny_llm import make_repository

GREEDY = {"temperature": 0, "max_tokens": 12}

_NO_LANGUAGE_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "x", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "y", "data_type": "TYPE_INT32", "dims": [1]})
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    from pilot_server.embedded import start_embedded

    repository: Path = make_repository(tmp_path_factory.mktemp("repository"))
    (repository / "other" / "1").mkdir(parents=True)
    (repository / "other" / "config.pbtxt").write_text('backend: "python"\n')
    (repository / "other" / "1" / "model.py").write_text(_NO_LANGUAGE_MODEL)
    server = start_embedded(repository, log_file=repository / "server.log")
    yield server
    server.stop(drain_s=0.0)


@pytest.mark.triton
class TestOnAServer:
    def test_streamed_pieces_are_the_answer(self, server: RunningServer) -> None:
        whole = generate(server.grpc_url, "tiny", "Once upon", GREEDY)
        pieces = list(stream(server.grpc_url, "tiny", "Once upon", GREEDY))
        assert "".join(piece.text for piece in pieces) == whole.text
        assert sum(piece.num_output_tokens[0] for piece in pieces if piece.num_output_tokens) == 12
        assert [piece.finish_reasons for piece in pieces] == [(None,)] * (len(pieces) - 1) + [("length",)]
        assert (whole.num_output_tokens, whole.finish_reasons) == ((12,), ("length",))
        assert whole.num_input_tokens == pieces[0].num_input_tokens

    def test_several_sequences_and_logprobs(self, server: RunningServer) -> None:
        params = {"n": 2, "temperature": 1.0, "seed": 3, "max_tokens": 5, "logprobs": 1}
        answer = generate(server.grpc_url, "tiny", "Once upon", params)
        assert len(answer.texts) == 2
        assert answer.logprobs is not None
        assert [len(positions) for positions in answer.logprobs] == [5, 5]

    def test_a_refused_parameter_is_named(self, server: RunningServer) -> None:
        with pytest.raises(BadRequestError, match=r"^sampling parameters: temperature must be at most 2\.0"):
            generate(server.grpc_url, "tiny", "Once", {"temperature": 3})

    def test_a_model_that_is_not_there_or_no_language_model(self, server: RunningServer) -> None:
        with pytest.raises(ModelNotReadyError, match="unknown model: 'nope'"):
            generate(server.grpc_url, "nope", "Once")
        with pytest.raises(ModelNotReadyError, match="model 'other' takes x: not the tensors of a language model"):
            generate(server.grpc_url, "other", "Once")

    def test_answers_that_were_left_leave_no_thread(self, server: RunningServer) -> None:
        def leave() -> None:
            next(stream(server.grpc_url, "tiny", "Once", {"temperature": 0, "max_tokens": 300}))

        leave()
        before = threading.active_count()
        for _ in range(10):
            leave()
        deadline = time.monotonic() + 5
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threading.active_count() <= before


def test_nobody_at_the_address() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ServerUnreachableError, match=f"no Triton server at {url}"):
            generate(url, "tiny", "Once", timeout_s=5)


def test_a_server_that_never_answers_ends_in_an_error_on_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        started = time.monotonic()
        with pytest.raises((RequestTimeoutError, ServerUnreachableError)):
            generate(f"127.0.0.1:{silent.getsockname()[1]}", "tiny", "Once", timeout_s=0.5)
        assert time.monotonic() - started < 3

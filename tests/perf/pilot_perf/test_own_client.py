"""Our own load client against real models."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import triton_to_np_dtype

from pilot_perf.errors import AnalyzerError, FailedRequestsError
from pilot_perf.own_client import OwnLoad, measure, warm_up
from pilot_server.running import RunningServer
from pilot_testing.timed_model import write_timed_model

pytestmark = pytest.mark.triton

StartServer = Callable[..., RunningServer]
ROW, OF_ROW = {"x": np.zeros((1, 4), np.float32)}, {"x": "FP32"}
ECHO_CONFIG = """
backend: "python"
input { name: "text" data_type: TYPE_STRING dims: [ -1 ] }
input { name: "number" data_type: TYPE_BF16 dims: [ 2 ] }
output { name: "length" data_type: TYPE_INT32 dims: [ -1 ] }
instance_group { kind: KIND_CPU count: 1 }
"""
ECHO = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
            if list(texts) != [b"a", "\\u00e4".encode()]:
                raise pb_utils.TritonModelException(f"got {list(texts)}")
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("length", np.array([1, 2], np.int32))]))
        return answers
"""


def test_text_arrives_as_it_was_sent(tmp_path: Path, start_server: StartServer) -> None:
    (tmp_path / "models" / "echo" / "1").mkdir(parents=True)
    (tmp_path / "models" / "echo" / "config.pbtxt").write_text(ECHO_CONFIG)
    (tmp_path / "models" / "echo" / "1" / "model.py").write_text(ECHO)
    url, datatypes = start_server(tmp_path / "models").grpc_url, {"text": "BYTES", "number": "BF16"}
    number = np.array([1.0, 2.0], triton_to_np_dtype("BF16"))
    for texts in (np.array(["a", "ä"]), np.array([b"a", "ä".encode()], np.object_)):
        load = OwnLoad(url, "echo", datatypes, [{"text": texts, "number": number}], False, 2)
        assert measure(load, 100).error_rate == 0.0
        assert warm_up(load, 100) > 0
    wrong = replace(load, rows=[{"text": np.array(["b"]), "number": number}])
    with pytest.raises(FailedRequestsError, match=r"requests fail: .*got \[b'b'\]"):
        warm_up(wrong, 100)
    assert measure(wrong, 100).error_rate == 1.0


def test_a_warm_up_says_how_many_a_second_to_expect(tmp_path: Path, start_server: StartServer) -> None:
    """20 ms a request, one at a time: 50/s; a busy machine makes it less."""
    write_timed_model(tmp_path / "models", batch_ms=20.0, max_batch_size=1)
    load = OwnLoad(start_server(tmp_path / "models").grpc_url, "timed", OF_ROW, [ROW], False, 2)
    assert 5 < warm_up(load, 400) <= 52


def test_a_warm_up_waits_for_slow_answers_but_not_for_ever(
    tmp_path: Path, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_timed_model(tmp_path / "models", batch_ms=900.0, max_batch_size=1)
    load = OwnLoad(start_server(tmp_path / "models").grpc_url, "timed", OF_ROW, [ROW], False, 1)
    assert 0 < warm_up(load, 50) < 1.2
    monkeypatch.setattr("pilot_perf.own_client.WARM_UP_DRAIN_S", 0.2)
    with pytest.raises(AnalyzerError, match="no request of the warm-up was answered within"):
        warm_up(load, 50)


def test_a_model_of_sequences_gets_a_sequence_with_every_request(tmp_path: Path, start_server: StartServer) -> None:
    """Without one the server refuses it."""
    folder = write_timed_model(tmp_path / "models", batch_ms=1.0)
    with (folder / "config.pbtxt").open("a") as config:
        config.write("sequence_batching { direct { } }\n")
    load = OwnLoad(start_server(tmp_path / "models").grpc_url, "timed", OF_ROW, [ROW], False, 3)
    with pytest.raises(FailedRequestsError, match="non-zero or non-empty correlation ID"):
        warm_up(load, 100)
    assert warm_up(replace(load, is_sequence=True), 100) > 10
    assert measure(replace(load, is_sequence=True), 100).error_rate == 0.0

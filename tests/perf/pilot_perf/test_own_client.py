"""Our own load client against real models."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pilot_perf.errors import AnalyzerError, FailedRequestsError
from pilot_perf.own_client import OwnLoad, measure, warm_up
from pilot_server.running import RunningServer
from pilot_testing.timed_model import write_timed_model

pytestmark = pytest.mark.triton

StartServer = Callable[..., RunningServer]
ROW = {"x": np.zeros((1, 4), np.float32)}
ECHO_CONFIG = """
backend: "python"
input { name: "text" data_type: TYPE_STRING dims: [ -1 ] }
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
    load = OwnLoad(start_server(tmp_path / "models").grpc_url, "echo", [{"text": np.array(["a", "ä"])}], False, 2)
    assert measure(load, 100).error_rate == 0.0
    assert warm_up(load, 100) > 0
    wrong = OwnLoad(load.url, "echo", [{"text": np.array(["b"])}], False, 2)
    with pytest.raises(FailedRequestsError, match=r"requests fail: .*got \[b'b'\]"):
        warm_up(wrong, 100)
    assert measure(wrong, 100).error_rate == 1.0


def test_a_warm_up_says_how_many_a_second_to_expect(tmp_path: Path, start_server: StartServer) -> None:
    """20 ms a request, one at a time: 50/s; a busy machine makes it less."""
    write_timed_model(tmp_path / "models", batch_ms=20.0, max_batch_size=1)
    load = OwnLoad(start_server(tmp_path / "models").grpc_url, "timed", [ROW], False, 2)
    assert 5 < warm_up(load, 400) <= 52


def test_a_warm_up_waits_for_slow_answers_but_not_for_ever(
    tmp_path: Path, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_timed_model(tmp_path / "models", batch_ms=900.0, max_batch_size=1)
    load = OwnLoad(start_server(tmp_path / "models").grpc_url, "timed", [ROW], False, 1)
    assert 0 < warm_up(load, 50) < 1.2
    monkeypatch.setattr("pilot_perf.own_client.WARM_UP_DRAIN_S", 0.2)
    with pytest.raises(AnalyzerError, match="no request of the warm-up was answered within"):
        warm_up(load, 50)

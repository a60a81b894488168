"""Tiny models of Triton's Python backend, written where a test needs them."""

import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

_CONFIG = """\
backend: "python"
input [{{ name: "X" data_type: TYPE_FP32 dims: [-1] }}]
output [{{ name: "Y" data_type: TYPE_FP32 dims: [-1] }}]
parameters {{ key: "factor" value {{ string_value: "{factor}" }} }}
parameters {{ key: "delay_s" value {{ string_value: "{delay_s}" }} }}
instance_group [{{ kind: KIND_CPU count: 1 }}]
"""
_ENSEMBLE = """\
platform: "ensemble"
input [{ name: "X" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [-1] }]
ensemble_scheduling {
  step [
    {
      model_name: "scale" model_version: -1
      input_map { key: "X" value: "X" } output_map { key: "Y" value: "between" }
    },
    {
      model_name: "scale" model_version: -1
      input_map { key: "X" value: "between" } output_map { key: "Y" value: "Y" }
    }
  ]
}
"""
_MODEL = """\
import json
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.factor, self.delay_s = (float(parameters[name]["string_value"]) for name in ("factor", "delay_s"))

    def execute(self, requests):
        time.sleep(self.delay_s)
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()) for request in requests]

    def answer(self, x):
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * x.dtype.type(self.factor))])
"""


def write_scale_model(repository: Path, name: str = "scale", factor: float = 2, delay_s: float = 0) -> Path:
    """A model that answers Y = factor * X after `delay_s`. Returns its folder."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(_CONFIG.format(factor=factor, delay_s=delay_s))
    (folder / "1" / "model.py").write_text(_MODEL)
    return folder


def write_ensemble_of_two_steps(repository: Path) -> None:
    """The ensemble `twice`, which runs the model `scale` two times."""
    (repository / "twice" / "1").mkdir(parents=True)
    (repository / "twice" / "config.pbtxt").write_text(_ENSEMBLE)


def scaled(http_url: str, x: list[float], name: str = "scale") -> list[float]:
    """The model's answer to `x`."""
    tensor = {"name": "X", "datatype": "FP32", "shape": [len(x)], "data": x}
    answer: list[float] = post(http_url, f"/v2/models/{name}/infer", {"inputs": [tensor]})["outputs"][0]["data"]
    return answer


def post(http_url: str, path: str, body: dict[str, Any]) -> Any:
    """POST `body` as JSON; the answer, which must be a success."""
    connection = HTTPConnection(http_url, timeout=30)
    try:
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    assert response.status == 200, text
    return json.loads(text)

"""A tiny Python model with a known speed, for tests of what measures it."""

from pathlib import Path

CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: {max_batch_size}
input {{ name: "x" data_type: TYPE_FP32 dims: [ 4 ] }}
output {{ name: "y" data_type: TYPE_FP32 dims: [ 4 ] }}
instance_group {{ kind: KIND_CPU count: 1 }}
"""

CODE = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep({batch_ms} / 1000)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", self.x(request))]) for request in requests]

    def x(self, request):
        return pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
"""


def write_timed_model(
    repository: Path, name: str = "timed", *, batch_ms: float = 4.0, max_batch_size: int = 8, code: str = CODE
) -> Path:
    """A model that takes `batch_ms` for a batch of any size, one batch at a time, without dynamic batching."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG.format(name=name, max_batch_size=max_batch_size))
    (folder / "1" / "model.py").write_text(code.replace("{batch_ms}", str(batch_ms)))
    return folder

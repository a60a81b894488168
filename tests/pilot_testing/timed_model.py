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


def write_ensemble(repository: Path, name: str, members: tuple[str, ...]) -> Path:
    """An ensemble that passes its tensor through the timed models `members`, one after the other."""
    tensors = ["x", *(f"after_{member}" for member in members[:-1]), "y"]
    steps = "".join(
        f'step {{ model_name: "{member}" model_version: -1 '
        f'input_map {{ key: "x" value: "{source}" }} output_map {{ key: "y" value: "{sink}" }} }}\n'
        for member, source, sink in zip(members, tensors, tensors[1:], strict=False)
    )
    head = CONFIG.format(name=name, max_batch_size=1).replace('backend: "python"', 'platform: "ensemble"')
    head = "".join(line for line in head.splitlines(keepends=True) if "instance_group" not in line)
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(f"{head}ensemble_scheduling {{\n{steps}}}\n")
    return folder

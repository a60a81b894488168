"""The module itself as a file that a server loads without its Python code, and model folders around it:

    <build>/torch/
        package/<model>/config.pbtxt, 1/model.pt2        torch.export package, for the backend torch_pipeline
        torchscript/<model>/config.pbtxt, 1/model.pt     TorchScript, for the pytorch backend of NVIDIA's container

Both are run on the spec's real data, of other sizes than the traced ones, and compared with the original. The pytorch
backend is not in the embedded server: that folder is written by its rules, and unproven.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from pilot_client.model_config import CONFIG_FILE, to_text
from pilot_export.config_file import Signature
from pilot_export.errors import TraceError
from pilot_export.gate import EXACT_ERROR_SHARE
from pilot_export.measures import max_abs_error
from pilot_export.spec import ExportSpec
from pilot_export.verify import Reference, run_all, torch_runner


@dataclass(frozen=True)
class Package:
    """`max_abs_error` is over the spec's evaluation data."""

    kind: str
    folder: Path
    max_abs_error: float


def write_packages(
    spec: ExportSpec, module: Any, reference: Reference, signature: Signature, build_dir: Path
) -> tuple[Package, ...]:
    """Write and compare both.

    Raises:
        TraceError: the module cannot be traced, or the file answers otherwise than the module.
    """
    return (
        _write(
            spec, module, reference, build_dir, "package", _save_package, _config(spec, signature, "torch_pipeline")
        ),
        _write(
            spec, module, reference, build_dir, "torchscript", _save_script, _pytorch_config(_config(spec, signature))
        ),
    )


def _write(
    spec: ExportSpec,
    module: Any,
    reference: Reference,
    build_dir: Path,
    kind: str,
    save: Callable[[ExportSpec, Any, Path], Any],
    config: ModelConfig,
) -> Package:
    folder = build_dir / "torch" / kind / spec.name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript's end is announced on every call
        try:
            loaded = save(spec, module, folder / "1")
        except Exception as error:
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise TraceError(f"the module cannot be written as {kind}: {reason}") from error
        outputs = run_all(torch_runner(spec, loaded), spec.evaluation)
    error_found = max_abs_error(reference.evaluation, outputs)
    largest = max(float(abs(array).max()) for batch in reference.evaluation for array in batch.values())
    if error_found > EXACT_ERROR_SHARE * max(1.0, largest):
        raise TraceError(
            f"the {kind} is not equal to the module: an output is off by {error_found:.2g}; does forward depend on "
            "values or sizes in a way that a trace cannot hold?"
        )
    (folder / CONFIG_FILE).write_text(to_text(config))
    return Package(kind, folder, error_found)


def _save_package(spec: ExportSpec, module: Any, version_dir: Path) -> Any:
    import torch

    tensors = {name: torch.from_numpy(array) for name, array in spec.example.items()}
    free = torch.export.Dim.DYNAMIC
    shapes = {name: dict.fromkeys((0, *spec.free_axes.get(name, {})), free) for name in tensors}
    program = torch.export.export(module, (), tensors, dynamic_shapes=shapes)
    torch.export.save(program, str(version_dir / "model.pt2"))
    return torch.export.load(str(version_dir / "model.pt2")).module()


def _save_script(spec: ExportSpec, module: Any, version_dir: Path) -> Any:
    import torch

    tensors = {name: torch.from_numpy(array) for name, array in spec.example.items()}
    with torch.inference_mode(False), torch.no_grad():
        script = torch.jit.trace(module, example_kwarg_inputs=tensors)  # type: ignore[no-untyped-call]
    script.save(str(version_dir / "model.pt"))
    return torch.jit.load(str(version_dir / "model.pt"))  # type: ignore[no-untyped-call]


def _config(spec: ExportSpec, signature: Signature, backend: str = "pytorch") -> ModelConfig:
    config = ModelConfig(name=spec.name, backend=backend, max_batch_size=spec.max_batch_size)
    for tensor in signature.inputs:
        config.input.add(name=tensor.name, data_type=DataType.Value(tensor.data_type), dims=tensor.dims)
    for tensor in signature.outputs:
        config.output.add(name=tensor.name, data_type=DataType.Value(tensor.data_type), dims=tensor.dims)
    config.instance_group.add(count=1, kind="KIND_AUTO")
    return config


def _pytorch_config(config: ModelConfig) -> ModelConfig:
    """The pytorch backend finds inputs by forward's argument names, outputs by NAME__INDEX alone."""
    for index, output in enumerate(config.output):
        output.name = f"{output.name}__{index}"
    return config

"""The module itself as a file that a server loads without its Python code, and model folders around it:

    <build>/torch/
        package/<model>/config.pbtxt, 1/model.pt2        torch.export package, for the backend torch_pipeline
        torchscript/<model>/config.pbtxt, 1/model.pt     TorchScript, for the pytorch backend of NVIDIA's container

Each is compared with the original on the spec's real data, of other sizes than the traced ones, and is a row of the
report with its manifest beside it. They stay in the build folder: other backends serve them. The pytorch backend is
not in the embedded server: that folder is written by its rules, and unproven.
"""

import shutil
import warnings
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from pilot_client.model_config import CONFIG_FILE, to_text
from pilot_export.config_file import Signature
from pilot_export.errors import TraceError
from pilot_export.onnx_original import OnnxOriginal
from pilot_export.recipes import Recipe
from pilot_export.spec import ExportSpec

PACKAGE = Recipe("pt2", "the backend torch_pipeline", "torch.export package", make=None, is_exact=True)
SCRIPT = Recipe("torchscript", "Triton's pytorch backend", "TorchScript", make=None, is_exact=True)
FORMATS = (PACKAGE, SCRIPT)


def write_torch_file(
    recipe: Recipe, spec: ExportSpec, module: Any, signature: Signature, build_dir: Path
) -> tuple[Path, Any]:
    """Write the model folder of one of FORMATS; gives its file, and what a server loads of it.

    Raises:
        TraceError: the module cannot be written so.
    """
    import torch

    if isinstance(module, OnnxOriginal):
        raise TraceError("an ONNX file has no PyTorch module to write")
    if recipe is PACKAGE and isinstance(module, torch.jit.ScriptModule):
        raise TraceError("torch.export follows Python code, and TorchScript has none: build the module from its source")
    kind, save, config = (
        ("package", _save_package, _config(spec, signature, "torch_pipeline"))
        if recipe is PACKAGE
        else ("torchscript", _save_script, _pytorch_config(_config(spec, signature)))
    )
    folder = build_dir / "torch" / kind / spec.name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "1").mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript's end is announced on every call
        try:
            path, loaded = save(spec, module, folder / "1")
        except Exception as error:
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise TraceError(f"the module cannot be written as {recipe.method}: {reason}") from error
    (folder / CONFIG_FILE).write_text(to_text(config))
    return path, loaded


def _save_package(spec: ExportSpec, module: Any, version_dir: Path) -> tuple[Path, Any]:
    import torch

    path = version_dir / "model.pt2"

    tensors = {name: torch.from_numpy(array) for name, array in spec.example.items()}
    free = torch.export.Dim.DYNAMIC
    shapes = {name: dict.fromkeys((0, *spec.free_axes.get(name, {})), free) for name in tensors}
    program = torch.export.export(module, (), tensors, dynamic_shapes=shapes)
    torch.export.save(program, str(path))
    return path, torch.export.load(str(path)).module()


def _save_script(spec: ExportSpec, module: Any, version_dir: Path) -> tuple[Path, Any]:
    import torch

    path = version_dir / "model.pt"
    script = module
    if not isinstance(module, torch.jit.ScriptModule):
        tensors = {name: torch.from_numpy(array) for name, array in spec.example.items()}
        with torch.inference_mode(False), torch.no_grad():
            script = torch.jit.trace(module, example_kwarg_inputs=tensors)  # type: ignore[no-untyped-call]
    script.save(str(path))
    return path, torch.jit.load(str(path))  # type: ignore[no-untyped-call]


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

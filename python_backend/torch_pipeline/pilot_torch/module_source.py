"""The module in eval mode, from code and safetensors, or from a torch.export package. Nothing is unpickled."""

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pilot_torch.archive import check_archive
from pilot_torch.errors import LoadError, RequestError
from pilot_torch.settings import Settings


class PackageModule(torch.nn.Module):
    """A torch.export package that takes its inputs by name, whether it was traced with names or without."""

    def __init__(self, program: torch.export.ExportedProgram, device: torch.device) -> None:
        super().__init__()
        if device.type != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, device)
        self.names = tuple(str(name) for name in program.graph_signature.user_inputs)
        spec = program.call_spec.in_spec
        self.num_positional = spec.children()[0].num_children if spec is not None else len(self.names)
        self.program = program.module()

    def forward(self, **inputs: torch.Tensor) -> Any:
        if set(inputs) != set(self.names):
            raise RequestError(f"the package takes {', '.join(self.names)}; given were {', '.join(inputs)}")
        values = [inputs[name] for name in self.names]
        keywords = self.names[self.num_positional :]
        return self.program(
            *values[: self.num_positional], **dict(zip(keywords, values[self.num_positional :], strict=True))
        )


def load_module(settings: Settings, version_dir: Path, device: torch.device) -> torch.nn.Module:
    """The module on `device`, without gradients.

    Raises:
        LoadError: the file, the function or the weights are missing, or do not belong together.
    """
    if not settings.module:
        return PackageModule(open_package(version_dir / settings.package), device)
    module = find_function(settings.module, version_dir, "module")()
    if not isinstance(module, torch.nn.Module):
        raise LoadError(f"module {settings.module!r} returned {type(module).__name__}, not a torch.nn.Module")
    _load_weights(module, version_dir / settings.weights)
    return module.eval().requires_grad_(False).to(device)


def open_package(path: Path) -> torch.export.ExportedProgram:
    """
    Raises:
        LoadError: see check_archive; or torch cannot read it.
    """
    check_archive(path)
    try:
        return torch.export.load(path)
    except Exception as error:
        raise LoadError(
            f"torch {torch.__version__} cannot open {path}: {' '.join(str(error).split())[:300]}"
        ) from error


def find_function(reference: str, version_dir: Path, parameter: str) -> Callable[..., Any]:
    """The function of FILE.py:FUNCTION in the version folder, or of MODULE:FUNCTION.

    Raises:
        LoadError: it cannot be imported, or is not there.
    """
    where, _, name = reference.rpartition(":")
    if not where or not name:
        raise LoadError(f"{parameter} is {reference!r}: FILE.py:FUNCTION or MODULE:FUNCTION is needed")
    try:
        module = _import_file(version_dir / where) if where.endswith(".py") else importlib.import_module(where)
    except Exception as error:
        raise LoadError(f"{parameter} {reference!r} cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise LoadError(f"{parameter} {reference!r}: {where} has no function {name!r}")
    found: Callable[..., Any] = function
    return found


def _import_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"_torch_pipeline_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load_weights(module: torch.nn.Module, path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if path.suffix != ".safetensors":
        raise LoadError(f"weights {path.name!r}: only .safetensors is read, since other formats can run code")
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error
    try:
        module.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise LoadError(f"{path} does not fit the module: {' '.join(str(error).split())[:400]}") from error

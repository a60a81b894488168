"""A TorchScript file. It knows its inputs' names, and nothing of their shapes or of real data: --data gives both."""

import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilot_export.errors import SpecError
from pilot_export.sources.arrays import read_rows, without_what_it_refuses
from pilot_export.sources.given import Given
from pilot_export.sources.naming import model_name
from pilot_export.spec import Batch, ExportSpec

if TYPE_CHECKING:
    import torch

DEFAULT_MAX_BATCH_SIZE = 32


def torchscript_spec(path: Path, given: Given) -> ExportSpec:
    """The spec of the file: inputs from forward's arguments, outputs from one run on the data.

    Raises:
        SpecError: no TorchScript file, an argument that is no tensor, no data, or data that forward does not take.
    """
    module = _load(path)
    names = _arguments(path, module)
    max_batch_size = given.max_batch_size or DEFAULT_MAX_BATCH_SIZE
    needed = dict.fromkeys(names, "as forward takes it")
    data = read_rows(given.data, needed, given.free_axes, "output", max_batch_size)
    outputs = _outputs(path, module, data.example)
    if outputs[0] != "output":
        data = read_rows(given.data, needed, given.free_axes, outputs[0], max_batch_size)
    return ExportSpec(
        name=model_name(given.name, path),
        load_module=lambda: _load(path),
        example=data.example,
        outputs=outputs,
        evaluation=data.evaluation,
        thresholds=data.thresholds,
        samples=data.samples,
        free_axes=given.free_axes,
        task=data.task,
        edge_cases=without_what_it_refuses(data.edge_cases, partial(_run, module)),
        max_batch_size=max_batch_size,
        calibration=data.calibration,
        source=str(path),
    )


def _load(path: Path) -> "torch.jit.ScriptModule":
    import torch

    if not path.is_file():
        raise SpecError(f"no file {path}")
    try:
        with warnings.catch_warnings():
            # That TorchScript is out of fashion is no news to who has a file of it.
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.load(str(path), map_location="cpu").eval()  # type: ignore[no-any-return, no-untyped-call]
    except (RuntimeError, ValueError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), "")
        raise SpecError(
            f"{path} is no TorchScript file ({reason}). A state_dict or a pickled module has no code in it: write a "
            "spec in Python whose load_module builds the module and loads the weights"
        ) from error


def _arguments(path: Path, module: Any) -> list[str]:
    arguments = [argument for argument in module.forward.schema.arguments if argument.name != "self"]
    for argument in arguments:
        if str(argument.type) != "Tensor" and not argument.has_default_value():
            raise SpecError(
                f"{path}: forward's argument {argument.name!r} is {argument.type}, inputs must be tensors: wrap the "
                "module in one that takes tensors only, and script that"
            )
    return [argument.name for argument in arguments if str(argument.type) == "Tensor"]


def _run(module: Any, batch: Batch) -> Any:
    import torch

    with torch.inference_mode():
        return module(**{name: torch.from_numpy(array) for name, array in batch.items()})


def _outputs(path: Path, module: Any, example: Batch) -> tuple[str, ...]:
    try:
        result = _run(module, example)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        shapes = ", ".join(f"{name} {array.dtype} {list(array.shape)}" for name, array in example.items())
        raise SpecError(f"{path}: forward fails on --data's first two rows ({shapes}): {reason}") from error
    count = len(result) if isinstance(result, tuple | list) else 1
    return ("output",) if count == 1 else tuple(f"output_{index}" for index in range(count))

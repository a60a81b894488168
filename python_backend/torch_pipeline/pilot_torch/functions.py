"""What the pipeline does with a request, from the configuration: checks of types, and a person's own functions."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pilot_torch.errors import RequestError
from pilot_torch.grouping import OutputError, Tensors
from pilot_torch.module_source import find_function
from pilot_torch.pipeline import Functions
from pilot_torch.settings import Settings
from pilot_torch.signature import TORCH_TYPES

Convert = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def make_functions(
    module: torch.nn.Module, settings: Settings, config: Mapping[str, Any], version_dir: Path
) -> Functions:
    """
    Raises:
        LoadError: `preprocess` or `postprocess` cannot be found.
    """
    before = _own(settings.preprocess, version_dir, "preprocess")
    after = _own(settings.postprocess, version_dir, "postprocess")
    types = {entry["name"]: TORCH_TYPES.get(entry["data_type"]) for entry in config["output"]}

    def prepare(inputs: Mapping[str, Any]) -> Tensors:
        arrays = inputs if before is None else _called(before, inputs, "preprocess")
        return {name: torch.as_tensor(array) for name, array in arrays.items()}

    def forward(inputs: Tensors) -> Tensors:
        return _named(module(**inputs), settings.module_outputs)

    def finish(outputs: Tensors) -> Mapping[str, Any]:
        answer = outputs if after is None else _called(after, outputs, "postprocess")
        _check_answer(answer, types)
        return answer

    return Functions(prepare, forward, finish)


def _own(reference: str, version_dir: Path, parameter: str) -> Convert | None:
    return find_function(reference, version_dir, parameter) if reference else None


def _called(function: Convert, tensors: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A person's function on numpy arrays; its ValueError says that the request is wrong."""
    arrays = {key: value.numpy() if isinstance(value, torch.Tensor) else value for key, value in tensors.items()}
    try:
        result = function(arrays)
    except ValueError as error:
        raise RequestError(str(error)) from error
    if not isinstance(result, Mapping):
        raise OutputError(f"{name} returned {type(result).__name__}, not a dict of arrays")
    return result


def _named(result: Any, names: tuple[str, ...]) -> Tensors:
    if isinstance(result, Mapping):
        outputs = dict(result)
    else:
        values = result if isinstance(result, tuple | list) else (result,)
        if len(values) != len(names):
            raise OutputError(f"the module returned {len(values)} tensors, the configuration names {list(names)}")
        outputs = dict(zip(names, values, strict=True))
    if not all(isinstance(value, torch.Tensor) for value in outputs.values()):
        raise OutputError("the module returned something other than tensors: wrap it in one that returns a tuple")
    return outputs


def _check_answer(answer: Mapping[str, Any], types: Mapping[str, torch.dtype | None]) -> None:
    if missing := set(types) - set(answer):
        raise OutputError(f"output {sorted(missing)[0]!r} of the configuration was not returned, but {sorted(answer)}")
    for name, value in answer.items():
        if name not in types:
            raise OutputError(f"{name!r} was returned, which the configuration does not list")
        wanted = types[name]
        found = value.dtype if isinstance(value, torch.Tensor) else _torch_type(value)
        if wanted is not None and found != wanted:
            raise OutputError(f"output {name!r} is {found}, the configuration says {wanted}")


def _torch_type(array: Any) -> torch.dtype | None:
    try:
        return torch.as_tensor(np.asarray(array)).dtype
    except TypeError:
        return None  # Text: the server compares it with the configuration.

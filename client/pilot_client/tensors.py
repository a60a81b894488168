"""What a person types as a tensor -> the array that the model wants."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.utils import triton_to_np_dtype

from pilot_client.errors import BadRequestError
from pilot_client.repository import ModelMetadata, TensorMetadata


def from_arguments(arguments: tuple[str, ...], metadata: ModelMetadata) -> dict[str, NDArray[Any]]:
    """Arrays by name out of NAME=JSON, NAME=@file.npy and @file.npz, in the types of `metadata`.

    Raises:
        BadRequestError: an unknown or missing name, text that is no JSON, a value that the type cannot hold.
    """
    wanted = {tensor.name: tensor for tensor in metadata.inputs}
    takes = f"{metadata.name} takes {'; '.join(map(str, metadata.inputs))}"
    arrays: dict[str, NDArray[Any]] = {}
    for argument in arguments:
        for name, value in _values(argument).items():
            if name not in wanted:
                raise BadRequestError(f"no input {name!r}. {takes}")
            if name in arrays:
                raise BadRequestError(f"input {name!r} is given twice: give it once")
            arrays[name] = as_array(value, wanted[name])
    if not arrays:
        raise BadRequestError(f"no inputs given. {takes}; give each as --input NAME=JSON")
    return arrays


def from_text(texts: tuple[str, ...], metadata: ModelMetadata) -> dict[str, NDArray[Any]]:
    """`texts` as the rows of the model's only input.

    Raises:
        BadRequestError: the model does not take one input of text.
    """
    if [tensor.datatype for tensor in metadata.inputs] != ["BYTES"]:
        raise BadRequestError(
            f"TEXT is for a model of one text input. {metadata.name} takes {'; '.join(map(str, metadata.inputs))}; "
            "give each as --input NAME=JSON"
        )
    (tensor,) = metadata.inputs
    # [rows, 1] where the model batches, else [rows].
    return {tensor.name: np.array(texts, dtype=np.str_).reshape(-1, *[1] * (len(tensor.shape) - 1))}


def as_array(value: Any, tensor: TensorMetadata) -> NDArray[Any]:
    """`value` (nested lists, or an array) in the tensor's type; a missing batch dimension of 1 is added.

    Raises:
        BadRequestError: the value does not fit the type.
    """
    try:
        given = np.asarray(value)
    except ValueError as error:
        raise BadRequestError(f"input {tensor.name!r}: the rows have different lengths") from error
    if tensor.datatype == "BYTES":
        array = given.astype(np.object_) if given.dtype.kind in "SO" else given.astype(np.str_)
    else:
        array = _converted(given, tensor)
    if array.ndim == len(tensor.shape) - 1 and tensor.shape[0] == -1:
        return array[np.newaxis]
    return array


def _converted(given: NDArray[Any], tensor: TensorMetadata) -> NDArray[Any]:
    target = np.dtype(triton_to_np_dtype(tensor.datatype))
    if given.dtype == target:
        return given
    if given.dtype == np.object_ and any(value is None for value in given.flat):
        # numpy would make it a NaN.
        raise BadRequestError(f"input {tensor.name!r} is {tensor.datatype}, which has no null")
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            array = given.astype(target)
    except (ValueError, TypeError) as error:
        raise BadRequestError(
            f"input {tensor.name!r} is {tensor.datatype}, given was {given.dtype}: {error}"
        ) from error
    # A fraction would be cut without a word, and a large number be cut or become infinite.
    is_cut = target.kind in "iub" and not np.array_equal(array.astype(np.float64), given.astype(np.float64))
    is_overflow = target.kind == "f" and not np.array_equal(np.isinf(array), np.isinf(given.astype(np.float64)))
    if is_cut or is_overflow:
        raise BadRequestError(f"input {tensor.name!r} is {tensor.datatype}, which cannot hold all the given values")
    return array


def _values(argument: str) -> dict[str, Any]:
    if argument.startswith("@"):
        with _loaded(argument[1:]) as arrays:
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise BadRequestError(f"{argument[1:]} holds one array without a name: give it as NAME={argument}")
            return {name: arrays[name] for name in arrays.files}
    name, separator, text = argument.partition("=")
    if not separator or not name:
        raise BadRequestError(f"--input {argument!r}: NAME=JSON, NAME=@file.npy or @file.npz expected")
    if text.startswith("@"):
        return {name: _loaded(text[1:])}
    try:
        return {name: json.loads(text)}
    except ValueError as error:
        raise BadRequestError(f"--input {name}: not JSON ({error}); text needs quotes: {name}='[\"text\"]'") from error


def _loaded(file: str) -> Any:
    try:
        # No pickles: a file of arrays must not run code.
        return np.load(Path(file), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BadRequestError(f"{file} is no .npy or .npz file that can be read: {error}") from error

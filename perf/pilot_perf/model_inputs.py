"""The inputs of a model as its configuration has them, and whether an array fits."""

from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any

import numpy as np
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import triton_to_np_dtype

from pilot_client.errors import BadRequestError
from pilot_client.repository import TensorMetadata
from pilot_client.tensors import as_array
from pilot_perf.errors import InputDataError

RANDOM_TEXT_LENGTH = 128


@dataclass(frozen=True)
class InputSpec:
    """`dims` are those of one row, without a batch dimension; -1 is free."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    is_optional: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.datatype} [{', '.join(map(str, self.dims))}]"

    @property
    def free_axes(self) -> tuple[int, ...]:
        return tuple(axis for axis, size in enumerate(self.dims) if size < 0)

    def fitted(self, array: np.ndarray[Any, Any], where: str) -> np.ndarray[Any, Any]:
        """`array` in the type of this input.

        Raises:
            InputDataError: another shape, or values that the type cannot hold.
        """
        if array.ndim == 0 and self.dims in ((1,), (-1,)):
            array = array.reshape(1)
        fits = array.ndim == len(self.dims) and all(
            size in (-1, has) for size, has in zip(self.dims, array.shape, strict=True)
        )
        if not fits:
            raise InputDataError(
                f"{where}: input {self.name!r} has shape {list(array.shape)}, the model takes {self} (one request, "
                "without a batch dimension)"
            )
        try:
            # Its own shape is left out: it would be taken for one with a batch dimension to add.
            return as_array(array, TensorMetadata(self.name, self.datatype, ()))
        except BadRequestError as error:
            raise InputDataError(f"{where}: {error}") from error

    def random(self, generator: np.random.Generator) -> np.ndarray[Any, Any]:
        """Values as perf_analyzer makes them; of text, so many letters.

        Raises:
            InputDataError: it has a free dimension.
        """
        if self.free_axes:
            raise InputDataError(f"input {self} has no fixed shape for random values: give --input-data")
        if self.datatype == "BYTES":
            letters = generator.choice(list(ascii_lowercase), (*self.dims, RANDOM_TEXT_LENGTH))
            return np.apply_along_axis("".join, -1, letters)
        dtype = np.dtype(triton_to_np_dtype(self.datatype))
        values = generator.random(self.dims) if dtype.kind == "f" else generator.integers(0, 2, self.dims)
        return values.astype(dtype)


def inputs_of(config: ModelConfig) -> dict[str, InputSpec]:
    """By name."""
    specs = {}
    for tensor in config.input:
        datatype = model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_")
        datatype = "BYTES" if datatype == "STRING" else datatype
        specs[tensor.name] = InputSpec(tensor.name, datatype, tuple(tensor.dims), tensor.optional)
    return specs

"""The tensors of a contract as data, and typed reading of those that a request brought."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pilot_llm.errors import InvalidRequestError

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class TensorSpec:
    """One input or output as config.pbtxt writes it; `optional` has a meaning for inputs only."""

    name: str
    data_type: str
    dims: tuple[int, ...] = (1,)
    optional: bool = True

    def as_input(self) -> dict[str, Any]:
        return {**self.as_output(), "optional": self.optional}

    def as_output(self) -> dict[str, Any]:
        return {"name": self.name, "data_type": self.data_type, "dims": list(self.dims)}


class Fields:
    """The inputs of one row of a request. A tensor that was not sent is None; one of the wrong kind is refused by name.

    Triton has checked names, types and dims before; what is left are values, and the batch axis that other rows share.
    """

    def __init__(self, arrays: Arrays, row: int | None = None) -> None:
        """`row` is the index to take of every tensor's first axis, the batch; None if there is no such axis."""
        self._arrays = arrays
        self._row = row

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def flag(self, name: str) -> bool | None:
        value = self._single(name)
        return None if value is None else bool(value)

    def integer(self, name: str) -> int | None:
        value = self._single(name)
        return None if value is None else int(value)

    def number(self, name: str) -> float | None:
        value = self._single(name)
        if value is None:
            return None
        if not np.isfinite(value):
            raise InvalidRequestError(f"{name}: a finite number expected, not {value}")
        # float32 0.1 is 0.10000000149: str() gives the decimal that the client wrote.
        return float(str(np.float32(value)))

    def text(self, name: str) -> str | None:
        value = self._single(name)
        return None if value is None else _decoded(name, value)

    def texts(self, name: str) -> list[str] | None:
        values = self._flat(name)
        return None if values is None else [_decoded(name, value) for value in values]

    def integers(self, name: str) -> list[int] | None:
        values = self._flat(name)
        return None if values is None else values.tolist()

    def _flat(self, name: str) -> npt.NDArray[Any] | None:
        array = self._arrays.get(name)
        if array is None:
            return None
        if self._row is None:
            return array.reshape(-1)
        if self._row >= len(array):
            raise InvalidRequestError(f"{name}: {len(array)} rows for a batch of at least {self._row + 1}")
        return np.asarray(array[self._row]).reshape(-1)

    def _single(self, name: str) -> Any:
        values = self._flat(name)
        if values is None:
            return None
        if len(values) != 1:
            raise InvalidRequestError(f"{name}: one value expected, not {len(values)}")
        return values[0]


def _decoded(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{name}: not UTF-8 ({error.reason} at byte {error.start})") from None


def strings(values: list[str]) -> npt.NDArray[np.object_]:
    """Text as Triton wants it: object arrays of bytes, since numpy's own bytes type drops trailing NULs."""
    array = np.empty(len(values), dtype=np.object_)
    array[:] = [value.encode(errors="replace") for value in values]
    return array

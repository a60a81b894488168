"""Real input for the load: rows of arrays, or a file, as the JSON that perf_analyzer reads.

    {"data": [{"input_ids": {"content": [101, 2023, ...], "shape": [16]}, ...}, ...]}     one entry per request

A row's shape has no batch dimension: the server forms the batches. A model without a batch dimension
(max_batch_size 0) gets each row as it is, too.

Rows are laid beside the model's configuration before anything is measured: a wrong name, type or shape is one line.
"""

import json
import random
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_perf.errors import InputDataError
from pilot_perf.lengths import Lengths
from pilot_perf.model_inputs import InputSpec, inputs_of

Arrays = Mapping[str, np.ndarray[Any, Any]]
# One request, without its batch dimension.
Row = dict[str, np.ndarray[Any, Any]]

# More rows than this only cost perf_analyzer memory and start-up time.
MAX_ROWS = 512


def write_rows(samples: Arrays, path: Path) -> Path:
    """Write the rows (first axis) of `samples` to `path`.

    Raises:
        InputDataError: no rows, or inputs with different numbers of them.
    """
    return write(_rows_of(samples), path)


def write(rows: Sequence[Row], path: Path) -> Path:
    """Write `rows`, at most MAX_ROWS of them, to `path`."""
    content = [{name: _tensor(array) for name, array in row.items()} for row in rows[:MAX_ROWS]]
    path.write_text(json.dumps({"data": content}))
    return path


def read_rows(source: Path, config: ModelConfig) -> list[Row]:
    """The rows of a .npz file or of perf_analyzer's JSON, in the types of the model's inputs.

    Raises:
        InputDataError: no such file, one that is neither, or rows that do not fit the model.
    """
    specs = inputs_of(config)
    rows = enumerate(read_raw_rows(source), start=1)
    return [_fitted(row, specs, f"{source}, row {number}") for number, row in rows]


def read_raw_rows(source: Path) -> list[Row]:
    """The rows of the file as they stand there.

    Raises:
        InputDataError: no such file, or one that is neither.
    """
    return _read_npz(source) if source.suffix == ".npz" else _read_json(source)


def cut(rows: Sequence[Row], config: ModelConfig, lengths: Lengths, seed: int) -> list[Row]:
    """Each row with a length drawn for it: its free dimension cut, or its content repeated.

    Raises:
        InputDataError: the model has no input with exactly one free dimension.
    """
    axes = {name: spec.free_axes[0] for name, spec in inputs_of(config).items() if len(spec.free_axes) == 1}
    if not axes:
        raise InputDataError(f"{config.name}: lengths need an input with one free dimension (-1), and there is none")
    rng = random.Random(seed)
    result = []
    for row in rows:
        length = lengths.draw(rng)
        resized = {name: _resized(array, axes[name], length) if name in axes else array for name, array in row.items()}
        result.append(resized)
    return result


def random_rows(config: ModelConfig, seed: int, count: int = 16) -> list[Row]:
    """
    Raises:
        InputDataError: an input has a free dimension.
    """
    generator = np.random.default_rng(seed)
    specs = inputs_of(config)
    return [{n: s.random(generator) for n, s in specs.items() if not s.is_optional} for _ in range(count)]


def _read_npz(source: Path) -> list[Row]:
    try:
        with np.load(source, allow_pickle=False) as arrays:
            return _rows_of(dict(arrays))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputDataError(f"{source} cannot be read as input data: {error}") from error


def _rows_of(samples: Arrays) -> list[Row]:
    counts = {name: len(array) if array.ndim else 0 for name, array in samples.items()}
    if not counts or len(set(counts.values())) != 1 or 0 in counts.values():
        raise InputDataError(f"every input needs the same number of rows, at least one; there are {counts}")
    num_rows = min(next(iter(counts.values())), MAX_ROWS)
    for array in samples.values():
        if array.dtype.kind == "S":
            _tensor(array[:num_rows])  # refused now, not once a server runs
    return [{name: np.asarray(array[index]) for name, array in samples.items()} for index in range(num_rows)]


def _read_json(source: Path) -> list[Row]:
    try:
        content = json.loads(source.read_text())
    except (OSError, ValueError) as error:
        raise InputDataError(f"{source} cannot be read as input data: {error}") from error
    rows = content.get("data") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise InputDataError(
            f"{source} is no input data: it must be a .npz with one array per input (first axis: rows), or a JSON "
            'file {"data": [{"INPUT": {"content": [...], "shape": [...]}}, ...]}'
        )
    return [
        {name: _array(value, f"{source}, row {number}, input {name!r}") for name, value in row.items()}
        for number, row in enumerate(rows[:MAX_ROWS], start=1)
    ]


def _array(value: Any, where: str) -> np.ndarray[Any, Any]:
    shape = None
    if isinstance(value, dict):
        if "b64" in value:
            raise InputDataError(f"{where}: b64 is not read here; give the numbers, or a .npz file")
        value, shape = value.get("content"), value.get("shape")
    try:
        array = np.array(value)
        return array if shape is None else array.reshape(shape)
    except (ValueError, TypeError) as error:
        raise InputDataError(f"{where}: {error}") from error


def _fitted(row: Row, specs: Mapping[str, InputSpec], where: str) -> Row:
    takes = "; ".join(map(str, specs.values()))
    for name in row:
        if name not in specs:
            raise InputDataError(f"{where}: no input {name!r}. The model takes {takes}")
    for name, spec in specs.items():
        if name not in row and not spec.is_optional:
            raise InputDataError(f"{where}: input {name!r} is missing. The model takes {takes}")
    return {name: specs[name].fitted(array, where) for name, array in row.items()}


def _resized(array: np.ndarray[Any, Any], axis: int, length: int) -> np.ndarray[Any, Any]:
    """The first `length` entries along `axis`, from the start again where there are too few."""
    return np.take(array, np.arange(length) % max(array.shape[axis], 1), axis=axis)


def _tensor(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    if array.dtype.kind in "OSU":
        return {"content": [_text(item) for item in array.reshape(-1)], "shape": list(array.shape) or [1]}
    return {"content": array.reshape(-1).tolist(), "shape": list(array.shape) or [1]}


def _text(item: Any) -> str:
    """
    Raises:
        InputDataError: bytes that are no text, which the JSON that perf_analyzer reads cannot hold.
    """
    try:
        return item.decode("utf-8") if isinstance(item, bytes) else str(item)
    except UnicodeDecodeError as error:
        raise InputDataError(
            f"a row holds bytes that are no UTF-8 text ({error}): perf_analyzer's input files hold text only. Let the "
            "model take TYPE_UINT8, and give numbers"
        ) from error

"""Real input for the load: rows of arrays, or a file, as the JSON that perf_analyzer reads.

    {"data": [{"input_ids": {"content": [101, 2023, ...], "shape": [16]}, ...}, ...]}     one entry per request

A row's shape has no batch dimension: the server forms the batches. A model without a batch dimension
(max_batch_size 0) gets each row as it is, too.
"""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pilot_perf.errors import InputDataError

Arrays = Mapping[str, np.ndarray[Any, Any]]

# More rows than this only cost perf_analyzer memory and start-up time.
MAX_ROWS = 512


def write_rows(samples: Arrays, path: Path) -> Path:
    """Write the rows (first axis) of `samples` to `path`.

    Raises:
        InputDataError: no rows, or inputs with different numbers of them.
    """
    counts = {name: len(array) for name, array in samples.items()}
    if not counts or len(set(counts.values())) != 1 or 0 in counts.values():
        raise InputDataError(f"every input needs the same number of rows, at least one; there are {counts}")
    num_rows = min(next(iter(counts.values())), MAX_ROWS)
    rows = [{name: _tensor(array[index]) for name, array in samples.items()} for index in range(num_rows)]
    path.write_text(json.dumps({"data": rows}))
    return path


def prepare_file(source: Path, folder: Path) -> Path:
    """The JSON file for `source`: itself if it is one, or written into `folder` from a .npz of arrays by input name.

    Raises:
        InputDataError: no such file, or one that is neither.
    """
    try:
        if source.suffix == ".npz":
            with np.load(source, allow_pickle=False) as arrays:
                return write_rows(dict(arrays), folder / f"{source.stem}.json")
        content = json.loads(source.read_text())
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputDataError(f"{source} cannot be read as input data: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("data"), list) or not content["data"]:
        raise InputDataError(
            f"{source} is no input data: it must be a .npz with one array per input (first axis: rows), or a JSON "
            'file {"data": [{"INPUT": {"content": [...], "shape": [...]}}, ...]}'
        )
    return source.absolute()


def _tensor(row: np.ndarray[Any, Any]) -> dict[str, Any]:
    array = np.asarray(row)
    if array.dtype.kind in "OSU":
        return {"content": [_text(item) for item in array.reshape(-1)], "shape": list(array.shape) or [1]}
    return {"content": array.reshape(-1).tolist(), "shape": list(array.shape) or [1]}


def _text(item: Any) -> str:
    return item.decode("utf-8") if isinstance(item, bytes) else str(item)

"""Real data of a model from one file: rows.npz with an array for each input, rows along axis 0.

An array `labels` (one class a row) that is no input makes the task: is the largest value of the first output that of
the label? Every third row is for calibration; the others judge, in batches of several sizes and several lengths. Free
axes at their longest and shortest, and a mask of zeros, are edge cases.
"""

import contextlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilot_export.errors import SpecError
from pilot_export.spec import CLASSIFIER, Batch, Task, Thresholds
from pilot_export.spec_check import MIN_CALIBRATION_ROWS, MIN_JUDGED_ROWS

LABELS = "labels"
FIRST_SIZES = (1, 2, 3, 5, 8, 13)
NUM_SAMPLES = 64
# Of a free axis, for one batch in four: what is padded or cut off in other requests.
SHORTENINGS = (1, 1, 1, 2)


@dataclass(frozen=True)
class Data:
    """As the fields of ExportSpec."""

    example: Batch
    evaluation: list[Batch]
    calibration: list[Batch]
    samples: dict[str, NDArray[Any]]
    task: Task | None
    thresholds: Thresholds
    edge_cases: dict[str, Batch]


def read_rows(
    path: Path | None,
    needed: Mapping[str, str],
    free_axes: Mapping[str, Mapping[int, str]],
    output: str,
    max_batch_size: int,
) -> Data:
    """The data in `path`.

    Args:
        needed: input -> what it takes, in words for the error.

    Raises:
        SpecError: no file, an input that it lacks, or too few rows.
    """
    listing = ", ".join(f"{name} ({what})" for name, what in needed.items())
    if path is None:
        raise SpecError(
            "the file holds no data to judge variants with: give --data rows.npz, real inputs along axis 0 of "
            f'{listing}, and if you have them the right classes as "{LABELS}"'
        )
    arrays = _load(path)
    if missing := [name for name in needed if name not in arrays]:
        raise SpecError(f"{path} has {', '.join(arrays) or 'nothing'}, but no {missing[0]!r}; it needs {listing}")
    rows = {name: arrays[name] for name in needed}
    for name, axes in free_axes.items():
        if name in rows and (axis := max(axes, default=0)) >= rows[name].ndim:
            raise SpecError(f"{path}: axis {axis} of {name} is to be free, but it has {rows[name].ndim} axes")
    counts = {
        name: len(array) if array.ndim else 0 for name, array in arrays.items() if name in needed or name == LABELS
    }
    if len(set(counts.values())) > 1:
        raise SpecError(f"{path}: rows differ: {', '.join(f'{name} has {count}' for name, count in counts.items())}")
    num_rows = next(iter(counts.values()))
    least = MIN_JUDGED_ROWS + MIN_CALIBRATION_ROWS
    if num_rows < least:
        raise SpecError(
            f"{path} has {num_rows} rows, too few: {MIN_JUDGED_ROWS} judge the variants and {MIN_CALIBRATION_ROWS} are "
            f"for calibration, so give at least {least}"
        )
    is_calibration = np.arange(num_rows) % 3 == 0
    judged = {name: array[~is_calibration] for name, array in rows.items()}
    labels = None if LABELS in needed or LABELS not in arrays else arrays[LABELS][~is_calibration]
    return Data(
        example={name: array[:2] for name, array in rows.items()},
        evaluation=_batches(judged, free_axes, max_batch_size, is_varied=True),
        calibration=_batches(
            {name: array[is_calibration] for name, array in rows.items()}, {}, max_batch_size, is_varied=False
        ),
        samples={name: array[:NUM_SAMPLES] for name, array in judged.items()},
        task=None if labels is None else _accuracy(output, labels),
        thresholds=Thresholds(min_mean_cosine=0.98) if labels is None else CLASSIFIER,
        edge_cases=_edge_cases(judged, free_axes),
    )


def without_what_it_refuses(edge_cases: Mapping[str, Batch], run: Callable[[Batch], object]) -> dict[str, Batch]:
    """Those that the model itself takes: a length of 1 is no edge of one that convolves over three."""
    kept = {}
    for name, batch in edge_cases.items():
        with contextlib.suppress(Exception):
            run(batch)
            kept[name] = batch
    return kept


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile, AttributeError) as error:
        raise SpecError(
            f"{path} cannot be read ({' '.join(str(error).split())}): make it with numpy.savez(path, NAME=array, ...)"
        ) from error


def _batches(
    rows: Mapping[str, NDArray[Any]],
    free_axes: Mapping[str, Mapping[int, str]],
    max_batch_size: int,
    *,
    is_varied: bool,
) -> list[Batch]:
    num_rows = len(next(iter(rows.values())))
    sizes = [size for size in FIRST_SIZES if size < max_batch_size] if is_varied else []
    edges = [int(edge) for edge in np.cumsum([0, *sizes])]
    edges += range(edges[-1] + max_batch_size, num_rows, max_batch_size)
    parts = [
        {name: array[a:b] for name, array in rows.items()} for a, b in zip(edges, [*edges[1:], num_rows], strict=True)
    ]
    return [_shorten(part, free_axes, SHORTENINGS[index % len(SHORTENINGS)]) for index, part in enumerate(parts)]


def _shorten(batch: Batch, free_axes: Mapping[str, Mapping[int, str]], divisor: int) -> Batch:
    """Each free axis cut to a part of its length, at least 1."""
    cut = {}
    for name, array in batch.items():
        index = [slice(None)] * array.ndim
        for axis in free_axes.get(name, {}):
            index[axis] = slice(max(1, array.shape[axis] // divisor))
        cut[name] = np.ascontiguousarray(array[tuple(index)])
    return cut


def _edge_cases(rows: Mapping[str, NDArray[Any]], free_axes: Mapping[str, Mapping[int, str]]) -> dict[str, Batch]:
    """One row of the shortest and of the longest free axes; a row whose mask is 0 beside one whose mask is not."""
    edges: dict[str, Batch] = {}
    row = {name: array[:1] for name, array in rows.items()}
    labels = sorted({label for axes in free_axes.values() for label in axes.values()})
    if labels:
        longest = max(rows[name].shape[axis] for name, axes in free_axes.items() if name in rows for axis in axes)
        edges[f"the longest input ({', '.join(labels)}: {longest})"] = row
        edges[f"the shortest input ({', '.join(labels)}: 1)"] = _shorten(row, free_axes, longest)
    for mask in (name for name in rows if "mask" in name.lower()):
        pair = {name: array[:2] for name, array in rows.items()}
        zeroed = pair[mask].copy()
        zeroed[0] = 0
        edges[f"a row whose {mask} is 0"] = {**pair, mask: zeroed}
    return edges


def _accuracy(output: str, labels: NDArray[Any]) -> Task:
    def fit(_original: Sequence[Batch]) -> Callable[[Sequence[Batch]], NDArray[np.bool_]]:
        return lambda outputs: np.asarray(
            np.concatenate([batch[output].argmax(axis=-1) for batch in outputs]) == labels
        )

    return Task("accuracy", fit)

"""Runs the requests of one execute() as few session runs as their shapes allow.

    requests   A [2, 7]   B [1, 7]   C [1, 9]          rows, length
    runs       [A B] -> [3, 7]       C -> [1, 9]       one per shape; a request alone is not copied
    outputs    rows 0-1   row 2      row 0             views into the run's output

A run that fails is repeated request by request, so that only the request that cannot be run gets the error; this at
most doubles the work of that batch. With max_batch_size 0 there is no batch dimension and every request runs alone.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pilot_onnxruntime.errors import BackendError

Array = NDArray[np.generic]
Feed = Mapping[str, Array]
# Output names and inputs -> outputs in the order of the names; onnxruntime.InferenceSession.run.
Run = Callable[[Sequence[str], Feed], Sequence[Array]]


class OutputShapeError(BackendError):
    """The graph returned another number of rows than it was given."""


def run_requests(
    run: Run, feeds: Sequence[Feed], output_names: Sequence[str], *, is_batched: bool
) -> list[Sequence[Array] | Exception]:
    """The outputs of each request in the order of `output_names`, or the exception that its run raised."""
    if len(feeds) == 1:
        return [_run_alone(run, feeds[0], output_names)]
    if not is_batched:
        return [_run_alone(run, feed, output_names) for feed in feeds]
    results: list[Sequence[Array] | Exception] = [()] * len(feeds)
    for group in _groups_of_equal_shape(feeds):
        outcome = _run_together(run, [feeds[index] for index in group], output_names)
        for index, result in zip(group, outcome, strict=True):
            results[index] = result
    return results


def _run_alone(run: Run, feed: Feed, output_names: Sequence[str]) -> Sequence[Array] | Exception:
    try:
        return run(output_names, feed)
    # Whatever a run raises is the answer to its request: nothing may stop the other requests.
    except Exception as error:  # noqa: BLE001
        return error


def _run_together(run: Run, feeds: Sequence[Feed], output_names: Sequence[str]) -> list[Sequence[Array] | Exception]:
    if len(feeds) == 1:
        return [_run_alone(run, feeds[0], output_names)]
    names = list(feeds[0])
    batch = {name: np.concatenate([feed[name] for feed in feeds]) for name in names}
    outputs = _run_alone(run, batch, output_names)
    if isinstance(outputs, Exception):
        return [_run_alone(run, feed, output_names) for feed in feeds]
    num_rows = len(batch[names[0]])
    for name, output in zip(output_names, outputs, strict=True):
        if output.shape[:1] != (num_rows,):
            message = (
                f"output {name!r} has shape {list(output.shape)} for {num_rows} rows: its first dimension is no batch"
            )
            return [OutputShapeError(message)] * len(feeds)
    results: list[Sequence[Array] | Exception] = []
    start = 0
    for feed in feeds:
        stop = start + len(feed[names[0]])
        results.append([output[start:stop] for output in outputs])
        start = stop
    return results


def _groups_of_equal_shape(feeds: Sequence[Feed]) -> list[list[int]]:
    """Indices of the requests that can be concatenated; Triton's batchers nearly always send a single group."""
    groups: dict[tuple[tuple[str, tuple[int, ...]], ...], list[int]] = {}
    for index, feed in enumerate(feeds):
        key = tuple([(name, array.shape[1:]) for name, array in feed.items()])
        groups.setdefault(key, []).append(index)
    return list(groups.values())

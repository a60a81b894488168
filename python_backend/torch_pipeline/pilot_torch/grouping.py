"""Requests of one shape -> one batch of the module, and its outputs back to the requests.

requests   A [2, 7]   B [1, 7]   C [1, 9]          rows, length
groups     [A B] -> [3, 7]       C -> [1, 9]       one run each
outputs    rows 0-1   row 2      row 0             views into the run's output
"""

import itertools
from collections.abc import Mapping, Set
from dataclasses import dataclass

import torch

from pilot_torch.buffers import BufferPool, as_tensor
from pilot_torch.errors import BackendError, RequestError

Tensors = Mapping[str, torch.Tensor]


class OutputError(BackendError):
    """The module returned what the configuration does not say."""


@dataclass(frozen=True)
class Group:
    """`members` are places in the batch of requests; `inputs` lie in `buffers`, or are a lone request's own."""

    members: tuple[int, ...]
    rows: tuple[int, ...]
    inputs: Tensors
    buffers: list[torch.Tensor]


def group_requests(prepared: Mapping[int, Tensors], pool: BufferPool, *, is_batched: bool) -> list[Group]:
    """The groups of `prepared` (place in the batch -> inputs), gathered into buffers of `pool`."""
    places: dict[object, list[int]] = {}
    for place, tensors in prepared.items():
        key: object = place
        if is_batched:
            key = tuple(sorted((name, str(t.dtype), tuple(t.shape[1:])) for name, t in tensors.items()))
        places.setdefault(key, []).append(place)
    return [_gather({place: prepared[place] for place in group}, pool, is_batched) for group in places.values()]


def _gather(members: Mapping[int, Tensors], pool: BufferPool, is_batched: bool) -> Group:
    requests = list(members.values())
    rows = tuple(num_rows(tensors) if is_batched else 0 for tensors in requests)
    # Without pinned memory to fill, the tensors of a lone request need no copy.
    if len(requests) == 1 and not pool.is_pinned:
        return Group(tuple(members), rows, requests[0], [])
    inputs, buffers = {}, []
    for name, first in requests[0].items():
        parts = [tensors[name] for tensors in requests]
        shape = (sum(rows), *first.shape[1:]) if is_batched else tuple(first.shape)
        buffer = pool.take(torch.Size(shape).numel() * first.dtype.itemsize)
        buffers.append(buffer)
        inputs[name] = as_tensor(buffer, shape, first.dtype)
        if is_batched:
            torch.cat(parts, out=inputs[name])
        else:
            inputs[name].copy_(first)
    return Group(tuple(members), rows, inputs, buffers)


def without(group: Group, gone: Set[int]) -> Group:
    """The group without these members, in the same buffers; it may have none left."""
    if gone.isdisjoint(group.members):
        return group
    kept = [index for index, place in enumerate(group.members) if place not in gone]
    starts = list(itertools.accumulate(group.rows, initial=0))
    rows, end = [group.rows[index] for index in kept], 0
    for index, count in zip(kept, rows, strict=True):
        for tensor in group.inputs.values():
            # Its rows move forward, and may overlap those where they were.
            tensor[end : end + count] = tensor[starts[index] : starts[index] + count].clone()
        end += count
    inputs = {name: tensor[:end] for name, tensor in group.inputs.items()}
    return Group(tuple(group.members[index] for index in kept), tuple(rows), inputs, group.buffers)


def split_outputs(group: Group, outputs: Tensors, *, is_batched: bool) -> dict[int, Tensors]:
    """Each member's rows of the group's outputs.

    Raises:
        OutputError: an output has another number of rows than the inputs.
    """
    if not is_batched:
        return {group.members[0]: outputs}
    total = sum(group.rows)
    for name, output in outputs.items():
        if output.ndim == 0 or len(output) != total:
            raise OutputError(
                f"output {name!r} has shape {list(output.shape)} for {total} rows: its first dimension is no batch"
            )
    parts = {name: torch.split(output, list(group.rows)) for name, output in outputs.items()}
    return {place: {name: parts[name][i] for name in parts} for i, place in enumerate(group.members)}


def num_rows(tensors: Tensors) -> int:
    """Of the inputs of one request.

    Raises:
        RequestError: they have none, or different numbers.
    """
    sizes = {name: len(tensor) if tensor.ndim else 0 for name, tensor in tensors.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise RequestError(f"every input needs the same number of rows, at least one; there are {sizes}")
    return next(iter(sizes.values()))

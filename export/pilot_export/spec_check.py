"""What a spec lacks, found before anything slow runs."""

import re
from pathlib import Path

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_client.errors import ConfigError
from pilot_client.model_config import parse
from pilot_export.errors import SpecError
from pilot_export.spec import Batch, ExportSpec

# Below this, a variant that loses 1.5 points cannot be told from one that loses nothing.
MIN_JUDGED_ROWS = 200
# Below this, the ranges of activations are those of a few inputs.
MIN_CALIBRATION_ROWS = 100


def check_spec(spec: ExportSpec) -> None:
    """Find what the spec lacks before anything slow runs.

    Raises:
        SpecError: names the field and what it must be.
    """
    if not isinstance(spec.name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", spec.name):
        raise SpecError(f"name {spec.name!r}: a model's folder has letters, digits, _ - and . only")
    if isinstance(spec.outputs, str):
        raise SpecError(f'outputs is the text {spec.outputs!r}: give a tuple, ("{spec.outputs}",)')
    if not spec.outputs or set(spec.outputs) & set(spec.example):
        raise SpecError(f"outputs {spec.outputs} must name every output, and differently from the inputs")
    if spec.max_batch_size < 1:
        raise SpecError(f"max_batch_size is {spec.max_batch_size}; axis 0 is the batch, so it must be at least 1")
    named = [("example", spec.example), ("samples", spec.samples)]
    named += [(f"evaluation batch {index}", batch) for index, batch in enumerate(spec.evaluation)]
    named += [(f"calibration batch {index}", batch) for index, batch in enumerate(spec.calibration)]
    named += [(f"edge case {name!r}", batch) for name, batch in spec.edge_cases.items()]
    for name, batch in named:
        for tensor, array in batch.items():
            if not isinstance(array, np.ndarray) or array.ndim == 0:
                raise SpecError(f"{name}: {tensor} is no numpy array with rows along axis 0, but {array!r:.60}")
    if num_rows(spec.example) < 2:
        raise SpecError("example has 1 row: give at least 2, or the exporter takes the batch for a constant")
    judged_rows = sum(num_rows(batch) for batch in spec.evaluation)
    if judged_rows < MIN_JUDGED_ROWS:
        raise SpecError(
            f"evaluation has {judged_rows} rows, too few to tell a bad variant from a good one: "
            f"give at least {MIN_JUDGED_ROWS} rows of real data"
        )
    calibration_rows = sum(num_rows(batch) for batch in spec.calibration)
    if spec.calibration and calibration_rows < MIN_CALIBRATION_ROWS:
        raise SpecError(
            f"calibration has {calibration_rows} rows, too few for the ranges of activations: "
            f"give at least {MIN_CALIBRATION_ROWS} rows of real data that evaluation does not hold, or none"
        )
    if unknown := set(spec.free_axes) - set(spec.example):
        raise SpecError(f"free_axes names {sorted(unknown)}, example has {sorted(spec.example)}")
    for name, path in spec.assets.items():
        if not Path(path).is_file():
            raise SpecError(f"asset {name!r}: no file {path}")
    for name, batch in named:
        _check_batch(spec, name, batch)
    if not num_rows(spec.samples):
        raise SpecError("samples has no rows: give at least 1 row of real data")
    _check_variety(spec)
    _check_labels(spec)
    parse_extra(spec)


def num_rows(batch: Batch) -> int:
    return len(next(iter(batch.values()))) if batch else 0


def parse_extra(spec: ExportSpec) -> ModelConfig:
    """The fields of `config_extra`.

    Raises:
        SpecError: it is no text of a model configuration, or holds what the graph decides.
    """
    try:
        extra = parse(spec.config_extra, "config_extra")
    except ConfigError as error:
        raise SpecError(str(error)) from error
    for name in ("name", "platform", "input", "output", "max_batch_size"):
        if getattr(extra, name):
            raise SpecError(f"config_extra sets {name}, which comes from the graph and the spec: leave it out")
    return extra


def _check_labels(spec: ExportSpec) -> None:
    for output, names in spec.labels.items():
        if output not in spec.outputs:
            raise SpecError(f"labels are given for {output!r}, outputs are {', '.join(spec.outputs)}")
        if isinstance(names, str) or not names or not all(isinstance(name, str) for name in names):
            raise SpecError(f"labels of {output!r} must be a tuple of texts, one for each class")
        if bad := [name for name in names if not name.strip() or "\n" in name]:
            raise SpecError(f"labels of {output!r}: {bad[0]!r} cannot be a line of a label file")


def _check_batch(spec: ExportSpec, name: str, batch: Batch) -> None:
    if set(batch) != set(spec.example):
        raise SpecError(f"{name} has the inputs {sorted(batch)}, example has {sorted(spec.example)}")
    lengths: dict[str, int] = {}
    for tensor, array in batch.items():
        like, free = spec.example[tensor], spec.free_axes.get(tensor, {})
        if array.dtype != like.dtype or array.ndim != like.ndim:
            raise SpecError(
                f"{name}: {tensor} is {array.dtype} with {array.ndim} axes, example is {like.dtype} with {like.ndim}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise SpecError(f"{name}: {tensor} holds NaN or infinity; clean the data first")
        for axis, (size, example_size) in enumerate(zip(array.shape, like.shape, strict=True)):
            label = "batch" if axis == 0 else free.get(axis)
            if label is None and size != example_size:
                raise SpecError(
                    f"{name}: axis {axis} of {tensor} is {size}, example has {example_size}; "
                    f"name it in free_axes if it may change"
                )
            if label is not None and lengths.setdefault(label, size) != size:
                raise SpecError(f"{name}: {label!r} is {lengths[label]} and {size} in one batch")


def _check_variety(spec: ExportSpec) -> None:
    """Only other sizes than the traced ones prove that an axis is free."""
    for tensor, axes in {name: {0: "batch", **spec.free_axes.get(name, {})} for name in spec.example}.items():
        for axis, label in axes.items():
            if {batch[tensor].shape[axis] for batch in spec.evaluation} <= {spec.example[tensor].shape[axis]}:
                raise SpecError(f"evaluation never varies {label!r} (axis {axis} of {tensor}): add batches that do")

"""Runs the original and each variant on the same real data, and measures how far they are apart."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilot_base.cpus import usable_cpus
from pilot_export.errors import VerifyError
from pilot_export.measures import (
    Quality,
    TaskResult,
    confident_agreement,
    max_abs_error,
    max_rel_error,
    paired_drop,
    row_cosines,
    top1_agreement,
)
from pilot_export.onnx_original import OnnxOriginal
from pilot_export.spec import Batch, ExportSpec

Run = Callable[[Batch], Batch]


@dataclass(frozen=True)
class Reference:
    """What the original answers: outputs of each batch, and the judge of the spec's task fitted on it.

    `edge_inputs` are the spec's edge cases, and batches of 1 and of the most rows: what a server makes of requests.
    """

    evaluation: Sequence[Batch]
    edge_inputs: dict[str, Batch]
    edge_cases: dict[str, Batch]
    is_right: Callable[[Sequence[Batch]], NDArray[np.bool_]] | None
    right: NDArray[np.bool_] | None


def original_runner(spec: ExportSpec, module: Any) -> Run:
    """The original itself: a PyTorch module, or an ONNX file that stands for one."""
    return onnx_runner(module.path) if isinstance(module, OnnxOriginal) else torch_runner(spec, module)


def torch_runner(spec: ExportSpec, module: Any) -> Run:
    """The original, in inference mode, on the CPU of the calling thread."""
    import torch

    def run(batch: Batch) -> Batch:
        torch.set_num_threads(1)
        with torch.inference_mode():
            result = module(**{name: torch.from_numpy(array) for name, array in batch.items()})
        tensors = result if isinstance(result, tuple | list) else (result,)
        if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            kinds = ", ".join(type(tensor).__name__ for tensor in tensors)
            raise VerifyError(f"the module returns {kinds}: wrap it in one whose forward returns a tensor or a tuple")
        if len(tensors) != len(spec.outputs):
            raise VerifyError(f"the module returns {len(tensors)} tensors, the spec names {len(spec.outputs)} outputs")
        return {name: tensor.numpy() for name, tensor in zip(spec.outputs, tensors, strict=True)}

    return run


def open_session(path: Path, num_threads: int) -> Any:
    """An ONNX Runtime session on the CPU.

    Raises:
        VerifyError: ONNX Runtime refuses the file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise VerifyError(f"ONNX Runtime cannot load {path.name}: {' '.join(str(error).split())}") from error


def onnx_runner(path: Path) -> Run:
    """A variant, on the CPU of the calling thread."""
    session = open_session(path, num_threads=1)
    names = [output.name for output in session.get_outputs()]

    def run(batch: Batch) -> Batch:
        try:
            return dict(zip(names, session.run(names, dict(batch)), strict=True))
        except Exception as error:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in batch.items())
            raise VerifyError(f"{path.name} fails on {shapes}: {' '.join(str(error).split())}") from error

    return run


def run_all(run: Run, batches: Sequence[Batch], num_threads: int | None = None) -> list[Batch]:
    """Outputs of each batch, in order. A batch per CPU at a time: with every CPU on one batch, another program on one
    of them holds up all (seven times slower with torch when the machine is shared)."""
    with ThreadPoolExecutor(num_threads or usable_cpus()) as pool:
        return list(pool.map(run, batches))


def run_reference(spec: ExportSpec, run: Run) -> Reference:
    """Run the original over everything the spec gives.

    Raises:
        VerifyError: the original itself fails or gives NaN, or the task's judge does not fit its own data.
    """
    evaluation = run_all(run, spec.evaluation)
    for index, batch in enumerate(evaluation):
        if bad := _not_finite(batch):
            raise VerifyError(f"the original itself gives NaN or infinity in {bad} on evaluation batch {index}")
    for output, names in spec.labels.items():
        if len(names) != (size := int(evaluation[0][output][0].size)):
            raise VerifyError(f"labels of {output!r} are {len(names)}, a row of it has {size} values: do they match?")
    edge_inputs = {**spec.edge_cases}
    edge_inputs |= {f"a batch of {rows}": tile_rows(spec.samples, rows) for rows in sorted({1, spec.max_batch_size})}
    edge_cases = {name: run(batch) for name, batch in edge_inputs.items()}
    if spec.task is None:
        return Reference(evaluation, edge_inputs, edge_cases, None, None)
    num_rows, fit_outputs = _num_rows(spec.evaluation), run_all(run, spec.task.fit_batches)
    try:
        is_right = spec.task.fit(fit_outputs)
        right = np.asarray(is_right(evaluation))
    except Exception as error:
        raise VerifyError(
            f"task {spec.task.name!r} fails on the original's outputs: {type(error).__name__}: {error}; "
            f"do the labels match the data ({num_rows} rows)?"
        ) from error
    if right.dtype != np.bool_ or right.shape != (num_rows,):
        raise VerifyError(
            f"task {spec.task.name!r} must give one bool for each of the {num_rows} evaluation rows, "
            f"gave {right.dtype} {list(right.shape)}: do the labels match the data?"
        )
    return Reference(evaluation, edge_inputs, edge_cases, is_right, right)


def compare(
    spec: ExportSpec, reference: Reference, run: Run, num_threads: int | None = None
) -> tuple[Quality, tuple[str, ...]]:
    """The variant's quality over the evaluation data, and what it got wrong on the edge cases.

    Args:
        num_threads: that call `run`; None for one per CPU.
    """
    failures = []
    outputs: Sequence[Batch] = run_all(run, spec.evaluation, num_threads)
    if any(_not_finite(batch) for batch in outputs):
        failures.append("gives NaN or infinity on real data where the original does not")
        outputs = [{name: np.nan_to_num(array) for name, array in batch.items()} for batch in outputs]
    edge_outputs = {name: run(batch) for name, batch in reference.edge_inputs.items()}
    finite = [name for name, expected in reference.edge_cases.items() if not _not_finite(expected)]
    for name in finite:
        if bad := _not_finite(edge_outputs[name]):
            failures.append(f"gives NaN or infinity in {bad} on {name}")
    edges = [name for name in finite if not _not_finite(edge_outputs[name])]
    expected_edges, found_edges = [reference.edge_cases[name] for name in edges], [edge_outputs[name] for name in edges]
    first = spec.outputs[0]
    cosines = row_cosines(reference.evaluation, outputs, first)
    quality = Quality(
        num_rows=len(cosines),
        max_abs_error=max_abs_error([*reference.evaluation, *expected_edges], [*outputs, *found_edges]),
        largest_value=max(float(np.abs(array).max()) for batch in reference.evaluation for array in batch.values()),
        mean_cosine=float(cosines.mean()),
        p1_cosine=float(np.percentile(cosines, 1)),
        min_cosine=float(cosines.min()),
        confident_agreement=_agreement(spec, reference, outputs),
        task=_task_result(spec, reference, outputs),
        extra={name: measure(reference.evaluation, outputs) for name, measure in spec.extra_measures.items()},
        max_rel_error=max_rel_error(reference.evaluation, outputs),
        top1_agreement=top1_agreement(reference.evaluation, outputs, first),
        edge_cosines={
            name: float(row_cosines([expected], [found], first).mean())
            for name, expected, found in zip(edges, expected_edges, found_edges, strict=True)
        },
    )
    return quality, tuple(failures)


def tile_rows(batch: Batch, num_rows: int) -> dict[str, NDArray[Any]]:
    """`num_rows` rows out of `batch`, repeated as often as needed."""
    return {name: np.resize(array, (num_rows, *array.shape[1:])) for name, array in batch.items()}


def _agreement(spec: ExportSpec, reference: Reference, outputs: Sequence[Batch]) -> float | None:
    if spec.thresholds.min_confident_agreement is None:
        return None
    return confident_agreement(reference.evaluation, outputs, spec.outputs[0])


def _task_result(spec: ExportSpec, reference: Reference, outputs: Sequence[Batch]) -> TaskResult | None:
    if spec.task is None or reference.is_right is None or reference.right is None:
        return None
    right = reference.is_right(outputs)
    drop, low, high = paired_drop(reference.right, right)
    return TaskResult(spec.task.name, float(reference.right.mean()), float(right.mean()), drop, low, high)


def _not_finite(batch: Batch) -> str:
    """The name of the first output with NaN or infinity, "" for none."""
    return next((name for name, array in batch.items() if not np.isfinite(array).all()), "")


def _num_rows(batches: Sequence[Batch]) -> int:
    return sum(len(next(iter(batch.values()))) for batch in batches)

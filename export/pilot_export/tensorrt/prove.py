"""Takes a variant that is made for a GPU as far as this machine can: a plan that runs, or the proof of a build."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pilot_export.errors import TensorRtError
from pilot_export.spec import Batch, ExportSpec
from pilot_export.tensorrt.build import build_plan
from pilot_export.tensorrt.deploy import write_deployment
from pilot_export.tensorrt.library import Library, find_library
from pilot_export.tensorrt.profile import profile_of
from pilot_export.tensorrt.runner import PlanRunner, has_cuda_torch
from pilot_export.verify import Run


@dataclass(frozen=True)
class Proof:
    """`run` answers by the plan on this machine's GPU, one batch at a time; None where nothing can be run.

    `ran_on` names the library and the GPU, "" where `run` is None.
    """

    notes: tuple[str, ...]
    run: Run | None = None
    ran_on: str = ""


def prove(spec: ExportSpec, precision: str, onnx_path: Path, release: str) -> Proof:
    """Write what a GPU box needs, build what can be built here, and say what that proves.

    Raises:
        TensorRtError: TensorRT refuses the graph or its shapes.
    """
    profile = profile_of(spec)
    folder = write_deployment(spec, precision, onnx_path, profile, release)
    ready = f"for a GPU box: {folder}/build_plan.sh, and two model repositories beside it"
    try:
        library = find_library()
    except TensorRtError as error:
        return Proof((f"TensorRT has not seen the graph: {error}", ready))
    # A proof is as large as the model, and nobody loads it: only real plans are kept.
    plan = build_plan(onnx_path, profile, library, keep=not library.is_rtx)
    if library.is_rtx:
        return Proof((_says(library, len(plan.content)), ready))
    notes = (_install(plan.content, folder, spec), ready)
    if not has_cuda_torch():
        return Proof((*notes, "the plan was not run: this torch has no CUDA, with which the variant is judged here"))
    return Proof(notes, _runner(spec, plan.content, library), f"{library.name} on {library.gpu}")


def base_runner(spec: ExportSpec, fp32_path: Path) -> Run:
    """The fp32 graph as a plan on this machine's GPU: what a variant must be faster than.

    TensorRT may compute it in TF32, as it does for who leaves its defaults alone.

    Raises:
        TensorRtError: it cannot be built.
    """
    library = find_library()
    return _runner(spec, build_plan(fp32_path, profile_of(spec), library).content, library)


def _runner(spec: ExportSpec, content: bytes, library: Library) -> Run:
    """The plan, fed with no more rows at once than it was built for."""
    plan = PlanRunner(content, library)

    def run(batch: Batch) -> Batch:
        num_rows = len(next(iter(batch.values())))
        parts = [
            plan({name: array[start : start + spec.max_batch_size] for name, array in batch.items()})
            for start in range(0, num_rows, spec.max_batch_size)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    return run


def _says(library: Library, num_bytes: int) -> str:
    return (
        f"{library.name} parsed the graph and built an engine of {num_bytes / 1e6:.0f} MB for its shapes without a "
        "GPU: a proof, not a file that Triton's tensorrt backend loads"
    )


def _install(content: bytes, folder: Path, spec: ExportSpec) -> str:
    path = folder / "plan" / spec.name / "1" / "model.plan"
    path.write_bytes(content)
    return f"plan of {len(content) / 1e6:.0f} MB for this GPU in {path}"

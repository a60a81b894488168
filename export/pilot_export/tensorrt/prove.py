"""Takes a variant that is made for a GPU as far as this machine can: a plan, or the proof that one can be built."""

from pathlib import Path

from pilot_export.errors import TensorRtError
from pilot_export.spec import ExportSpec
from pilot_export.tensorrt.build import build_plan
from pilot_export.tensorrt.deploy import write_deployment
from pilot_export.tensorrt.library import Library, find_library
from pilot_export.tensorrt.profile import profile_of


def prove(spec: ExportSpec, precision: str, onnx_path: Path, release: str) -> tuple[str, ...]:
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
        return (f"TensorRT has not seen the graph: {error}", ready)
    # A proof is as large as the model, and nobody loads it: only real plans are kept.
    plan = build_plan(onnx_path, profile, library, keep=not library.is_rtx)
    return (
        (_says(library, len(plan.content)), ready) if library.is_rtx else (_install(plan.content, folder, spec), ready)
    )


def _says(library: Library, num_bytes: int) -> str:
    return (
        f"{library.name} parsed the graph and built an engine of {num_bytes / 1e6:.0f} MB for its shapes without a "
        "GPU: a proof, not a file that Triton's tensorrt backend loads"
    )


def _install(content: bytes, folder: Path, spec: ExportSpec) -> str:
    path = folder / "plan" / spec.name / "1" / "model.plan"
    path.write_bytes(content)
    return f"plan of {len(content) / 1e6:.0f} MB for this GPU in {path}"

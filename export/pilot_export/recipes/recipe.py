"""What a recipe is: how one precision variant is made from the fp32 graph, and for which runtime."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pilot_export.triton_releases import DEFAULT_RELEASE

if TYPE_CHECKING:
    from pilot_export.spec import Batch, ExportSpec

BASE = "fp32"

# Targets. A variant is judged for speed only on its own target, and never installed for another.
ANY = "any"
ONNXRUNTIME_CPU = "onnxruntime on a CPU"
GPU = "a GPU (TensorRT, or onnxruntime's CUDA provider)"
TENSORRT = "TensorRT on a GPU"


@dataclass(frozen=True)
class Source:
    """What a recipe works from; `scratch` is a folder for its intermediate files, `release` the Triton release that
    will read the file."""

    spec: "ExportSpec"
    fp32_path: Path
    scratch: Path
    release: str = DEFAULT_RELEASE


@dataclass(frozen=True)
class Made:
    """What a recipe found: `notes` for a person, the nodes that it left in fp32, the data that it took ranges from."""

    notes: tuple[str, ...] = ()
    kept_in_fp32: tuple[str, ...] = ()
    ranges_from: "Sequence[Batch] | None" = None


@dataclass(frozen=True)
class Recipe:
    """`make(source, path)` writes the variant to `path` and returns what it found on the way.

    Args:
        is_exact: in the precision of the original, so that only rounding may differ.
        needs_calibration: takes the ranges of activations from the spec's calibration data.
        stand_in: `stand_in(path, twin_path)` writes a graph for a CPU that rounds as the variant does on its target;
            None where the variant itself runs on a CPU.
        proof: what the comparison on a CPU proves about the target, where it is not the target itself.
    """

    precision: str
    target: str
    method: str
    make: Callable[[Source, Path], Made] | None
    is_exact: bool = False
    needs_calibration: bool = False
    stand_in: Callable[[Path, Path], None] | None = field(default=None)
    proof: str = ""


def file_name(precision: str) -> str:
    """The file of a variant in a version folder, chosen by `default_model_filename`."""
    return f"model.{precision}.onnx"

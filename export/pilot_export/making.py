"""Makes the variants in the build folder: the original loaded and traced, each recipe run, what TensorRT says of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilot_export.errors import SpecError, TensorRtError, TraceError, VariantError
from pilot_export.manifest import manifest_name
from pilot_export.onnx_files import is_split, remove
from pilot_export.onnx_original import OnnxOriginal
from pilot_export.recipes import BASE, GPU, TENSORRT, Made, Recipe, Source, file_name
from pilot_export.spec import ExportSpec
from pilot_export.steps import Steps
from pilot_export.tensorrt.prove import Proof, prove
from pilot_export.trace import check_valid, trace_to_onnx

# Intermediate graphs, each as large as the model; gone when all is judged.
SCRATCH = "scratch"
# How protobuf, onnx and onnxruntime say that a message is over its limit.
_TOO_LARGE = re.compile(r"2 ?GB|2 ?GiB|2147483647|exceed\w* maximum protobuf|[Ff]ailed to serialize")


@dataclass(frozen=True)
class Variant:
    """A file in the build folder. `proof` is TensorRT's, None for what is not made for it."""

    recipe: Recipe
    path: Path
    made: Made = field(default_factory=Made)
    proof: Proof | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.made.notes, *(() if self.proof is None else self.proof.notes))


def load_original(spec: ExportSpec) -> Any:
    """The module in eval mode, or the ONNX file that stands for one.

    Raises:
        SpecError: load_module() fails, or gives something else.
    """
    import torch

    try:
        module = spec.load_module()
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"load_module() failed: {type(error).__name__}: {error}") from error
    if isinstance(module, OnnxOriginal):
        return module
    if not isinstance(module, torch.nn.Module):
        raise SpecError(f"load_module() returned {type(module).__name__}, not a torch.nn.Module")
    return module.eval()


def make_variants(
    spec: ExportSpec, module: Any, chosen: Sequence[Recipe], build_dir: Path, steps: Steps, release: str
) -> tuple[dict[str, Variant], dict[str, str]]:
    """The variants by precision, and why others could not be made.

    Raises:
        TraceError: there is no fp32 graph to make them of.
    """
    not_made: dict[str, str] = {}
    fp32_path = build_dir / file_name(BASE)
    with steps.run("trace", "Tracing it to an ONNX graph"):
        trace_to_onnx(spec, module, fp32_path, release=release)
    scratch = build_dir / SCRATCH
    scratch.mkdir(exist_ok=True)
    made: dict[str, Variant] = {}
    for recipe in chosen:
        path = build_dir / file_name(recipe.precision)
        (build_dir / manifest_name(recipe.precision)).unlink(missing_ok=True)  # of an earlier export
        if recipe.make is None:
            made[recipe.precision] = Variant(recipe, path)
            continue
        try:
            with steps.run(f"make-{recipe.precision}", f"Making {recipe.precision}: {recipe.method}"):
                found = make_variant(recipe, Source(spec, fp32_path, scratch, release), path)
            proof = None
            if recipe.target in (GPU, TENSORRT):
                with steps.run(f"tensorrt-{recipe.precision}", f"Having TensorRT build {recipe.precision}"):
                    proof = prove(spec, recipe.precision, path, release)
            made[recipe.precision] = Variant(recipe, path, found, proof)
        except (TensorRtError, VariantError) as error:
            not_made[recipe.precision] = str(error)
    return made, not_made


def make_variant(recipe: Recipe, source: Source, path: Path) -> Made:
    """Write the variant of `recipe` to `path`.

    Raises:
        VariantError: the library that makes it failed, or what it made is not valid ONNX.
    """
    if recipe.make is None:
        raise VariantError(f"{recipe.precision} is the traced graph itself")
    remove(path)
    try:
        found = recipe.make(source, path)
        check_valid(path)
    except OSError:
        raise
    except TraceError as error:
        raise VariantError(f"{recipe.precision}: {error}") from error
    except Exception as error:
        if is_split(source.fp32_path) and _TOO_LARGE.search(str(error)):
            raise VariantError(
                f"{recipe.precision}: graph over 2 GB: {error}. What makes it keeps all weights in one message, which "
                "ends there: serve fp32 or fp16, or make the model smaller or two models"
            ) from error
        raise VariantError(f"{recipe.precision} cannot be made: {type(error).__name__}: {error}") from error
    return found

"""What a person says about a model so that it can be exported and judged.

A spec is a Python function without arguments that returns an ExportSpec; `load_spec` finds it. It costs little to
read: the module itself is loaded later, by `load_module`.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pilot_export.errors import SpecError

if TYPE_CHECKING:
    import torch

    from pilot_export.measures import Share
    from pilot_export.onnx_original import OnnxOriginal

# One batch: tensors by name, rows along axis 0.
Batch = Mapping[str, NDArray[Any]]

# The samples that TritonPilot ships: name -> module:function.
SAMPLES = {
    "minilm": "pilot_export.samples.minilm:spec",
    "efficientnet": "pilot_export.samples.efficientnet:spec",
    "crepe": "pilot_export.samples.crepe:spec",
}
DEFAULT_FUNCTION = "spec"


@dataclass(frozen=True)
class Task:
    """The model's own task, right or wrong row by row.

    `fit` gets the original's outputs for `fit_batches` (empty where nothing is fitted) and returns the judge: a
    function from the outputs for the spec's `evaluation` to one bool a row, in the order of the rows.
    """

    name: str
    fit: Callable[[Sequence[Batch]], Callable[[Sequence[Batch]], NDArray[np.bool_]]]
    fit_batches: Sequence[Batch] = ()


@dataclass(frozen=True)
class Thresholds:
    """What a variant must keep, against the original in PyTorch. None is not asked.

    `min_mean_cosine`: mean over the rows of the cosine between the two first outputs.
    `min_confident_agreement`: share of rows with the same largest logit, where the original's probability is over 0.5.
    `max_task_drop`: the upper end of the 95% interval of the loss in the task's own metric, 0.015 = 1.5 points.
    `min_speedup`: rows/s over those of fp32, judged only on the hardware that the variant is made for.
    """

    min_mean_cosine: float | None = None
    min_confident_agreement: float | None = None
    max_task_drop: float = 0.015
    min_speedup: float = 1.05


ENCODER = Thresholds(min_mean_cosine=0.98)
CLASSIFIER = Thresholds(min_confident_agreement=0.98)


@dataclass(frozen=True)
class ExportSpec:
    """A model, the shapes it takes, and the real data that judges its variants.

    Axis 0 of every input and output is the batch; `free_axes` names the other axes that may change between requests.

    Args:
        name: the model's folder in the repository.
        load_module: gives the module in eval mode; its forward takes the inputs by name, returns a tensor or a tuple.
            An OnnxOriginal where there is no module but an ONNX file.
        example: one batch of at least 2 rows to trace with (with 1 row the batch axis would be baked in).
        outputs: names of the outputs, in the order of forward's tuple.
        evaluation: batches of real inputs, of several sizes and of several lengths of each free axis.
        thresholds: ENCODER, CLASSIFIER or your own.
        samples: real inputs of one shape, at least 1 row: what load is made of, and what speed is measured with.
        free_axes: {"input_ids": {1: "sequence"}}; axes with one name have one length.
        task: the model's own task on `evaluation`.
        extra_measures: name -> function of (original's outputs, variant's outputs) over `evaluation`, reported only; a
            number, or a share of rows with its interval (measures.share).
        edge_cases: name -> batch on which every variant must stay finite, as a fully masked row.
        max_batch_size: rows that one request or one dynamic batch may have.
        assets: file name -> file that clients need (a tokeniser), installed beside the model.
        calibration: batches of real inputs, none of them in `evaluation`, from which static quantisation takes the
            ranges of activations; at least 100 rows, or the static recipes are not made.
        precisions: what an export makes besides fp32 unless it is told otherwise, names of `recipes.RECIPES`.
        labels: output -> the name of each of its classes, installed for Triton's classification extension.
        config_extra: fields of config.pbtxt in text form (`dynamic_batching { }`, `model_warmup`), which join those
            that the graph gives. Only for the first config.pbtxt; a field given here replaces the default one.
        source, source_options: what the command line named; set by who loads the spec.
    """

    name: str
    load_module: Callable[[], "torch.nn.Module | OnnxOriginal"]
    example: Batch
    outputs: tuple[str, ...]
    evaluation: Sequence[Batch]
    thresholds: Thresholds
    samples: dict[str, NDArray[Any]]
    free_axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    task: Task | None = None
    extra_measures: Mapping[str, Callable[[Sequence[Batch], Sequence[Batch]], "float | Share"]] = field(
        default_factory=dict
    )
    edge_cases: Mapping[str, Batch] = field(default_factory=dict)
    max_batch_size: int = 32
    assets: Mapping[str, Path] = field(default_factory=dict)
    calibration: Sequence[Batch] = ()
    precisions: tuple[str, ...] = ("int8",)
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    config_extra: str = ""
    source: str = ""
    source_options: tuple[str, ...] = ()


def load_spec(name_or_path: str) -> ExportSpec:
    """The spec called `name_or_path`: a sample ("minilm"), "module:function", or "file.py[:function]".

    Raises:
        SpecError: nothing there, the function fails, or the spec lacks something.
    """
    where, function_name = _split(SAMPLES.get(name_or_path, name_or_path))
    module = _import_file(Path(where)) if where.endswith(".py") else _import_module(where, name_or_path)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise SpecError(f"{where} has no function {function_name!r}; name it as in {where}:FUNCTION")
    try:
        spec = function()
    except SpecError:
        raise
    except (Exception, SystemExit) as error:
        raise SpecError(f"{where}:{function_name}() failed: {_what(error)}") from error
    if not isinstance(spec, ExportSpec):
        raise SpecError(f"{where}:{function_name}() returned {type(spec).__name__}, not pilot_export.ExportSpec")
    from pilot_export.spec_check import check_spec

    check_spec(spec)
    return replace(spec, source=name_or_path)


def _what(error: BaseException) -> str:
    """On one line, as the message of an error is printed."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _split(name: str) -> tuple[str, str]:
    where, separator, function = name.rpartition(":")
    return (where, function) if separator else (name, DEFAULT_FUNCTION)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise SpecError(f"no file {path}")
    module_spec = importlib.util.spec_from_file_location(f"_tritonpilot_spec_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise SpecError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(module_spec)
    # Dataclasses and torch.export look their module up by name.
    sys.modules[module_spec.name] = module
    # A spec may import its neighbours, as a script may.
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # A spec that is a script too may end itself.
        raise SpecError(f"{path} cannot be imported: {_what(error)}") from error
    finally:
        sys.path.remove(folder)
    return module


def _import_module(where: str, asked: str) -> ModuleType:
    try:
        return importlib.import_module(where)
    except (Exception, SystemExit) as error:
        raise SpecError(
            f"{asked!r} is neither a sample ({', '.join(SAMPLES)}), nor file.py[:function], nor a module that can be "
            f"imported ({_what(error)})"
        ) from error

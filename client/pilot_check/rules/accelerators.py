"""`optimization.execution_accelerators` of the onnxruntime backend: names, the options of TensorRT, what it costs."""

import re
from collections.abc import Iterator
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from pilot_check.backends import ACCELERATORS, TENSORRT_PARAMETERS, TENSORRT_PRECISION_MODES
from pilot_check.finding import Finding
from pilot_check.graph import Graph
from pilot_check.model import Model, Surroundings

GPU_FIELD = "gpu_execution_accelerator"
_PLACE = ("optimization", "execution_accelerators")
_SHAPES = re.compile(r"[^:,]+:\d+(x\d+)*(,[^:,]+:\d+(x\d+)*)*")
_PROFILE = ("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes")
_NUMBERS = (
    "max_workspace_size_bytes",
    "trt_max_partition_iterations",
    "trt_min_subgraph_size",
    "trt_auxiliary_streams",
)
_TRUE, _FALSE = ("1", "true", "True"), ("0", "false", "False")


def check_accelerators(model: Model, surroundings: Surroundings) -> Iterator[Finding]:
    if model.backend != "onnxruntime":
        return
    for field, names in ACCELERATORS.items():
        entries = getattr(model.config.optimization.execution_accelerators, field)
        for index, entry in enumerate(entries):
            place = (*_PLACE, field, index)
            if entry.name not in names:
                yield model.error(
                    "accelerator-unknown",
                    f"{field} {entry.name!r} is not known to the onnxruntime backend",
                    f"one of {', '.join(names)}",
                    *place,
                )
            elif entry.name == "tensorrt":
                yield from _check_values(model, dict(entry.parameters), place)
                yield from _check_profile(model, dict(entry.parameters), place)
                yield from _check_cost(model, dict(entry.parameters), surroundings, place)


def _check_values(model: Model, given: dict[str, str], place: tuple[Any, ...]) -> Iterator[Finding]:
    for key, value in given.items():
        if key not in TENSORRT_PARAMETERS:
            message = f"parameter {key!r} of the tensorrt accelerator is not known"
            yield model.error("accelerator-parameter", message, f"one of {', '.join(TENSORRT_PARAMETERS)}", *place)
        elif key == "precision_mode" and value not in TENSORRT_PRECISION_MODES:
            message = f"precision_mode is {value!r}"
            yield model.error("accelerator-value", message, f"one of {', '.join(TENSORRT_PRECISION_MODES)}", *place)
        elif key in _NUMBERS and not value.isdecimal():
            yield model.error("accelerator-value", f"{key} is {value!r}", "a whole number, as 1073741824", *place)
        elif key.endswith("_enable") and value not in (*_TRUE, *_FALSE):
            yield model.error("accelerator-value", f"{key} is {value!r}", "true or false", *place)


def _check_profile(model: Model, given: dict[str, str], place: tuple[Any, ...]) -> Iterator[Finding]:
    there = [key for key in _PROFILE if key in given]
    if not there:
        return
    if missing := [key for key in _PROFILE if key not in given]:
        message = f"{there[0]} is given without {', '.join(missing)}: onnxruntime takes all three or none"
        yield model.error("accelerator-profile", message, "give all three, or leave them out", *place)
        return
    mend = 'as "input_ids:1x16,attention_mask:1x16"'
    if wrong := [key for key in _PROFILE if not _SHAPES.fullmatch(given[key])]:
        yield model.error("accelerator-profile", f"{wrong[0]} is {given[wrong[0]]!r}", mend, *place)
        return
    low, usual, high = (_shapes(given[key]) for key in _PROFILE)
    for name in {*low, *usual, *high}:
        sizes = [low.get(name, ()), usual.get(name, ()), high.get(name, ())]
        if len({len(size) for size in sizes}) > 1 or not sizes[0]:
            message = f"the profile of {name!r} has not the same number of axes three times"
            yield model.error("accelerator-profile", message, mend, *place)
        elif not all(a <= b <= c for a, b, c in zip(*sizes, strict=True)):
            message = (
                f"the profile of {name!r} is not min <= opt <= max: {', '.join(str(list(size)) for size in sizes)}"
            )
            yield model.error("accelerator-profile", message, "put them in order", *place)
        elif model.config.max_batch_size > high[name][0]:
            message = f"the profile of {name!r} ends at {high[name][0]} rows, max_batch_size is "
            message += f"{model.config.max_batch_size}: larger batches build another engine while clients wait"
            yield model.warning("accelerator-profile", message, f"{model.config.max_batch_size} rows in max", *place)
    if isinstance(graph := model.graph, Graph) and (unknown := sorted({*high} - {*graph.inputs})):
        message = f"the profile names {unknown[0]!r}, which is no input of the graph"
        yield model.error("accelerator-profile", message, f"one of {', '.join(graph.inputs)}", *place)


def _check_cost(
    model: Model, given: dict[str, str], surroundings: Surroundings, place: tuple[Any, ...]
) -> Iterator[Finding]:
    groups = model.config.instance_group
    if surroundings.num_gpus == 0 or (groups and all(group.kind == ModelInstanceGroup.KIND_CPU for group in groups)):
        message = "the tensorrt accelerator has no effect: this model's instances run on the CPU"
        yield model.note(
            "accelerator-idle", message, "serve it where there is a GPU, with KIND_AUTO or KIND_GPU", *place
        )
    if given.get("trt_engine_cache_enable") not in _TRUE:
        message = "without an engine cache every start of the server builds the engine anew, which takes minutes"
        yield model.warning(
            "accelerator-cache", message, "trt_engine_cache_enable: true, and trt_engine_cache_path", *place
        )
    elif not given.get("trt_engine_cache_path"):
        message = "engines are kept in the folder where the server was started"
        yield model.warning("accelerator-cache", message, "trt_engine_cache_path: a folder that stays", *place)
    graph = model.graph
    if not isinstance(graph, Graph):
        return
    if foreign := sorted(name for name in graph.operators if name.startswith("com.microsoft.")):
        message = f"the graph has {', '.join(foreign)}, which TensorRT does not take: they run apart from it, on CUDA"
        yield model.warning("accelerator-graph", message, "serve a variant that was not optimised offline", *place)
    if (
        given.get("precision_mode") == "INT8"
        and "QuantizeLinear" not in graph.operators
        and "DequantizeLinear" not in graph.operators
        and "int8_calibration_table_name" not in given
    ):
        message = "precision_mode is INT8, but the graph has no QuantizeLinear and there is no calibration table"
        yield model.error(
            "accelerator-graph", message, "serve the variant int8-trt of `tritonpilot export model`", *place
        )


def _shapes(text: str) -> dict[str, tuple[int, ...]]:
    parts = (part.rpartition(":") for part in text.split(","))
    return {name: tuple(int(size) for size in sizes.split("x")) for name, _, sizes in parts}

"""The batchers, and policies that do not go together."""

from collections.abc import Iterator
from typing import Any

from tritonclient.grpc.model_config_pb2 import DataType

from pilot_check.finding import Finding
from pilot_check.model import Model, Surroundings

_CORRELATION_TYPES = {"TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING"}
_BOOLEAN_CONTROLS = ("int32_false_true", "fp32_false_true", "bool_false_true")


def check_dynamic_batching(model: Model, _surroundings: Surroundings) -> Iterator[Finding]:
    if not model.config.HasField("dynamic_batching"):
        return
    batching = model.config.dynamic_batching
    yield from _preferred(model, batching.preferred_batch_size, "dynamic_batching")
    # The onnxruntime backend turns 0 into 4 where it may complete the configuration.
    is_completed = model.backend == "onnxruntime" and not (model.config.input and model.config.output)
    if model.config.max_batch_size <= 1 and not is_completed and not _has_queue_policy(batching):
        yield model.warning(
            "batching-idle",
            f"dynamic_batching with max_batch_size {model.config.max_batch_size} never batches",
            "set max_batch_size, or leave dynamic_batching out",
            "dynamic_batching",
        )
    if model.config.model_transaction_policy.decoupled and model.backend in ("python", "inflight"):
        yield model.note(
            "batching-decoupled",
            "dynamic_batching hands a decoupled model several requests at once, but it answers each on its own",
            "leave it out where the model batches by itself",
            "dynamic_batching",
        )


def check_sequence_batching(model: Model, _surroundings: Surroundings) -> Iterator[Finding]:
    if not model.config.HasField("sequence_batching"):
        return
    batching = model.config.sequence_batching
    if batching.HasField("oldest"):
        yield from _preferred(model, batching.oldest.preferred_batch_size, "sequence_batching", "oldest")
    seen: set[str] = set()
    for index, control_input in enumerate(batching.control_input):
        place: tuple[str | int, ...] = ("sequence_batching", "control_input", index)
        if not control_input.name:
            yield model.error("sequence-control", f"control input {index} has no name", "add `name`", *place)
        if control_input.name in seen:
            message = f"control input {control_input.name!r} is listed twice"
            yield model.error("sequence-control", message, "one entry per tensor", *place)
        seen.add(control_input.name)
        for control in control_input.control:
            yield from _check_control(model, control, control_input.name, place)


def check_policies(model: Model, _surroundings: Surroundings) -> Iterator[Finding]:
    config = model.config
    if not config.response_cache.enable:
        return
    for reason, blocked in (
        ("a sequence batcher", config.HasField("sequence_batching")),
        ("a decoupled transaction policy", config.model_transaction_policy.decoupled),
    ):
        if blocked:
            message = f"response_cache does not go with {reason}"
            yield model.error("cache", message, "leave response_cache out", "response_cache")


def _check_control(model: Model, control: Any, name: str, place: tuple[str | int, ...]) -> Iterator[Finding]:
    kind = control.Kind.Name(control.kind)
    values = {field: list(getattr(control, field)) for field in _BOOLEAN_CONTROLS if getattr(control, field)}
    if kind == "CONTROL_SEQUENCE_CORRID":
        data_type = DataType.Name(control.data_type)
        if values or data_type not in _CORRELATION_TYPES:
            message = f"{kind} of {name!r} has data_type {data_type}" + (f" and {next(iter(values))}" if values else "")
            mend = f"data_type only, one of {', '.join(sorted(_CORRELATION_TYPES))}"
            yield model.error("sequence-control", message, mend, *place)
    elif len(values) != 1 or any(len(pair) != 2 for pair in values.values()):
        message = f"{kind} of {name!r} has {values or 'no values'}"
        mend = f"one of {', '.join(_BOOLEAN_CONTROLS)} with two values, false first"
        yield model.error("sequence-control", message, mend, *place)


def _preferred(model: Model, sizes: Any, *path: str) -> Iterator[Finding]:
    for index, size in enumerate(sizes):
        if not 0 < size <= model.config.max_batch_size:
            yield model.error(
                "preferred-batch",
                f"preferred_batch_size {size} is not between 1 and max_batch_size {model.config.max_batch_size}",
                "lower it, or raise max_batch_size",
                *path,
                "preferred_batch_size",
                index,
            )


def _has_queue_policy(batching: Any) -> bool:
    return bool(batching.HasField("default_queue_policy") or batching.priority_levels or batching.priority_queue_policy)

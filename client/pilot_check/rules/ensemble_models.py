"""An ensemble against the models of its steps: that they are there, and that tensors agree across the steps."""

from collections.abc import Iterator
from typing import Any

from tritonclient.grpc.model_config_pb2 import DataType

from pilot_check.finding import Finding
from pilot_check.model import Model, Surroundings

_STEP = ("ensemble_scheduling", "step")
_VARIABLE = -1


def check_ensemble_models(model: Model, surroundings: Surroundings) -> Iterator[Finding]:
    if not model.is_ensemble:
        return
    yield from _check_circle(model, surroundings)
    tensors: dict[str, tuple[Any, Model]] = {}
    for tensor in (*model.config.input, *model.config.output):
        tensors.setdefault(tensor.name, (tensor, model))
    for index, step in enumerate(model.config.ensemble_scheduling.step):
        if not step.model_name or step.model_name in surroundings.unreadable:
            continue
        used = surroundings.models.get(step.model_name)
        if used is None:
            message = f"step {index} uses model {step.model_name!r}, which is not in the repository"
            mend = f"add it, or name one of {', '.join(sorted(surroundings.models))}"
            yield model.error("ensemble-model", message, mend, *_STEP, index, "model_name")
            continue
        if 0 < used.config.max_batch_size < model.config.max_batch_size:
            message = (
                f"max_batch_size is {model.config.max_batch_size}, but {used.name!r} of step {index} takes "
                f"{used.config.max_batch_size}"
            )
            yield model.error("ensemble-batch", message, "lower it to that", "max_batch_size")
        yield from _check_maps(model, index, step, used)
        yield from _check_agreement(model, index, step, used, tensors)


def _check_maps(model: Model, index: int, step: Any, used: Model) -> Iterator[Finding]:
    """The names on the models' side. A model whose tensors are left to the server is not looked into."""
    for role, mapping in (("input", step.input_map), ("output", step.output_map)):
        entries = {tensor.name: tensor for tensor in getattr(used.config, role)}
        if not entries or not mapping:
            continue
        for name in mapping:
            if name not in entries:
                message = f"step {index} maps {role} {name!r}, which {used.name!r} does not have"
                mend = f"one of {', '.join(entries)}"
                yield model.error("ensemble-map", message, mend, *_STEP, index, f"{role}_map")
        if role == "input":
            for name, tensor in entries.items():
                if name not in mapping and not tensor.optional:
                    message = f"step {index} does not map input {name!r} of {used.name!r}"
                    yield model.error("ensemble-map", message, "add it to input_map", *_STEP, index, "input_map")


def _check_agreement(
    model: Model, index: int, step: Any, used: Model, tensors: dict[str, tuple[Any, Model]]
) -> Iterator[Finding]:
    """Type and shape of each ensemble tensor against whoever named it first."""
    for role, mapping in (("input", step.input_map), ("output", step.output_map)):
        entries = {tensor.name: tensor for tensor in getattr(used.config, role)}
        for name, tensor in mapping.items():
            if name not in entries:
                continue
            first, owner = tensors.setdefault(tensor, (entries[name], used))
            if first is entries[name]:
                continue
            place = (*_STEP, index, f"{role}_map")
            what = f"tensor {tensor!r} of step {index}"
            if first.data_type != entries[name].data_type:
                here, there = DataType.Name(entries[name].data_type), DataType.Name(first.data_type)
                message = f"{what} is {here} in {used.name!r} and {there} in {owner.name!r}"
                yield model.error("ensemble-type", message, "make both the same", *place)
            elif not _agree(_sizes(first, owner), _sizes(entries[name], used)):
                here, there = list(entries[name].dims), list(_dims(first, owner))
                message = f"{what} has dims {here} in {used.name!r} and {there} in {owner.name!r}"
                yield model.error("ensemble-dims", message, "make both the same", *place)


def _check_circle(model: Model, surroundings: Surroundings) -> Iterator[Finding]:
    """Ensembles that use each other."""
    reached, pending = set[str](), [model.name]
    while pending:
        used = surroundings.models.get(pending.pop())
        if used is None:
            continue
        for step in used.config.ensemble_scheduling.step:
            if step.model_name == model.name:
                message = "the ensemble uses itself" + (f" by way of {used.name!r}" if used is not model else "")
                yield model.error("ensemble-circle", message, "break the circle", "ensemble_scheduling")
                return
            if step.model_name not in reached:
                reached.add(step.model_name)
                pending.append(step.model_name)


def _dims(tensor: Any, owner: Model) -> tuple[int, ...]:
    # The ensemble's own tensors count as its steps see them, after the reshape.
    is_reshaped = owner.is_ensemble and tensor.HasField("reshape")
    return tuple(tensor.reshape.shape if is_reshaped else tensor.dims)


def _sizes(tensor: Any, owner: Model) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """dims, and dims with the batch in front: a model without a batch may write it as its first dimension."""
    dims = _dims(tensor, owner)
    return dims, ((_VARIABLE, *dims) if owner.config.max_batch_size > 0 else dims)


def _agree(one: tuple[tuple[int, ...], ...], other: tuple[tuple[int, ...], ...]) -> bool:
    return any(
        len(left) == len(right) and all(a == b or _VARIABLE in (a, b) for a, b in zip(left, right, strict=True))
        for left, right in zip(one, other, strict=True)
    )

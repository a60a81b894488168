"""An ensemble by itself: its steps, and the way of its tensors from the inputs to the outputs.

input -> [step 0] -> a -> [step 1] -> output        every tensor is written once, by an input or one step, and read
"""

from collections.abc import Iterator

from pilot_check.finding import Finding
from pilot_check.model import Model, Surroundings

_STEP = ("ensemble_scheduling", "step")


def check_ensemble(model: Model, _surroundings: Surroundings) -> Iterator[Finding]:
    if not model.is_ensemble:
        return
    config = model.config
    if config.platform != "ensemble" or config.backend:
        message = f"an ensemble has platform {config.platform!r} and backend {config.backend!r}"
        place = "backend" if config.backend else "platform"
        yield model.error("ensemble-platform", message, 'platform: "ensemble" and no backend', place)
    for field in ("instance_group", "model_warmup"):
        if getattr(config, field):
            yield model.error("ensemble-field", f"an ensemble takes no {field}", "leave it out", field)
    if config.HasField("optimization"):
        yield model.error("ensemble-field", "an ensemble takes no optimization", "leave it out", "optimization")
    if not config.ensemble_scheduling.step:
        yield model.error("ensemble-steps", "the ensemble has no step", "add ensemble_scheduling { step ... }")
        return
    incomplete = list(_incomplete_steps(model))
    yield from incomplete
    if not incomplete:
        yield from _check_flow(model)


def _incomplete_steps(model: Model) -> Iterator[Finding]:
    for index, step in enumerate(model.config.ensemble_scheduling.step):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                yield model.error(
                    "ensemble-step", f"step {index} has no {field}", f"add {field} to the step", *_STEP, index
                )


def _check_flow(model: Model) -> Iterator[Finding]:
    steps = model.config.ensemble_scheduling.step
    inputs = [tensor.name for tensor in model.config.input]
    outputs = [tensor.name for tensor in model.config.output]
    writers: dict[str, int] = {}
    for index, step in enumerate(steps):
        for tensor in step.output_map.values():
            if tensor in writers or tensor in inputs:
                other = "an input of the ensemble" if tensor in inputs else f"step {writers[tensor]}"
                message = f"tensor {tensor!r} is written by step {index}, and also by {other}"
                yield model.error("ensemble-twice", message, "give it another name", *_STEP, index, "output_map")
            writers.setdefault(tensor, index)
    readers = {tensor for step in steps for tensor in step.input_map.values()}
    for index, name in enumerate(inputs):
        if name not in readers:
            message = f"input {name!r} is read by no step"
            yield model.error("ensemble-unused", message, "map it in a step, or leave it out", "input", index, "name")
    for index, name in enumerate(outputs):
        if name not in writers:
            message = f"output {name!r} is written by no step"
            yield model.error("ensemble-output", message, "map it from a step's output", "output", index, "name")
    for tensor, index in writers.items():
        if tensor not in readers and tensor not in outputs:
            message = f"tensor {tensor!r} of step {index} is read by no step and is no output"
            yield model.error("ensemble-unused", message, "leave it out of output_map", *_STEP, index, "output_map")
    for index, step in enumerate(steps):
        for tensor in step.input_map.values():
            if tensor not in writers and tensor not in inputs:
                message = f"tensor {tensor!r} of step {index} is no input of the ensemble, and no step writes it"
                yield model.error("ensemble-source", message, "map it from an input", *_STEP, index, "input_map")
    yield from _check_cycle(model, inputs, writers)


def _check_cycle(model: Model, inputs: list[str], writers: dict[str, int]) -> Iterator[Finding]:
    """Steps that wait for each other: those left when every step that can run has run."""
    steps = model.config.ensemble_scheduling.step
    ready = {*inputs, *(tensor for step in steps for tensor in step.input_map.values() if tensor not in writers)}
    waiting = dict(enumerate(steps))
    while able := [index for index, step in waiting.items() if ready.issuperset(step.input_map.values())]:
        for index in able:
            ready.update(waiting.pop(index).output_map.values())
    if waiting:
        names = ", ".join(f"{index} ({step.model_name})" for index, step in waiting.items())
        message = f"steps {names} wait for each other's outputs"
        yield model.error("ensemble-cycle", message, "break the circle", *_STEP, min(waiting), "input_map")

"""Inputs and outputs by themselves: names, types, dims, reshape, and how they go with max_batch_size."""

from collections.abc import Iterator, Sequence
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelInput

from pilot_check.finding import Finding
from pilot_check.model import Model, Surroundings

VARIABLE = -1


def check_tensors(model: Model, _surroundings: Surroundings) -> Iterator[Finding]:
    """Model by model what ValidateIOShape of Triton's core refuses."""
    for role in ("input", "output"):
        for index, tensor in enumerate(getattr(model.config, role)):
            yield from _check_tensor(model, role, index, tensor)
    if model.config.max_batch_size < 0:
        yield model.error(
            "batch-size", f"max_batch_size is {model.config.max_batch_size}", "0 or more", "max_batch_size"
        )


def _check_tensor(model: Model, role: str, index: int, tensor: Any) -> Iterator[Finding]:
    name = f"{role} {tensor.name!r}"
    if not tensor.name:
        yield model.error("tensor-name", f"{role} {index} has no name", "add `name`", role, index)
    if not tensor.data_type:
        yield model.error("tensor-type", f"{name} has no data_type", "add `data_type: TYPE_...`", role, index)
    if not tensor.dims:
        mend = "add `dims`; a scalar is [ 1 ]"
        yield model.error("tensor-dims", f"{name} has no dims", mend, role, index)
        return
    for field, sizes in (("dims", tensor.dims), ("reshape", tensor.reshape.shape)):
        if any(size < 1 and size != VARIABLE for size in sizes):
            message = f"{name} has {field} {list(sizes)}"
            yield model.error("tensor-dims", message, "sizes of 1 and more, or -1 for variable", role, index, field)
            return
    if role == "input" and tensor.format and len(tensor.dims) != 3:
        message = f"{name} is {ModelInput.Format.Name(tensor.format)}, but has {len(tensor.dims)} dims"
        yield model.error("tensor-format", message, "three dims, or leave `format` out", role, index, "format")
    if not tensor.HasField("reshape"):
        return
    shape = list(tensor.reshape.shape)
    if not shape and model.config.max_batch_size == 0:
        message = f"{name} is reshaped to a scalar, which needs max_batch_size > 0"
        yield model.error("reshape", message, "leave `reshape` out: dims [ 1 ] is a scalar", role, index, "reshape")
    elif _sizes_between_variables(tensor.dims) != _sizes_between_variables(shape):
        message = f"{name} has another number of elements in reshape {shape} than in dims {list(tensor.dims)}"
        yield model.error("reshape", message, "make both sizes equal", role, index, "reshape")


def check_batching(model: Model, _surroundings: Surroundings) -> Iterator[Finding]:
    """A batch dimension that is written as a dimension of the tensor, or the other way round."""
    config = model.config
    if model.is_ensemble or not (config.input and config.output):
        return
    tensors = [*config.input, *config.output]
    # With one variable dimension alone it may as well be a list, such as the text of an LLM.
    starts_variable = all(len(tensor.dims) > 1 and tensor.dims[0] == VARIABLE for tensor in tensors)
    if not starts_variable:
        return
    if config.max_batch_size > 0:
        # With a graph at hand, rules/onnx_graph.py knows for certain.
        if model.graph is None:
            yield model.warning(
                "batch-repeated",
                "every tensor begins with -1 although max_batch_size > 0 adds the batch in front of dims",
                "remove the leading -1, unless each request really has a variable dimension of its own",
                *("input", 0, "dims"),
            )
    elif not config.model_transaction_policy.decoupled:
        yield model.warning(
            "batch-unused",
            "max_batch_size is 0, so requests are never batched, although every tensor begins with -1",
            "set max_batch_size, and leave the first -1 out of dims",
            "max_batch_size" if model.source.has("max_batch_size") else "input",
        )


def _sizes_between_variables(dims: Sequence[int]) -> list[int]:
    """[2, 4, -1, 6] as [8, 6]: the element counts that a reshape must keep."""
    counts = [1]
    for size in dims:
        if size == VARIABLE:
            counts.append(1)
        else:
            counts[-1] *= size
    return counts

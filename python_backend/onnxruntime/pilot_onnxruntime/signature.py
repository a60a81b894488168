"""What a graph takes and gives, and whether a model configuration agrees with it.

The rules are those of Triton's C++ backend. With max_batch_size > 0 every tensor's first dimension belongs to the
batch: it must be variable in the graph, and `dims` leaves it out. An input's `dims` may be narrower than the graph's,
an output's must be equal:

    graph            max_batch_size    dims in config.pbtxt
    [batch, 3, 8]    4                 [3, 8]
    [batch]          4                 [1] with reshape { shape: [] }
    [-1, 8]          0                 [-1, 8]; for an input also [5, 8]
    []               0                 [1]
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pilot_onnxruntime.errors import LoadError

# The element types of onnxruntime that Triton has, and that this server's Python backend can hand over.
TRITON_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}
VARIABLE = -1


class GraphTensor(Protocol):
    """An onnxruntime.NodeArg. `shape` holds an int, or a name or None where the dimension is variable."""

    name: str
    type: str
    shape: Sequence[Any]


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the graph; `dims` includes the batch, VARIABLE where the graph fixes no size."""

    name: str
    triton_type: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Signature:
    """All tensors of a graph. `optional_inputs` have a default value in the graph (overridable initialisers)."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    optional_inputs: tuple[TensorSpec, ...] = ()

    @property
    def can_batch(self) -> bool:
        """Whether every tensor has a variable first dimension."""
        return all(spec.dims and spec.dims[0] == VARIABLE for spec in (*self.inputs, *self.outputs))


def tensor_specs(tensors: Iterable[GraphTensor], role: str) -> tuple[TensorSpec, ...]:
    """The tensors of a session in Triton's words.

    Raises:
        LoadError: a type that Triton's tensors cannot carry.
    """
    specs = []
    for tensor in tensors:
        if tensor.type not in TRITON_TYPES:
            raise LoadError(
                f"{role} {tensor.name!r} of the graph is a {tensor.type}, which this backend cannot carry. "
                f"End the graph in a Cast to one of {', '.join(TRITON_TYPES)}"
            )
        dims = tuple(size if isinstance(size, int) and size >= 0 else VARIABLE for size in tensor.shape)
        specs.append(TensorSpec(tensor.name, TRITON_TYPES[tensor.type], dims))
    return tuple(specs)


def check_config(config: Mapping[str, Any], signature: Signature) -> None:
    """Compare every tensor of the configuration with the graph.

    Raises:
        LoadError: names the tensor, what the configuration says and what the graph says.
    """
    _refuse_what_is_not_served(config)
    is_batched = config["max_batch_size"] > 0
    offered = {spec.name: spec for spec in signature.inputs}
    optional = {spec.name: spec for spec in signature.optional_inputs}
    for entry in config["input"]:
        _check_optional(entry, offered, is_batched)
        spec = _find("input", entry, offered | optional)
        _check_tensor("input", entry, spec, is_batched, is_exact=False)
    controls = {control["name"] for control in config.get("sequence_batching", {}).get("control_input", ())}
    named = {entry["name"] for entry in config["input"]} | controls
    if missing := [name for name in offered if name not in named]:
        raise LoadError(
            f"the graph needs input {missing[0]!r}, which config.pbtxt does not list. "
            f"Its inputs are {_listed(signature.inputs)}"
        )
    if unknown := sorted(controls - set(offered)):
        raise LoadError(
            f"sequence_batching.control_input {unknown[0]!r} is not an input of the graph. "
            f"Its inputs are {_listed(signature.inputs)}"
        )
    results = {spec.name: spec for spec in signature.outputs}
    for entry in config["output"]:
        _check_tensor("output", entry, _find("output", entry, results), is_batched, is_exact=True)


def _refuse_what_is_not_served(config: Mapping[str, Any]) -> None:
    for field in ("batch_input", "batch_output"):
        if config.get(field):
            raise LoadError(f"{field} is served by Triton's C++ backend only. Compute it in the graph instead")
    if ragged := [entry["name"] for entry in config["input"] if entry.get("allow_ragged_batch")]:
        raise LoadError(
            f"input {ragged[0]!r} says allow_ragged_batch, which is served by Triton's C++ backend only. "
            "Remove it: requests of unequal shapes are then run one shape at a time"
        )
    if config.get("sequence_batching", {}).get("state"):
        raise LoadError(
            "sequence_batching.state is served by Triton's C++ backend only: this server hands no implicit state "
            "to a Python-based backend. Make the state an output and an input that the client carries"
        )
    if config.get("model_transaction_policy", {}).get("decoupled"):
        raise LoadError("model_transaction_policy says decoupled, but a graph gives exactly one response. Remove it")


def _check_optional(entry: Mapping[str, Any], required: Mapping[str, TensorSpec], is_batched: bool) -> None:
    if not entry.get("optional"):
        return
    if is_batched:
        raise LoadError(f"input {entry['name']!r} is optional, which needs max_batch_size: 0")
    if entry["name"] in required:
        raise LoadError(
            f"input {entry['name']!r} is optional in config.pbtxt, but the graph has no default value for it. "
            "Add an initializer of that name to the graph, or remove `optional`"
        )


def _find(role: str, entry: Mapping[str, Any], specs: Mapping[str, TensorSpec]) -> TensorSpec:
    if entry["name"] not in specs:
        raise LoadError(
            f"{role} {entry['name']!r} of config.pbtxt is not in the graph. Its {role}s are {_listed(specs.values())}"
        )
    return specs[entry["name"]]


def _check_tensor(role: str, entry: Mapping[str, Any], spec: TensorSpec, is_batched: bool, *, is_exact: bool) -> None:
    name = f"{role} {spec.name!r}"
    if entry["data_type"] != spec.triton_type:
        raise LoadError(f"{name}: config.pbtxt says {entry['data_type']}, the graph says {spec.triton_type}")
    # The server reshapes between the wire and the backend, so the graph sees the reshaped form.
    dims = [int(size) for size in (entry["reshape"].get("shape", ()) if "reshape" in entry else entry["dims"])]
    if not is_batched and not spec.dims:
        # Triton's tensors have at least one dimension, so a scalar is [1] on the wire.
        if any(size != 1 for size in dims):
            raise LoadError(f"{name} is a scalar in the graph: config.pbtxt must say dims: [ 1 ], not {dims}")
        return
    if is_batched and (not spec.dims or spec.dims[0] != VARIABLE):
        raise LoadError(
            f"{name}: max_batch_size > 0 needs a variable first dimension in the graph, which has {list(spec.dims)}. "
            "Export it with a dynamic batch, or set max_batch_size: 0 and write the whole shape as dims"
        )
    graph_dims = list(spec.dims[1:] if is_batched else spec.dims)
    agrees = len(dims) == len(graph_dims) and all(
        size == graph_size or (graph_size == VARIABLE and not is_exact)
        for size, graph_size in zip(dims, graph_dims, strict=True)
    )
    if not agrees:
        without = " (without the batch)" if is_batched else ""
        raise LoadError(f"{name}: config.pbtxt says dims {dims}, the graph says {graph_dims}{without}")


def _listed(specs: Iterable[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {spec.triton_type} {list(spec.dims)}" for spec in specs) or "none"

"""Tensor types of Triton and torch, and the configuration that a torch.export package asks for."""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

import torch

from pilot_torch.errors import LoadError

TORCH_TYPES = {
    "TYPE_BOOL": torch.bool,
    "TYPE_UINT8": torch.uint8,
    "TYPE_INT8": torch.int8,
    "TYPE_INT16": torch.int16,
    "TYPE_INT32": torch.int32,
    "TYPE_INT64": torch.int64,
    "TYPE_FP16": torch.float16,
    "TYPE_BF16": torch.bfloat16,
    "TYPE_FP32": torch.float32,
    "TYPE_FP64": torch.float64,
}
_TRITON_TYPES = {torch_type: name for name, torch_type in TORCH_TYPES.items()}
# What Triton's C++ backends take where a configuration leaves it out.
DEFAULT_MAX_BATCH_SIZE = 4


def check_types(config: Mapping[str, Any], *, has_preprocess: bool, has_postprocess: bool) -> None:
    """
    Raises:
        LoadError: a tensor that no module can take or give, and no function turns into one.
    """
    for role, can_be_any in (("input", has_preprocess), ("output", has_postprocess)):
        if not config.get(role):
            raise LoadError(f"config.pbtxt lists no {role}: it can be left out for a package (.pt2) only")
        for entry in config[role]:
            if entry["data_type"] not in TORCH_TYPES and not can_be_any:
                raise LoadError(
                    f"{role} {entry['name']!r} is {entry['data_type']}, which torch modules do not have: "
                    f"set `{'preprocess' if role == 'input' else 'postprocess'}`"
                )
    if config.get("model_transaction_policy", {}).get("decoupled"):
        raise LoadError("model_transaction_policy says decoupled, but a module gives exactly one response. Remove it")


def complete(config: MutableMapping[str, Any], program: torch.export.ExportedProgram) -> None:
    """Write what `config` leaves out (inputs, outputs, batching) from the package, in place.

    Raises:
        LoadError: a tensor type that Triton does not have.
    """
    inputs, outputs = _tensors(program)
    is_batchable = all(dims and dims[0] == -1 for _, _, dims in (*inputs, *outputs))
    if is_batchable and not config.get("max_batch_size"):
        config["max_batch_size"] = DEFAULT_MAX_BATCH_SIZE
        if "sequence_batching" not in config:
            config.setdefault("dynamic_batching", {})
    skip = 1 if config.get("max_batch_size") else 0
    for role, tensors in (("input", inputs), ("output", outputs)):
        if not config.get(role):
            config[role] = [{"name": n, "data_type": t, "dims": dims[skip:] or [1]} for n, t, dims in tensors]


def _tensors(program: torch.export.ExportedProgram) -> tuple[list[Any], list[Any]]:
    """(name, Triton type, dims with -1 for free axes) of each input and output."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    signature = program.graph_signature
    return _named(signature.user_inputs, values), _named(signature.user_outputs, values)


def _named(names: Iterable[Any], values: Mapping[str, Any]) -> list[Any]:
    found = []
    for name in names:
        value = values.get(str(name))
        if not isinstance(value, torch.Tensor) or value.dtype not in _TRITON_TYPES:
            raise LoadError(f"{name} of the package is no tensor of a type that Triton has: list it in config.pbtxt")
        dims = [size if isinstance(size, int) else -1 for size in value.shape]
        found.append((str(name), _TRITON_TYPES[value.dtype], dims))
    return found

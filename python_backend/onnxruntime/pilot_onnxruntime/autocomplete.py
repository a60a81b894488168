"""Completes a model configuration from the graph, as Triton's C++ backend does it.

Nothing is touched once the configuration lists both inputs and outputs. Otherwise the missing side is written from the
graph; and a graph whose tensors all have a variable first dimension is batched: `max_batch_size` 0 becomes
DEFAULT_MAX_BATCH_SIZE, and above 1 the dynamic batcher is turned on unless a scheduler is chosen.
"""

from collections.abc import Iterable, MutableMapping
from typing import Any

from pilot_onnxruntime.errors import LoadError
from pilot_onnxruntime.signature import Signature, TensorSpec

# What the C++ backend takes unless `--backend-config=onnxruntime,default-max-batch-size` says otherwise. That option
# does not reach a Python-based backend.
DEFAULT_MAX_BATCH_SIZE = 4


def needs_completion(config: MutableMapping[str, Any]) -> bool:
    return not (config.get("input") and config.get("output"))


def complete(config: MutableMapping[str, Any], signature: Signature) -> None:
    """Fill in `config` (Triton's JSON form) in place.

    Raises:
        LoadError: max_batch_size is above 0, but the graph has a fixed batch.
    """
    if signature.can_batch:
        config["max_batch_size"] = config["max_batch_size"] or DEFAULT_MAX_BATCH_SIZE
        if config["max_batch_size"] > 1 and "sequence_batching" not in config:
            config.setdefault("dynamic_batching", {})
    elif config["max_batch_size"] != 0:
        fixed = next(spec for spec in (*signature.inputs, *signature.outputs) if not spec.dims or spec.dims[0] != -1)
        raise LoadError(
            f"max_batch_size is {config['max_batch_size']}, but {fixed.name!r} has shape {list(fixed.dims)} in the "
            "graph: its first dimension is not variable. Export it with a dynamic batch, or set max_batch_size: 0"
        )
    is_batched = config["max_batch_size"] > 0
    if not config.get("input"):
        config["input"] = _entries(signature.inputs, is_batched)
    if not config.get("output"):
        config["output"] = _entries(signature.outputs, is_batched)


def _entries(specs: Iterable[TensorSpec], is_batched: bool) -> list[dict[str, Any]]:
    entries = []
    for spec in specs:
        dims = list(spec.dims[1:] if is_batched else spec.dims)
        entry: dict[str, Any] = {"name": spec.name, "data_type": spec.triton_type, "dims": dims or [1]}
        if is_batched and not dims:
            # `dims` may not be empty: [1] on the wire, nothing in the graph.
            entry["reshape"] = {"shape": []}
        entries.append(entry)
    return entries

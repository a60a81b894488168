"""ONNX files on disk: one file, or a graph with its weights beside it where it grows over 2 GB.

model.fp32.onnx         the graph, and the weights where they fit
model.fp32.onnx.data    the weights, where they do not; the graph names this file, so the two go together
"""

from pathlib import Path
from typing import Any

# A protobuf message ends here.
MAX_GRAPH_BYTES = 2**31 - 1
# What nodes, shapes and small constants may take beside the weights.
GRAPH_ROOM_BYTES = 2**24


def data_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.data")


def files_of(path: Path) -> list[Path]:
    """The graph, and its weights if they lie beside it."""
    beside = data_file(path)
    return [path, beside] if beside.is_file() else [path]


def size_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in files_of(path))


def save(model: Any, path: Path, max_graph_bytes: int = MAX_GRAPH_BYTES) -> None:
    """Write `model` to `path`, with its weights beside it where one file would be too large."""
    import onnx

    beside = data_file(path)
    beside.unlink(missing_ok=True)  # onnx would append to it
    # The message itself cannot be asked for its size once it is over the limit.
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) + GRAPH_ROOM_BYTES <= max_graph_bytes:
        onnx.save(model, str(path))
    else:
        onnx.save(model, str(path), save_as_external_data=True, location=beside.name, size_threshold=1024)

"""ONNX files on disk: one file, or a graph with its weights beside it where it grows over 2 GB.

model.fp32.onnx         the graph, and the weights where they fit
model.fp32.onnx.data    the weights, where they do not; the graph names this file, so the two go together
"""

import tempfile
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


def is_split(path: Path) -> bool:
    """Do its weights lie beside it?"""
    return data_file(path).is_file()


def remove(path: Path) -> None:
    """Both files: whoever writes weights beside a graph appends to those that are there."""
    for file in files_of(path):
        file.unlink(missing_ok=True)


def size_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in files_of(path))


def inputs_of(graph: Any) -> list[Any]:
    """What a request brings: before IR version 4 every weight was listed as an input too."""
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def save(model: Any, path: Path, max_graph_bytes: int | None = None) -> None:
    """Write `model` to `path`, with its weights beside it where one file would be too large (None: MAX_GRAPH_BYTES)."""
    import onnx

    remove(path)
    limit = MAX_GRAPH_BYTES if max_graph_bytes is None else max_graph_bytes
    # The message itself cannot be asked for its size once it is over the limit.
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) + GRAPH_ROOM_BYTES <= limit:
        onnx.save(model, str(path))
    else:
        location = data_file(path).name
        onnx.save(model, str(path), save_as_external_data=True, location=location, size_threshold=1024)


def load_with_shapes(path: Path) -> Any:
    """The model with the shape and type of every value inside; over files, since a message ends at 2 GB."""
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        inferred = Path(folder) / path.name
        onnx.shape_inference.infer_shapes_path(str(path), str(inferred))
        model = onnx.load(str(inferred), load_external_data=False)
    onnx.load_external_data_for_model(model, str(path.parent))
    return model

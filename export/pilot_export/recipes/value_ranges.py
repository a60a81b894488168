"""How large each value inside the graph gets on real data."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pilot_export.onnx_files import load_with_shapes, save

if TYPE_CHECKING:
    from pilot_export.spec import Batch, ExportSpec

MAX_ROWS = 256


def real_batches(spec: "ExportSpec", max_rows: int = MAX_ROWS) -> Iterator["Batch"]:
    """Calibration data where the spec has some, else evaluation data; the edge cases always."""
    yield from spec.edge_cases.values()
    rows = 0
    for batch in spec.calibration or spec.evaluation:
        if rows >= max_rows:
            return
        rows += len(next(iter(batch.values())))
        yield batch


def value_ranges(path: Path, batches: Iterable["Batch"]) -> dict[str, float]:
    """The largest absolute value of every float tensor of the graph; NaN and infinity count as infinity."""
    import numpy as np
    import onnx
    import onnxruntime

    model = load_with_shapes(path)
    floats = {
        value.name: value
        for value in model.graph.value_info
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    }
    given = {value.name for value in model.graph.output}
    names = [name for name in floats if name not in given]
    model.graph.output.extend(floats[name] for name in names)
    largest: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        with_outputs = Path(folder) / "outputs.onnx"
        save(model, with_outputs)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        # Fusions would take values away that an fp16 graph has.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(str(with_outputs), options, providers=["CPUExecutionProvider"])
        all_names = [value.name for value in session.get_outputs()]
        for batch in batches:
            for name, array in zip(all_names, session.run(all_names, dict(batch)), strict=True):
                if array.dtype != np.float32 or not array.size:
                    continue
                peak = float(np.abs(array).max())
                largest[name] = max(largest.get(name, 0.0), peak if np.isfinite(peak) else float("inf"))
    return largest

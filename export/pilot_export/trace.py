"""PyTorch module -> fp32 ONNX graph, with the batch and the other free axes really free."""

import re
from pathlib import Path
from typing import Any

from pilot_export.errors import TraceError
from pilot_export.spec import ExportSpec

# Read by ONNX Runtime 1.17 and later, which every Triton release since 24.03 carries.
OPSET = 20
MAX_GRAPH_BYTES = 2**31 - 1
_FIXED_AXIS = re.compile(r"static shape of (\d+) for dimension inputs\['(\w+)'\]\.shape\[(\d+)\]")


def trace_to_onnx(spec: ExportSpec, module: Any, path: Path) -> None:
    """Write the graph of `module` to `path`, checked.

    Raises:
        TraceError: the module cannot be traced, the graph is not valid ONNX, or an axis was baked in.
    """
    import torch

    tensors = {name: torch.from_numpy(array) for name, array in spec.example.items()}
    # Left to the exporter: it finds the range of each from the graph itself.
    free = torch.export.Dim.DYNAMIC
    shapes = {name: dict.fromkeys((0, *spec.free_axes.get(name, {})), free) for name in tensors}
    try:
        program = torch.onnx.export(
            module,
            (),
            kwargs=tensors,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=list(tensors),
            output_names=list(spec.outputs),
            opset_version=OPSET,
            external_data=False,
            verbose=False,
        )
    except Exception as error:
        raise TraceError(_why(error)) from error
    if program is None:
        raise TraceError("torch.onnx.export returned nothing; the log of the step says more")
    try:
        program.save(str(path))
    except (ValueError, RuntimeError) as error:
        raise TraceError(
            f"the graph cannot be saved in one file ({_first_line(error)}); ONNX files end at 2 GB, larger models need "
            "external data, which is not supported yet"
        ) from error
    check_graph(spec, path)


def check_graph(spec: ExportSpec, path: Path) -> None:
    """Prove that the file is valid ONNX with the spec's inputs, outputs and free axes."""
    import onnx

    if path.stat().st_size > MAX_GRAPH_BYTES:
        raise TraceError(f"the graph has {path.stat().st_size / 1e9:.1f} GB; ONNX files end at 2 GB")
    graph = onnx.load(str(path)).graph
    made = [name for node in graph.node for name in node.output if name]
    # The exporter's own verification does not see this; ONNX Runtime refuses the file later, in the server.
    clashes = sorted({name for name in spec.outputs if made.count(name) > 1})
    if clashes:
        raise TraceError(
            f"output {clashes[0]!r} has the name of a value inside the graph: give it another name in outputs"
        )
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise TraceError(f"the exporter wrote an invalid graph: {_first_line(error)}") from error
    found = {value.name: value for value in graph.input}
    if set(found) != set(spec.example):
        raise TraceError(
            f"the graph has the inputs {sorted(found)}, the spec {sorted(spec.example)}: does forward use all?"
        )
    for name, value in found.items():
        for axis, label in {0: "batch", **spec.free_axes.get(name, {})}.items():
            dim = value.type.tensor_type.shape.dim[axis]
            if not dim.dim_param:
                raise TraceError(
                    f"{label!r} (axis {axis} of {name}) was baked in as {dim.dim_value}: "
                    "forward turns it into a Python number somewhere; keep sizes as x.shape[i] and avoid int(), item()"
                )


def _why(error: Exception) -> str:
    """One line out of the exporter's long report: the innermost cause, with the mend for the usual ones."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and isinstance(cause, Exception):
        causes.append(cause)
    name, line = type(causes[-1]).__name__, _first_line(causes[-1])
    text = " ".join(f"{type(item).__name__} {item}" for item in causes)
    if fixed := _FIXED_AXIS.search(text):
        size, tensor, axis = fixed.groups()
        return (
            f"the module works only with {size} on axis {axis} of {tensor}, which must be free: "
            "make sizes of x.shape[i], and no tensor of a fixed size beside it"
        )
    if "GuardOnDataDependent" in text or "data-dependent" in text or "PendingUnbacked" in text:
        return f"forward decides by a tensor's values, which a graph cannot ({line}); use torch.where or torch.cond"
    if "No decompositions registered" in text or "No ONNX function found" in text or "UnsupportedOperator" in text:
        return f"the exporter does not know an operator of the module ({line}); replace it by plain tensor operations"
    return f"the module cannot be traced: {name}: {line}"


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)

"""PyTorch module -> fp32 ONNX graph, with the batch and the other free axes really free."""

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pilot_export.errors import TraceError
from pilot_export.onnx_files import inputs_of, remove, save
from pilot_export.onnx_original import OnnxOriginal
from pilot_export.spec import ExportSpec
from pilot_export.triton_releases import DEFAULT_RELEASE, check_version, onnx_limit

# Read by ONNX Runtime 1.17 and later, which every Triton release since 24.03 carries; older releases get less.
OPSET = 20
_FIXED_AXIS = re.compile(r"static shape of (\d+) for dimension inputs\['(\w+)'\]\.shape\[(\d+)\]")


def trace_to_onnx(
    spec: ExportSpec,
    module: Any,
    path: Path,
    *,
    release: str = DEFAULT_RELEASE,
    max_graph_bytes: int | None = None,
) -> None:
    """Write the graph of `module` to `path`, checked; its weights lie beside it if it is over `max_graph_bytes`
    (None: what one file can hold).

    Raises:
        TraceError: the module cannot be traced, the graph is not valid ONNX, or an axis was baked in.
    """
    import onnx

    remove(path)
    if isinstance(module, OnnxOriginal):
        model = _load(module.path)
    else:
        model = _export(spec, module, min(OPSET, onnx_limit(release).opset))
        model.ir_version = min(model.ir_version, onnx_limit(release).ir_version)
        _name_outputs(model.graph, spec.outputs)
    try:
        save(model, path, max_graph_bytes)
    except (ValueError, onnx.checker.ValidationError) as error:
        raise TraceError(f"the graph cannot be saved: {_first_line(error)}") from error
    check_graph(spec, path, release)


def _load(path: Path) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return onnx.load(str(path))
    except (DecodeError, OSError, onnx.checker.ValidationError) as error:
        raise TraceError(f"{path} cannot be read as an ONNX file: {_first_line(error)}") from error


def _export(spec: ExportSpec, module: Any, opset: int) -> Any:
    """The graph with outputs named by their place, so that they cannot clash with a value inside."""
    import torch

    tensors = {name: torch.from_numpy(array) for name, array in spec.example.items()}
    axes = {name: (0, *spec.free_axes.get(name, {})) for name in tensors}
    names = [_placeholder(index) for index in range(len(spec.outputs))]
    common: dict[str, Any] = {"input_names": list(tensors), "output_names": names, "opset_version": opset}
    try:
        if isinstance(module, torch.jit.ScriptModule):
            return _export_script(module, tensors, axes, common)
        # Left to the exporter: it finds the range of each from the graph itself.
        shapes = {name: dict.fromkeys(axes[name], torch.export.Dim.DYNAMIC) for name in tensors}
        program = torch.onnx.export(
            module,
            (),
            kwargs=tensors,
            dynamo=True,
            dynamic_shapes=shapes,
            external_data=False,
            verbose=False,
            **common,
        )
    except Exception as error:
        raise TraceError(_why(error)) from error
    if program is None:
        raise TraceError("torch.onnx.export returned nothing; the log of the step says more")
    return program.model_proto


def _export_script(module: Any, tensors: Mapping[str, Any], axes: Mapping[str, Any], common: dict[str, Any]) -> Any:
    """A TorchScript module has no Python for the dynamo exporter to follow: the older exporter reads its graph."""
    import onnx
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.onnx"
        free = {name: {axis: f"{name}_{axis}" if axis else "batch" for axis in axes[name]} for name in tensors}
        free |= {name: {0: "batch"} for name in common["output_names"]}
        torch.onnx.export(module, tuple(tensors.values()), str(path), dynamo=False, dynamic_axes=free, **common)
        return onnx.load(str(path))


def _placeholder(index: int) -> str:
    return f"tritonpilot_output_{index}"


def _name_outputs(graph: Any, names: Sequence[str]) -> None:
    """Give the outputs their names; a value inside that has one of them already gets another."""
    renamed = {name: f"{name}_inner" for name in names}
    renamed |= {_placeholder(index): name for index, name in enumerate(names)}
    for node in graph.node:
        for values in (node.input, node.output):
            for index, value in enumerate(values):
                values[index] = renamed.get(value, value)
    for info in (*graph.value_info, *graph.output, *graph.initializer):
        info.name = renamed.get(info.name, info.name)


def check_graph(spec: ExportSpec, path: Path, release: str = DEFAULT_RELEASE) -> None:
    """Prove that the file is valid ONNX with the spec's inputs, outputs and free axes, and that `release` reads it."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    check_version(max(item.version for item in model.opset_import if item.domain == ""), model.ir_version, release)
    check_valid(path)
    graph = model.graph
    found = {value.name: value for value in inputs_of(graph)}
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


def check_valid(path: Path) -> None:
    """`onnx.checker` on the file, with its shapes.

    Raises:
        TraceError: it is no ONNX file, or an invalid one.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        graph = onnx.load(str(path), load_external_data=False).graph
        # The checker's own words for this do not help anybody.
        made = [name for node in graph.node for name in node.output if name]
        if clashes := sorted({name for name in made if made.count(name) > 1}):
            raise TraceError(f"two nodes of the graph give a value named {clashes[0]!r}: give one of them another name")
        onnx.checker.check_model(str(path), full_check=True)
    except (DecodeError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise TraceError(f"{path.name} is not valid ONNX: {_first_line(error)}") from error


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

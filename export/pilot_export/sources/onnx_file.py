"""An existing ONNX file: its own fp32 answers are the original.

It proves that the variants are as good as the file. It cannot prove that the file is as good as the model that it was
made from: onnx_original.SAYS is in the report.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pilot_export.errors import SpecError, VerifyError
from pilot_export.onnx_files import inputs_of
from pilot_export.onnx_original import OnnxOriginal
from pilot_export.sources.arrays import read_rows, without_what_it_refuses
from pilot_export.sources.given import Given
from pilot_export.sources.naming import model_name
from pilot_export.spec import Batch, ExportSpec

DEFAULT_MAX_BATCH_SIZE = 32


def onnx_spec(path: Path, given: Given) -> ExportSpec:
    """The spec of the file: tensors and free axes from its graph, data from `given`.

    Raises:
        SpecError: no ONNX file, a batch that is not free, or no data.
    """
    graph = _graph(path)
    inputs = inputs_of(graph)
    for value in (*inputs, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if not dims or dims[0].HasField("dim_value"):
            raise SpecError(
                f"{path}: axis 0 of {value.name!r} is {dims[0].dim_value if dims else 'missing'}, it must be free for "
                "the batch: export the file with a dynamic batch"
            )
    free_axes = {value.name: _free(value) for value in inputs}
    max_batch_size = given.max_batch_size or DEFAULT_MAX_BATCH_SIZE
    outputs = tuple(value.name for value in graph.output)
    data = read_rows(given.data, {value.name: _words(value) for value in inputs}, free_axes, outputs[0], max_batch_size)
    return ExportSpec(
        name=model_name(given.name, path),
        load_module=lambda: OnnxOriginal(path),
        example=data.example,
        outputs=outputs,
        evaluation=data.evaluation,
        thresholds=data.thresholds,
        samples=data.samples,
        free_axes={name: axes for name, axes in free_axes.items() if axes},
        task=data.task,
        edge_cases=_taken(path, data.edge_cases),
        max_batch_size=max_batch_size,
        calibration=data.calibration,
        source=str(path),
    )


def _taken(path: Path, edge_cases: Mapping[str, Batch]) -> dict[str, Batch]:
    from pilot_export.verify import onnx_runner

    if not edge_cases:
        return {}
    try:
        run = onnx_runner(path)
    except VerifyError:
        return {}  # The trace's step says what is wrong with the file, and how to mend it.
    return without_what_it_refuses(edge_cases, run)


def _graph(path: Path) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        graph = onnx.load(str(path), load_external_data=False).graph
    except (DecodeError, OSError) as error:
        raise SpecError(f"{path} cannot be read as an ONNX file: {' '.join(str(error).split())}") from error
    if not graph.output:
        raise SpecError(f"{path} is no ONNX file: it holds no graph")
    return graph


def _free(value: Any) -> dict[int, str]:
    """Free axes but the batch, by the name that the graph gives them."""
    dims = list(value.type.tensor_type.shape.dim)
    return {
        axis: dim.dim_param or f"{value.name}_{axis}"
        for axis, dim in enumerate(dims)
        if axis and not dim.HasField("dim_value")
    }


def _words(value: Any) -> str:
    import onnx

    of = value.type.tensor_type
    kind = onnx.TensorProto.DataType.Name(of.elem_type).lower()
    dims = ["rows", *(str(dim.dim_value) if dim.HasField("dim_value") else "any" for dim in list(of.shape.dim)[1:])]
    return f"{kind} [{', '.join(dims)}]"

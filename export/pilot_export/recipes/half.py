"""fp16 and bf16 graphs for a GPU: precision lives in the graph, as a strongly typed TensorRT network wants it.

Inputs and outputs stay in fp32, so that clients and config.pbtxt are the same for every variant. onnxruntime's
converter does the work; this module finds the nodes that it must leave in fp32 by running real data, and turns its
fp16 into bf16, which it does not know.
"""

from pathlib import Path
from typing import Any

from pilot_export.onnx_files import load_with_shapes, save
from pilot_export.recipes.recipe import Made, Source
from pilot_export.recipes.value_ranges import real_batches, value_ranges
from pilot_export.triton_releases import first_reader, onnx_limit

MAX_FLOAT16 = 65504.0
# Values grow with inputs that the sample of real data does not hold.
HEADROOM = 4.0
MAX_LISTED = 8


def make_fp16(source: Source, path: Path) -> Made:
    """fp16 except for the nodes that read or write values beyond a quarter of fp16's range on real data."""
    batches = list(real_batches(source.spec))
    ranges = value_ranges(source.fp32_path, batches)
    model = load_with_shapes(source.fp32_path)
    _name_nodes(model)
    too_large = {name for name, largest in ranges.items() if largest > MAX_FLOAT16 / HEADROOM}
    kept = [node.name for node in model.graph.node if too_large & {*node.input, *node.output}]
    save(_to_fp16(model, kept), path)
    if not kept:
        note = f"no value on real data comes near fp16's limit (largest: {max(ranges.values(), default=0):.3g})"
        return Made((note,), ranges_from=batches)
    names = ", ".join(kept[:MAX_LISTED]) + (f" and {len(kept) - MAX_LISTED} more" if len(kept) > MAX_LISTED else "")
    note = f"{len(kept)} nodes stay in fp32, since their values reach {max(ranges.values()):.3g}: {names}"
    return Made((note,), tuple(kept), batches)


def make_bf16(source: Source, path: Path) -> Made:
    """bf16: the range of fp32, so that nothing overflows; 8 bits of precision.

    Raises:
        ValueError: there are operators that ONNX does not define for it in an opset that the release reads.
    """
    import onnx

    fp32_path, notes = _with_bfloat16(source)
    fp32 = load_with_shapes(fp32_path)
    _name_nodes(fp32)
    half = _to_fp16(fp32, [])
    # The converter changes what it is given, and cuts to fp16's range: the values are taken from the file once more.
    originals = {tensor.name: tensor for tensor in onnx.load(str(fp32_path)).graph.initializer}
    save(_to_bf16(half, originals), path)
    return Made(notes)


def _name_nodes(model: Any) -> None:
    """Nodes are kept in fp32 by name, so each needs one of its own."""
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"


def _to_fp16(model: Any, kept: list[str]) -> Any:
    """`model`, which has its shapes, in fp16; it is changed in place."""
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    half = convert_float_to_float16(model, keep_io_types=True, disable_shape_infer=True, node_block_list=kept)
    _join_fp32(half.graph)
    # It appends the casts of inputs behind the nodes that read them, which is no valid ONNX.
    OnnxModel(half).topological_sort()
    return half


def _join_fp32(graph: Any) -> None:
    """Take away the way through fp16 between two nodes that stay in fp32.

    The converter casts what such a node gives to fp16 and back for the next one: exactly what must not happen to a
    value beyond fp16. onnxruntime drops such pairs when it loads a graph, TensorRT does not.
    """
    from onnx import TensorProto

    def casts_to(kind: int) -> dict[str, str]:
        return {
            node.output[0]: node.input[0]
            for node in graph.node
            if node.op_type == "Cast" and any(item.name == "to" and item.i == kind for item in node.attribute)
        }

    to_half, to_full = casts_to(TensorProto.FLOAT16), casts_to(TensorProto.FLOAT)
    exact = {value: to_half[half] for value, half in to_full.items() if half in to_half}
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = exact.get(name, name)
    given = {value.name for value in graph.output}
    used = {name for node in graph.node for name in node.input} | given
    for node in [node for node in graph.node if node.output[0] in exact and node.output[0] not in used]:
        graph.node.remove(node)
    used = {name for node in graph.node for name in node.input} | given
    for node in [node for node in graph.node if node.output[0] in to_half and node.output[0] not in used]:
        graph.node.remove(node)


def _with_bfloat16(source: Source) -> tuple[Path, tuple[str, ...]]:
    """The fp32 graph in the first opset that has bfloat16 for all its operators, as a file; what changed, in words.

    Raises:
        ValueError: there is none, or the release does not read it.
    """
    import onnx

    model = onnx.load(str(source.fp32_path), load_external_data=False)
    (opset,) = (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    lacking = _without_bfloat16(model, opset)
    if not lacking:
        return source.fp32_path, ()
    newest = onnx.defs.onnx_opset_version()
    needed = next((newer for newer in range(opset + 1, newest + 1) if not _without_bfloat16(model, newer)), None)
    if needed is None:
        never = ", ".join(_without_bfloat16(model, newest))
        raise ValueError(f"ONNX has no bfloat16 for {never} up to its opset {newest}: take fp16")
    reads = onnx_limit(source.release).opset
    if needed > reads:
        first = first_reader(needed, model.ir_version)
        mend = f"--triton {first} is the first release that reads it" if first else "no release in the table reads it"
        raise ValueError(
            f"in opset {opset} ONNX has no bfloat16 for {', '.join(lacking)}; opset {needed} has, and Triton "
            f"{source.release} reads up to {reads}: {mend}"
        )
    converted = source.scratch / "bf16-converted.onnx"
    save(onnx.version_converter.convert_version(onnx.load(str(source.fp32_path)), needed), converted)
    return converted, (f"in opset {needed}, the first with bfloat16 for {', '.join(lacking)}",)


def _without_bfloat16(model: Any, opset: int) -> list[str]:
    """Operators that the converter puts into fp16, and that take no bfloat16 in `opset`."""
    from onnx.defs import get_schema
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST

    lacking = set()
    for op_type in {node.op_type for node in model.graph.node if node.domain in ("", "ai.onnx")}:
        for constraint in get_schema(op_type, opset).type_constraints:
            types = set(constraint.allowed_type_strs)
            if op_type not in DEFAULT_OP_BLOCK_LIST and "tensor(float16)" in types and "tensor(bfloat16)" not in types:
                lacking.add(op_type)
    return sorted(lacking)


def _to_bf16(model: Any, originals: dict[str, Any]) -> Any:
    """`model` with every fp16 type made bf16, weights rounded from `originals`."""
    from onnx import AttributeProto, TensorProto, numpy_helper

    def rounded(tensor: Any) -> Any:
        exact = originals.get(tensor.name, tensor)
        values = numpy_helper.to_array(exact).astype("float32")
        return _bfloat16_tensor(tensor.name, values)

    graph = model.graph
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            tensor.CopyFrom(rounded(tensor))
    for value in (*graph.value_info, *graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT16:
                attribute.t.CopyFrom(_bfloat16_tensor(attribute.t.name, numpy_helper.to_array(attribute.t)))
            elif attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.BFLOAT16
    return model


def _bfloat16_tensor(name: str, values: Any) -> Any:
    import ml_dtypes
    from onnx import TensorProto, helper

    rounded = values.astype("float32").astype(ml_dtypes.bfloat16)
    return helper.make_tensor(name, TensorProto.BFLOAT16, rounded.shape, rounded.tobytes(), raw=True)

"""Which nodes lose most by int8: each is run beside itself, once exactly and once on quantised inputs.

    x ---+--> node -----------------> y --+
         |                                +--> sum (y - y')^2 / sum y^2
         +--> Q, DQ --> node (DQ W) -> y'-+

All nodes in one run of one graph; every node sees exact inputs, so that its error is its own.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pilot_export.onnx_files import save

if TYPE_CHECKING:
    from pilot_export.spec import Batch

# The axis of a weight that has one scale per channel.
_CHANNEL_AXIS = {"Conv": 0, "ConvTranspose": 1, "MatMul": -1, "Gemm": -1}


def rank_by_error(
    model_path: Path, node_names: Sequence[str], ranges: Any, batches: Sequence["Batch"], *, is_symmetric: bool
) -> list[tuple[str, float]]:
    """Node names with their relative error in power, worst first."""
    import onnx
    import onnxruntime

    model = onnx.load(str(model_path))
    measured = _add_shadows(model, set(node_names), ranges, is_symmetric)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shadows.onnx"
        save(model, path)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        totals = np.zeros(len(measured))
        for batch in batches:
            losses = session.run([f"{name}/loss" for name in measured], dict(batch))
            # 0 / 0 where a node gives zeros alone: nothing to lose.
            totals += np.nan_to_num(np.array(losses, np.float64), nan=0.0)
    errors = [(name, float(total) / len(batches)) for name, total in zip(measured, totals, strict=True)]
    return sorted(errors, key=lambda item: -item[1])


def _add_shadows(model: Any, wanted: set[str], ranges: Any, is_symmetric: bool) -> list[str]:
    """Add the shadow and the loss of each wanted node as an output; returns the nodes that have one."""
    import onnx
    from onnx import helper, numpy_helper

    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    known = set(ranges.keys())
    added: list[Any] = []
    tensors: list[Any] = []
    measured = []
    for node in list(model.graph.node):
        if node.name not in wanted or len(node.output) != 1:
            continue
        shadow = onnx.NodeProto()
        shadow.CopyFrom(node)
        shadow.name, shadow.output[0] = f"{node.name}/shadow", f"{node.name}/shadow"
        for index, name in enumerate(node.input):
            changed = f"{node.name}/{index}"
            if name in weights and weights[name].data_type == onnx.TensorProto.FLOAT and len(weights[name].dims) > 1:
                values = numpy_helper.to_array(weights[name])
                tensors.append(numpy_helper.from_array(_rounded(values, node), changed))
            elif name in known:
                scale, zero = _scale(ranges[name], is_symmetric)
                tensors += [
                    numpy_helper.from_array(np.array(scale, np.float32), f"{changed}/scale"),
                    numpy_helper.from_array(zero, f"{changed}/zero"),
                ]
                parameters = [f"{changed}/scale", f"{changed}/zero"]
                added.append(helper.make_node("QuantizeLinear", [name, *parameters], [f"{changed}/q"]))
                added.append(helper.make_node("DequantizeLinear", [f"{changed}/q", *parameters], [changed]))
            else:
                continue
            shadow.input[index] = changed
        loss = f"{node.name}/loss"
        added += [
            shadow,
            helper.make_node("Sub", [node.output[0], shadow.output[0]], [f"{loss}/difference"]),
            helper.make_node("ReduceSumSquare", [f"{loss}/difference"], [f"{loss}/lost"], keepdims=0),
            helper.make_node("ReduceSumSquare", [node.output[0]], [f"{loss}/all"], keepdims=0),
            helper.make_node("Div", [f"{loss}/lost", f"{loss}/all"], [loss]),
        ]
        model.graph.output.append(helper.make_tensor_value_info(loss, onnx.TensorProto.FLOAT, []))
        measured.append(node.name)
    model.graph.node.extend(added)
    model.graph.initializer.extend(tensors)
    return measured


def _rounded(weight: NDArray[np.float32], node: Any) -> NDArray[np.float32]:
    """`weight` through S8 with a scale for each channel, back in fp32."""
    axis = _CHANNEL_AXIS.get(node.op_type)
    if node.op_type == "Gemm" and any(item.name == "transB" and item.i for item in node.attribute):
        axis = 0
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis % weight.ndim)
    scale = np.abs(weight).max(axis=others, keepdims=True) / 127
    scale = np.where(scale == 0, 1, scale)
    return np.asarray(np.clip(np.round(weight / scale), -127, 127) * scale, np.float32)


def _scale(tensor_range: Any, is_symmetric: bool) -> tuple[float, NDArray[Any]]:
    low, high = (float(np.asarray(value).item()) for value in tensor_range.range_value)
    low, high = min(low, 0.0), max(high, 0.0)
    if is_symmetric:
        return max(-low, high, 1e-8) / 127, np.array(0, np.int8)
    scale = max(high - low, 1e-8) / 255
    return scale, np.array(np.clip(round(-low / scale), 0, 255), np.uint8)

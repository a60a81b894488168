"""fp32 with the graph optimised offline, for ONNX Runtime on a CPU alone.

The operators that come out (com.microsoft: Attention, SkipLayerNormalization, FusedConv) are onnxruntime's own. They
must never reach a graph that TensorRT parses, so no other recipe starts from this file.
"""

from collections import Counter
from pathlib import Path

from pilot_export.onnx_files import data_file, is_split
from pilot_export.recipes.recipe import Made, Source


def make(source: Source, path: Path) -> Made:
    """The transformer optimiser for BERT-likes, else onnxruntime's own extended optimisation written to a file."""
    import onnx
    from onnxruntime.transformers.optimizer import optimize_model

    before = Counter(node.op_type for node in onnx.load(str(source.fp32_path), load_external_data=False).graph.node)
    if before["Softmax"] and before["MatMul"]:
        optimized = optimize_model(str(source.fp32_path), model_type="bert", opt_level=1)
        optimized.save_model_to_file(str(path), use_external_data_format=is_split(source.fp32_path))
    else:
        _optimize_by_onnxruntime(source.fp32_path, path)
    nodes = onnx.load(str(path), load_external_data=False).graph.node
    fused = Counter(node.op_type for node in nodes if node.domain == "com.microsoft")
    listing = ", ".join(f"{count} {name}" for name, count in sorted(fused.items())) or "none of onnxruntime's own"
    return Made((f"{sum(before.values())} nodes became {len(nodes)}; fused: {listing}",))


def _optimize_by_onnxruntime(fp32_path: Path, path: Path) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # One level higher would lay out the weights for this very processor.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    if is_split(fp32_path):
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", data_file(path).name
        )
    onnxruntime.InferenceSession(str(fp32_path), options, providers=["CPUExecutionProvider"])

"""int4 weights for matrix multiplications on a CPU: a quarter of int8's reading, activations as they were."""

from pathlib import Path

from pilot_export.onnx_files import is_split
from pilot_export.recipes.recipe import Made, Source

# Weights that share one scale. Small blocks cost a little space and win most of the precision back.
BLOCK_SIZE = 32
# onnxruntime's accuracy level 4: activations to int8 per block inside the kernel, which is where the speed comes from.
ACCURACY_LEVEL = 4


def make(source: Source, path: Path) -> Made:
    """MatMulNBits in place of each MatMul with constant weights; embeddings and biases stay in fp32."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(
        onnx.load(str(source.fp32_path)), bits=4, block_size=BLOCK_SIZE, accuracy_level=ACCURACY_LEVEL
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(path), is_split(source.fp32_path))
    nodes = quantizer.model.model.graph.node
    changed = sum(node.op_type == "MatMulNBits" for node in nodes)
    if not changed:
        raise ValueError("the graph has no MatMul with constant weights, so there is nothing to make int4")
    return Made((f"{changed} matrix multiplications have int4 weights in blocks of {BLOCK_SIZE}",))

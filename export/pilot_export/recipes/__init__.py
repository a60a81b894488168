"""How each precision variant is made from the fp32 graph. A new precision is a new file and a new row of RECIPES.

    recipe.py         what a recipe is, and the targets         optimized.py     fp32-opt
    int8_dynamic.py   int8                                      int4.py          int4
    int8_static.py    int8-static, int8-trt                     half.py          fp16, bf16
    calibration.py    ranges of activations                     value_ranges.py  largest value of every tensor
    sensitivity.py    which nodes suffer most from int8         rounding.py      fp16 and bf16 as a GPU rounds them

A recipe names the runtime it is made for: one quantised graph cannot serve two (ONNX Runtime on a CPU wants what the
TensorRT parser refuses).
"""

from collections.abc import Mapping

from pilot_export.recipes import half, int4, int8_dynamic, optimized
from pilot_export.recipes.int8_dynamic import quantize_dynamic_int8
from pilot_export.recipes.int8_static import make_for_cpu, make_for_tensorrt
from pilot_export.recipes.recipe import ANY, BASE, GPU, ONNXRUNTIME_CPU, TENSORRT, Made, Recipe, Source, file_name
from pilot_export.recipes.rounding import write_rounding_twin

__all__ = [
    "ANY",
    "BASE",
    "GPU",
    "ONNXRUNTIME_CPU",
    "RECIPES",
    "TENSORRT",
    "Made",
    "Recipe",
    "Source",
    "file_name",
    "quantize_dynamic_int8",
]

_ROUNDED = "computed in fp32 on a CPU with every value rounded to {}; a GPU's kernels were not run"

RECIPES: Mapping[str, Recipe] = {
    recipe.precision: recipe
    for recipe in (
        Recipe(BASE, ANY, "torch.onnx.export (dynamo), as it is", make=None, is_exact=True),
        Recipe(
            "fp32-opt",
            ONNXRUNTIME_CPU,
            "graph optimised offline (onnxruntime's transformer optimiser for BERT-likes)",
            optimized.make,
            is_exact=True,
        ),
        Recipe("int8", ONNXRUNTIME_CPU, "dynamic quantisation, S8 weights per channel", int8_dynamic.make),
        Recipe(
            "int8-static",
            ONNXRUNTIME_CPU,
            "static QDQ, U8 activations, S8 weights per channel; calibrator and fp32 nodes by search",
            make_for_cpu,
            needs_calibration=True,
        ),
        Recipe("int4", ONNXRUNTIME_CPU, "weight-only int4 (MatMulNBits), blocks of 32", int4.make),
        Recipe(
            "fp16",
            GPU,
            "fp16 graph, inputs and outputs fp32; nodes that would overflow stay in fp32",
            half.make_fp16,
            stand_in=write_rounding_twin,
            proof=_ROUNDED.format("fp16"),
        ),
        Recipe(
            "bf16",
            TENSORRT,
            "bf16 graph, inputs and outputs fp32",
            half.make_bf16,
            stand_in=write_rounding_twin,
            proof=_ROUNDED.format("bf16"),
        ),
        Recipe(
            "int8-trt",
            TENSORRT,
            "static QDQ, symmetric S8 activations and weights, no DequantizeLinear on biases",
            make_for_tensorrt,
            needs_calibration=True,
            proof="computed by onnxruntime on a CPU; TensorRT's kernels were not run",
        ),
    )
}

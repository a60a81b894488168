"""How each precision variant is made from the fp32 graph. A new precision is one more row of RECIPES.

A recipe names the runtime it is made for: one quantised graph cannot serve two (ONNX Runtime on a CPU wants what the
TensorRT parser refuses). A variant is judged for speed only on its own target, and never installed for another.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ANY = "any"
ONNXRUNTIME_CPU = "onnxruntime on a CPU"
BASE = "fp32"


@dataclass(frozen=True)
class Recipe:
    """`make(fp32_path, path)` writes the variant; `is_exact` says that only rounding may differ."""

    precision: str
    target: str
    method: str
    make: Callable[[Path, Path], None] | None
    is_exact: bool = False


def file_name(precision: str) -> str:
    """The file of a variant in a version folder, chosen by `default_model_filename`."""
    return f"model.{precision}.onnx"


def quantize_dynamic_int8(fp32_path: Path, path: Path) -> None:
    """Weights to int8 once, a scale for each channel; activations to uint8 in each request, by their own range.

    Per channel, since one scale per matrix costs an encoder a point of cosine (0.978 against 0.990 here). No
    calibration, since the range is measured at run time: what a static range does to this kind of model is in the
    tests (cosine 0.3).
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(fp32_path, path, weight_type=QuantType.QInt8, per_channel=True)


RECIPES: Mapping[str, Recipe] = {
    recipe.precision: recipe
    for recipe in (
        Recipe(BASE, ANY, "torch.onnx.export (dynamo), as it is", make=None, is_exact=True),
        Recipe("int8", ONNXRUNTIME_CPU, "dynamic quantisation, S8 weights per channel", quantize_dynamic_int8),
    )
}

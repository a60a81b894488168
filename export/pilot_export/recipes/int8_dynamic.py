"""int8 for transformers on a CPU: no calibration data needed."""

from pathlib import Path

from pilot_export.onnx_files import is_split
from pilot_export.recipes.recipe import Made, Source


def quantize_dynamic_int8(fp32_path: Path, path: Path) -> None:
    """Weights to int8 once, a scale for each channel; activations to uint8 in each request, by their own range.

    Per channel, since one scale per matrix costs an encoder a point of cosine (0.978 against 0.990 here). No
    calibration, since the range is measured at run time: what a static range does to this kind of model is in the
    tests (cosine 0.3).
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        fp32_path,
        path,
        weight_type=QuantType.QInt8,
        per_channel=True,
        use_external_data_format=is_split(fp32_path),
    )


def make(source: Source, path: Path) -> Made:
    quantize_dynamic_int8(source.fp32_path, path)
    return Made()

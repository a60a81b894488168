"""The gate's data is enough to reject variants of the sample classifier that were really made and are bad."""

from pathlib import Path

import pytest

from pilot_export.gate import judge
from pilot_export.recipes.calibration import write_ranges
from pilot_export.recipes.int8_static import AROUND_CONVOLUTIONS, WEIGHTED
from pilot_export.samples import efficientnet
from pilot_export.steps import Steps
from pilot_export.trace import trace_to_onnx
from pilot_export.verify import compare, onnx_runner, run_reference


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_one_scale_for_a_whole_tensor_ruins_efficientnet_and_is_rejected(tmp_path: Path) -> None:
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    spec = efficientnet.spec(cuts_per_photo=8)
    ops = (*WEIGHTED, *AROUND_CONVOLUTIONS)
    fp32, prepared, path = (tmp_path / name for name in ("fp32.onnx", "prepared.onnx", "int8.onnx"))
    with Steps(tmp_path, lambda _: None).run("make", "one scale for each tensor"):
        trace_to_onnx(spec, spec.load_module().eval(), fp32)
        quant_pre_process(str(fp32), str(prepared), skip_symbolic_shape=True)
        write_ranges(
            prepared, ops, [{"image": b["image"][:8]} for b in spec.calibration], "minmax", tmp_path / "r.json"
        )
        quantize_static(
            str(prepared),
            str(path),
            None,
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(ops),
            per_channel=False,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            calibration_cache_path=tmp_path / "r.json",
        )
    # The fp32 graph stands for PyTorch, to which an export finds it equal.
    reference = run_reference(spec, onnx_runner(fp32))
    quality, failures = compare(spec, reference, onnx_runner(path))
    reasons = judge(quality, None, spec.thresholds, is_exact=False, edge_failures=failures)
    assert any("of the confident rows, 98% is asked" in reason for reason in reasons)
    assert any("accuracy on cuts of 16 labelled photos may drop" in reason for reason in reasons)

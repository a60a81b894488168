"""Ranges of activations from real data, by onnxruntime's calibrators.

minmax       the largest and smallest value seen: nothing is cut off, outliers cost resolution
percentile   cuts off the outermost 0.01%
entropy      cuts off where the distribution of int8 values is nearest to that of the originals
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilot_export.onnx_files import is_split

if TYPE_CHECKING:
    from pilot_export.spec import Batch, ExportSpec

CALIBRATORS = ("minmax", "percentile", "entropy")
# Histograms keep every value of a batch in memory: of a CNN's, megabytes per row.
MAX_ROWS = {"minmax": 512, "percentile": 64, "entropy": 64}
MAX_BATCH_ROWS = 8
PERCENTILE = 99.99


def split_rows(spec: "ExportSpec") -> tuple[list["Batch"], list["Batch"]]:
    """Calibration data in two halves, row by row: one gives the ranges, the other judges them."""
    halves: tuple[list[Batch], list[Batch]] = ([], [])
    for batch in spec.calibration:
        for start, half in enumerate(halves):
            part = {name: array[start::2] for name, array in batch.items()}
            if len(next(iter(part.values()))):
                half.append(part)
    return halves


def write_ranges(
    model_path: Path, op_types: Sequence[str], batches: Sequence["Batch"], calibrator: str, cache_path: Path
) -> Any:
    """Run `batches` through the graph and keep the range of each activation in `cache_path`; gives them too."""
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import create_calibrator, save_tensors_data

    method = {"minmax": "MinMax", "percentile": "Percentile", "entropy": "Entropy"}[calibrator]
    options: dict[str, Any] = {"percentile": PERCENTILE} if calibrator == "percentile" else {}
    collector = create_calibrator(
        model_path,
        list(op_types),
        augmented_model_path=str(cache_path.with_suffix(".onnx")),
        calibrate_method=CalibrationMethod[method],
        use_external_data_format=is_split(model_path),
        extra_options=options,
    )
    for batch in _small(batches, MAX_ROWS[calibrator]):
        collector.collect_data(_one(batch))
    ranges = collector.compute_data()
    save_tensors_data(ranges, cache_path)
    return ranges


def _small(batches: Sequence["Batch"], max_rows: int) -> Iterator["Batch"]:
    """Batches of at most 8 rows, `max_rows` in all, taken from all over `batches`."""
    parts = [
        {name: array[start : start + MAX_BATCH_ROWS] for name, array in batch.items()}
        for batch in batches
        for start in range(0, len(next(iter(batch.values()))), MAX_BATCH_ROWS)
    ]
    step = max(1, sum(len(next(iter(part.values()))) for part in parts) // max_rows)
    yield from parts[::step]


def _one(batch: "Batch") -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        batches = iter([dict(batch)])

        def get_next(self) -> Any:
            return next(self.batches, None)

    return Reader()

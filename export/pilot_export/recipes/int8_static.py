"""Static int8 (QDQ), by search: which calibrator, and which nodes must stay in fp32 for the gate to pass.

    which operators:   each set of them with the first calibrator; the better one goes on
    which calibrator:  until one passes
    none passes:       rank the nodes by what int8 costs each, leave the worst 1, 2, 4, ... in fp32, then bisect

The judge here is the half of the calibration data that gave no ranges, and asks for more than the gate does:
evaluation data, and the task that is judged on it, stay unseen until then.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilot_export.onnx_files import data_file, is_split, remove, save
from pilot_export.recipes.calibration import CALIBRATORS, split_rows, write_ranges
from pilot_export.recipes.recipe import Made, Source
from pilot_export.recipes.sensitivity import rank_by_error

if TYPE_CHECKING:
    from pilot_export.spec import Batch, ExportSpec

# Operators with weights. Around convolutions the cheap ones pay too, since tensors stay in 8 bit between them; in an
# encoder they destroy the answer (cosine 0.3).
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
AROUND_CONVOLUTIONS = ("Add", "AveragePool", "Clip", "Concat", "GlobalAveragePool", "MaxPool", "Mul", "Relu", "Sigmoid")
DEFAULT_COSINE = 0.98
MAX_LISTED = 8
SENSITIVITY_BATCHES = 4
MAX_HELD_ROWS = 192


@dataclass(frozen=True)
class Style:
    """How a runtime wants its QDQ graph."""

    is_symmetric: bool
    options: dict[str, Any]


# A matrix product in int8 may give fp32 to both runtimes; int8 there would only cost precision.
_COMMON = {"MatMulConstBOnly": True, "OpTypesToExcludeOutputQuantization": ["MatMul", "Gemm"]}
FOR_CPU = Style(is_symmetric=False, options=_COMMON)
# The parser of TensorRT refuses int32 biases behind a DequantizeLinear, zero points other than 0, and U8.
FOR_TENSORRT = Style(
    is_symmetric=True,
    options={**_COMMON, "ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False},
)


def make_for_cpu(source: Source, path: Path) -> Made:
    return _Search(source, path, FOR_CPU).run()


def make_for_tensorrt(source: Source, path: Path) -> Made:
    return _Search(source, path, FOR_TENSORRT).run()


class _Search:
    """One search. `path` is written again by each attempt; the last one stands."""

    def __init__(self, source: Source, path: Path, style: Style) -> None:
        self._spec, self._path, self._style = source.spec, path, style
        self._scratch = source.scratch
        self._fit, held = split_rows(source.spec)
        self._held = list(_some_rows(held, MAX_HELD_ROWS))
        self._graph = _prepare(source.fp32_path, source.scratch / "int8-prepared.onnx")
        self._expected = _run(self._graph, self._held)
        self._ranges: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._trials = 0

    def run(self) -> Made:
        nodes = _nodes(self._graph)
        found = {op_type for _, op_type in nodes}
        if not found & set(WEIGHTED):
            raise ValueError(
                "the graph has no convolution and no matrix multiplication, so there is nothing to make int8"
            )
        op_sets: list[tuple[str, ...]] = [WEIGHTED]
        if "Conv" in found:
            op_sets.insert(0, (*WEIGHTED, *AROUND_CONVOLUTIONS))
        tried = {(op_types, CALIBRATORS[0]): self._attempt(op_types, CALIBRATORS[0], []) for op_types in op_sets}
        best_set = min(tried, key=lambda attempt: tried[attempt])[0]
        for calibrator in CALIBRATORS[1:]:
            if min(tried.values()) <= 0:
                break
            tried[best_set, calibrator] = self._attempt(best_set, calibrator, [])
        op_types, calibrator = min(tried, key=lambda attempt: tried[attempt])
        if tried[op_types, calibrator] <= 0:
            if list(tried)[-1] != (op_types, calibrator):
                self._attempt(op_types, calibrator, [])  # its graph was written over
            return self._found(op_types, calibrator, [])
        kept = self._fewest_in_fp32(op_types, calibrator, [name for name, kind in nodes if kind in op_types])
        return self._found(op_types, calibrator, kept)

    def _fewest_in_fp32(self, op_types: tuple[str, ...], calibrator: str, names: list[str]) -> list[str]:
        """The shortest head of the ranking that passes when it stays in fp32; its graph is the one that is written."""
        ranges = self._ranges[calibrator, op_types]
        ranking = rank_by_error(
            self._graph, names, ranges, self._fit[:SENSITIVITY_BATCHES], is_symmetric=self._style.is_symmetric
        )
        order = [name for name, _ in ranking]
        failed, count = 0, 1
        while self._attempt(op_types, calibrator, order[:count]) > 0:
            if count >= len(order) - 1:
                raise ValueError(
                    f"int8 costs too much wherever it is used: with {len(order) - 1} of {len(order)} nodes in fp32 the "
                    "variant still misses the spec's thresholds on calibration data"
                )
            failed, count = count, min(2 * count, len(order) - 1)
        passed, last = count, count
        while passed - failed > max(1, passed // 8):
            last = (failed + passed) // 2
            if self._attempt(op_types, calibrator, order[:last]) > 0:
                failed = last
            else:
                passed = last
        if last != passed:
            self._attempt(op_types, calibrator, order[:passed])
        return order[:passed]

    def _attempt(self, op_types: tuple[str, ...], calibrator: str, in_fp32: Sequence[str]) -> float:
        """Quantise and judge; how much is missing to pass, 0 or less where it passes."""
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

        cache = self._scratch / f"ranges-{calibrator}-{len(op_types)}.json"
        key = (calibrator, op_types)
        if key not in self._ranges:
            self._ranges[key] = write_ranges(self._graph, op_types, self._fit, calibrator, cache)
        method = {"minmax": "MinMax", "percentile": "Percentile", "entropy": "Entropy"}[calibrator]
        remove(self._path)  # of the attempt before
        quantize_static(
            str(self._graph),
            str(self._path),
            None,
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(op_types),
            per_channel=True,
            activation_type=QuantType.QInt8 if self._style.is_symmetric else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=list(in_fp32),
            calibrate_method=CalibrationMethod[method],
            extra_options=dict(self._style.options),
            calibration_cache_path=cache,
            use_external_data_format=is_split(self._graph),
        )
        self._trials += 1
        return _missing(self._spec, self._expected, _run(self._path, self._held))

    def _found(self, op_types: Sequence[str], calibrator: str, kept: Sequence[str]) -> Made:
        where = "convolutions and what is around them" if len(op_types) > len(WEIGHTED) else "operators with weights"
        notes = [f"calibrator {calibrator}, int8 for {where}; found in {self._trials} trials"]
        if kept:
            more = f" and {len(kept) - MAX_LISTED} more" if len(kept) > MAX_LISTED else ""
            notes.append(f"{len(kept)} nodes stay in fp32, the most sensitive: {', '.join(kept[:MAX_LISTED])}{more}")
        return Made(tuple(notes), tuple(kept), self._spec.calibration)


def _prepare(fp32_path: Path, path: Path) -> Path:
    """Shapes inferred, batch normalisation folded, every node with a name of its own."""
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model = onnx.load(str(fp32_path))
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"
    named = path.with_name(f"named-{path.name}")
    save(model, named)
    # Symbolic shape inference breaks on some graphs; onnx's own is enough for QDQ.
    remove(path)
    quant_pre_process(
        str(named),
        str(path),
        skip_symbolic_shape=True,
        save_as_external_data=is_split(named),
        all_tensors_to_one_file=True,
        external_data_location=data_file(path).name,
    )
    return path


def _nodes(path: Path) -> list[tuple[str, str]]:
    import onnx

    return [(node.name, node.op_type) for node in onnx.load(str(path), load_external_data=False).graph.node]


def _run(path: Path, batches: Sequence["Batch"]) -> list["Batch"]:
    from pilot_export.verify import onnx_runner, run_all

    return run_all(onnx_runner(path), batches)


def _some_rows(batches: Sequence["Batch"], max_rows: int) -> Iterator["Batch"]:
    """Batches from all over `batches`, of about `max_rows` rows in all."""
    step = max(1, sum(len(next(iter(batch.values()))) for batch in batches) // max_rows)
    yield from batches[::step]


def _missing(spec: "ExportSpec", expected: Sequence["Batch"], outputs: Sequence["Batch"]) -> float:
    """The largest shortfall among the thresholds, each asked twice as strictly.

    A classifier must agree on nearly all rows, sure or not, and its logits must keep their direction: agreement where
    it is sure hides a loss of accuracy (six points of the sample's, at 98% agreement and cosine 0.94), and few rows of
    calibration data hide it too. An embedding must keep its direction in every batch, as the gate asks for every edge
    case: one long text among many short ones does not show in a mean.
    """
    import numpy as np

    from pilot_export.gate import EDGE_FACTOR
    from pilot_export.measures import confident_agreement, row_cosines, top1_agreement

    output, thresholds = spec.outputs[0], spec.thresholds
    if not all(np.isfinite(array).all() for batch in outputs for array in batch.values()):
        return 1.0
    shortfalls = []
    if thresholds.min_confident_agreement is not None:
        strict = (1 + thresholds.min_confident_agreement) / 2
        for asked, agreement in (
            (strict, confident_agreement(expected, outputs, output)),
            (thresholds.min_confident_agreement, top1_agreement(expected, outputs, output)),
        ):
            if agreement is not None:
                shortfalls.append(asked - agreement)
    cosine = thresholds.min_mean_cosine if thresholds.min_mean_cosine is not None else DEFAULT_COSINE
    shortfalls.append((1 + cosine) / 2 - float(row_cosines(expected, outputs, output).mean()))
    if thresholds.min_mean_cosine is not None:
        of_batches = [row_cosines([one], [other], output).mean() for one, other in zip(expected, outputs, strict=True)]
        shortfalls.append(1 - EDGE_FACTOR * (1 - cosine) - float(min(of_batches)))
    return max(shortfalls)

"""All measurements as CSV: one line each, units in the names, empty where nothing was measured."""

import csv
import io
from dataclasses import fields

from pilot_perf.knobs import Knobs
from pilot_perf.measures import Figures
from pilot_perf.report.content import Content
from pilot_perf.store import Row
from pilot_perf.usage import Usage
from pilot_perf.widths import rate_half_width

_KNOBS = tuple(field.name for field in fields(Knobs))
_USUAL = ("avg", "p50", "p90", "p95", "p99")
_STAGES = ("queue_ms", "compute_input_ms", "compute_infer_ms", "compute_output_ms", "mean_batch")
_USAGE = tuple(field.name for field in fields(Usage))
_SINGLE = (
    *("error_rate", "output_tokens_per_s", "output_tokens_per_s_per_user", "goodput_per_s"),
    *("mean_input_tokens", "mean_output_tokens", "asked_rate_per_s", "late_sends", "num_requests", "window_s"),
)


def to_csv(content: Content) -> str:
    out = io.StringIO()
    lines = [_line(content, number, row) for number, row in enumerate(content.rows, start=1)]
    # Columns in the order of the first line: all lines have the same.
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _line(content: Content, number: int, row: Row) -> dict[str, object]:
    trial, figures = row.measurement.trial, row.measurement.figures
    knobs = {name: getattr(trial.knobs, name) for name in _KNOBS if name != "members"}
    members = "; ".join(f"{name} ({of})" for name, of in trial.knobs.members)
    return {
        "number": number,
        "phase": row.phase,
        **knobs,
        "members": members or None,
        "concurrency": trial.concurrency,
        "rate_per_s": trial.rate_per_s,
        "status": row.measurement.status,
        "within_budget": None if figures is None else content.slo.is_kept(figures),
        "throughput_per_s": None if figures is None else figures.throughput_per_s,
        "throughput_half_width": None if figures is None else rate_half_width(figures.window_rates_per_s),
        **_half_widths(content, figures),
        **_times(content, figures),
        **{name: figures and figures.stages and getattr(figures.stages, name) for name in _STAGES},
        **{name: figures and figures.usage and getattr(figures.usage, name) for name in _USAGE},
        **{name: None if figures is None else getattr(figures, name) for name in _SINGLE},
        "littles_law_ratio": _littles_law(row, figures),
        "took_s": round(row.took_s, 2),
        "ended_at": row.ended_at,
        "reason": trial.reason,
        "problem": row.measurement.problem,
        "earlier": "; ".join(map(str, row.measurement.earlier)),
    }


def _half_widths(content: Content, figures: Figures | None) -> dict[str, float | None]:
    """Of each budget's percentile, in the column "p95_half_width" or "ttft_p95_half_width"."""
    known = (figures and figures.half_widths) or {}
    return {
        f"{'' if b.measure == 'latency_ms' else b.measure.removesuffix('ms')}{b.statistic}_half_width": known.get(
            b.name
        )
        for b in content.slo.budgets
        if b.percentile is not None
    }


def _times(content: Content, figures: Figures | None) -> dict[str, float | None]:
    """Latency by its statistic alone ("p95_ms"), the other times by their names ("ttft_p95_ms")."""
    cells: dict[str, float | None] = {}
    for measure, prefix in (("latency_ms", ""), ("ttft_ms", "ttft_"), ("itl_ms", "itl_"), ("refused_ms", "refused_")):
        times = None if figures is None else getattr(figures, measure)
        for statistic in dict.fromkeys([*_USUAL, *content.slo.statistics_of(measure)]):
            cells[f"{prefix}{statistic}_ms"] = None if times is None else times.get(statistic)
    return cells


def _littles_law(row: Row, figures: Figures | None) -> float | None:
    """In a closed loop alone: an open one has no number in flight to hold it against."""
    trial = row.measurement.trial
    if figures is None or trial.rate_per_s is not None:
        return None
    return round(figures.littles_law_ratio(trial.concurrency), 3)

"""All measurements as CSV: one line each, units in the names, empty where nothing was measured."""

import csv
import io

from pilot_perf.report.content import Content

_KNOBS = ("precision", "instances", "intra_op_threads", "max_batch", "queue_delay_us")
_LATENCIES = ("avg", "p50", "p90", "p95", "p99")
_STAGES = ("queue_ms", "compute_input_ms", "compute_infer_ms", "compute_output_ms", "mean_batch")


def to_csv(content: Content) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    extra = [name for name in content.slo.statistics_of("latency_ms") if name not in _LATENCIES]
    measures = [*_LATENCIES, *extra]
    writer.writerow(
        [
            *("number", "phase", *_KNOBS, "concurrency", "status", "within_budget", "throughput_per_s"),
            *(f"{measure}_ms" for measure in measures),
            *_STAGES,
            *("server_cpu_cores", "littles_law_ratio", "num_requests", "window_s", "took_s", "ended_at"),
            *("reason", "problem"),
        ]
    )
    for number, row in enumerate(content.rows, start=1):
        measurement = row.measurement
        trial, figures = measurement.trial, measurement.figures
        numbers: list[object] = [None] * (1 + 1 + len(measures) + len(_STAGES) + 4)
        if figures is not None:
            stages = figures.stages
            numbers = [
                content.slo.is_kept(figures),
                figures.throughput_per_s,
                *(figures.latency_ms.get(measure) for measure in measures),
                *(None if stages is None else getattr(stages, name) for name in _STAGES),
                figures.usage.server_cpu_cores if figures.usage else None,
                round(figures.littles_law_ratio(trial.concurrency), 3),
                figures.num_requests,
                figures.window_s,
            ]
        knobs = trial.knobs.as_dict()
        writer.writerow(
            [
                *(number, row.phase, *(knobs[name] for name in _KNOBS), trial.concurrency, measurement.status),
                *numbers,
                *(round(row.took_s, 2), row.ended_at, trial.reason, measurement.problem),
            ]
        )
    return out.getvalue()

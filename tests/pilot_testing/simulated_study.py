"""A whole study of a simulated server in milliseconds: search, confirmation, attribution and overload."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pilot_client import model_config
from pilot_perf.attribution import next_attribution
from pilot_perf.confirm import Verdict, next_confirmation
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Figures, Measurement, Stages, Trial
from pilot_perf.open_loop import next_open_loop
from pilot_perf.overload import next_overload
from pilot_perf.search.load import climb
from pilot_perf.simulator import SimulatedModel
from pilot_perf.slo import Slo, parse_slo
from pilot_perf.store import Store
from pilot_perf.usage import Usage

CONFIG = """name: "m<script>" backend: "onnxruntime" max_batch_size: 8 default_model_filename: "model.fp32.onnx"
instance_group { count: 1 }"""
SLO = parse_slo(["p95:60", "p99:90"])
MODEL = SimulatedModel(4.0, 1.0, {"int8": 0.6}, 0.4, cores=2, window_noise=0.02, untuned=Knobs("fp32", 1, 1, 1, 0))
CONFIGURATIONS = (
    UNTUNED,
    Knobs("int8", 1, 1, 1, 0),
    Knobs("int8", 2, 1, 8, 0),
    Knobs("int8", 1, 2, 8, 0),
    Knobs("fp32", 2, 2, 8, 1000),
    Knobs("int8", 2, 1, 32, 0),
    Knobs("int8", 2, 1, 32, 5000),
)
MAX_CONCURRENCY = 128
CONDITIONS: dict[str, Any] = {
    "model": "m<script>",
    "slo": str(SLO),
    "machine.cpus": 2,
    "space": {"max_concurrency": MAX_CONCURRENCY},
}
# Of a trial, and how many measurements were made before it.
Measure = Callable[[Trial, int], Measurement]


def simulated_study(
    path: Path, *, slo: Slo = SLO, measure: Measure | None = None, conditions: dict[str, Any] | None = None
) -> Path:
    """Write the study to `path`: one failed measurement, then every phase to its end."""
    measure = measure or measured
    installed = {str(CONDITIONS["model"]): CONFIG}
    with Store.create_or_resume(path, {**CONDITIONS, **(conditions or {})}, CONFIG, None, installed) as store:
        failed = Trial(Knobs("int8", 2, 2, 8, 0), 7, "to see a failure")
        store.add("search", Measurement(failed, "failed", problem="did not <load>"), 1.0)
        for knobs in CONFIGURATIONS:
            _climb(store, knobs, slo, measure)
        verdict = _confirm(store, slo, measure)
        if verdict is not None and verdict.is_a_gain:
            _explain(store, verdict, slo, measure)
    return path


def measured(trial: Trial, number: int) -> Measurement:
    """What the simulated server gives, with stages and usage made up to fit."""
    if trial.rate_per_s is not None:
        return overloaded(trial)
    measurement = MODEL.measure(trial, 200, number)
    figures = measurement.figures
    if figures is None:
        return measurement
    batch = min(trial.knobs.max_batch or 1, trial.concurrency)
    compute_ms = min(MODEL.fixed_ms + MODEL.per_row_ms * batch, 0.8 * figures.latency_ms["avg"])
    queue_ms = max(figures.latency_ms["avg"] - compute_ms - 1.0, 0.0)
    with_more = replace(
        figures,
        stages=Stages(queue_ms, 0.2, compute_ms, 0.3, float(batch)),
        usage=Usage(server_cpu_cores=1.7),
        batch_counts={1: 10, batch: 90} if batch > 1 else {1: 100},
    )
    return Measurement(trial, "measured", with_more)


def overloaded(trial: Trial) -> Measurement:
    """A server whose bound on the size stalls and whose bound on the wait works, as Triton 2.51 with one instance."""
    rate, knobs = trial.rate_per_s or 0.0, trial.knobs
    if knobs.max_queue_size is not None:
        accepted, latency, refused = 0.05 * rate, 1500.0, 0.95
    elif knobs.queue_timeout_us is not None:
        accepted, latency, refused = 0.5 * rate, 58.0, 0.5
    else:
        accepted, latency, refused = rate, 4000.0, 0.0
    latency_ms = {"avg": latency, "p50": latency, "p90": latency, "p95": latency, "p99": latency}
    refused_ms = {"avg": 40.0, "p50": 40.0, "p90": 45.0, "p95": 50.0, "p99": 60.0} if refused else None
    if "a tenth" in trial.reason:
        accepted, latency_ms, refused, refused_ms = rate, dict.fromkeys(latency_ms, 9.0), 0.0, None
    figures = Figures(
        accepted,
        latency_ms,
        round(5 * accepted) + 1,
        5.0,
        error_rate=refused,
        refused_rate=refused,
        asked_rate_per_s=rate,
        late_sends=0.01,
        refused_ms=refused_ms,
    )
    return Measurement(trial, "measured", figures)


def arriving(trial: Trial, most_per_s: float) -> Measurement:
    """Arrivals that do not wait keep the budget below nine tenths of what the closed loop gave."""
    rate = trial.rate_per_s or 0.0
    latency = 50.0 if rate < 0.85 * most_per_s else 90.0
    latency_ms = dict.fromkeys(("avg", "p50", "p90", "p95", "p99"), latency)
    figures = Figures(
        rate, latency_ms, round(5 * rate) + 1, 5.0, error_rate=0.0, asked_rate_per_s=rate, late_sends=0.002
    )
    return Measurement(trial, "measured", figures)


def _climb(store: Store, knobs: Knobs, slo: Slo, measure: Measure) -> None:
    search = climb(knobs, slo, MAX_CONCURRENCY)
    try:
        trial = next(search)
        while True:
            measurement = measure(trial, len(store.rows()))
            store.add("search", measurement, 3.0)
            trial = search.send(measurement)
    except StopIteration:
        return


def _confirm(store: Store, slo: Slo, measure: Measure) -> Verdict | None:
    while True:
        step = next_confirmation(store.measurements("search"), store.measurements("confirm"), slo)
        if step.trial is None:
            return step.verdict
        store.add("confirm", measure(step.trial, len(store.rows())), 6.0)


def _explain(store: Store, verdict: Verdict, slo: Slo, measure: Measure) -> None:
    rate = verdict.chosen.throughput_per_s or 0.0
    while True:
        held = store.measurements("open_loop")
        trial = next_open_loop(verdict.chosen.trial.knobs, rate, held, slo).trial
        if trial is None:
            break
        store.add("open_loop", arriving(trial, rate), 6.0)
    untuned, searched = model_config.parse(CONFIG, "the study"), store.measurements("search")
    while True:
        done = store.measurements("attribution")
        step = next_attribution(untuned, verdict, searched, done, slo, MAX_CONCURRENCY)
        if step.trial is None:
            break
        store.add("attribution", measure(step.trial, len(store.rows())), 4.0)
    while (trial := next_overload(verdict, store.measurements("overload"), slo).trial) is not None:
        store.add("overload", measure(trial, len(store.rows())), 6.0)

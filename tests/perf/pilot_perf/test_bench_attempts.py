"""Which attempts make a measurement, and what becomes of the others: a bench whose windows are given."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_perf.bench import Bench
from pilot_perf.errors import AnalyzerError, EmptyWindowsError
from pilot_perf.knobs import UNTUNED
from pilot_perf.loading import Loader
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.merge import merged
from pilot_perf.slo import parse_slo
from pilot_perf.windows import WindowPlan

PLAN = WindowPlan(window_ms=700)
STEADY, APART = (200.0, 201.0, 199.0), (100.0, 200.0, 300.0)


def figures(rates: tuple[float, ...] = STEADY, num_requests: int = 500, latency_ms: float = 20.0) -> Figures:
    mean = sum(rates) / len(rates)
    latencies = dict.fromkeys(("avg", "p95", "p99.9"), latency_ms)
    return Figures(mean, latencies, num_requests, 2.5, window_rates_per_s=rates)


@dataclass
class GivenBench(Bench):
    """Measures what it is told to, window by window."""

    given: Iterator[Figures | AnalyzerError] = field(default_factory=lambda: iter(()))
    windows_ms: list[int] = field(default_factory=list)

    def _measure_once(self, trial: Trial, window_ms: int) -> Figures:
        self.windows_ms.append(window_ms)
        found = next(self.given)
        if isinstance(found, AnalyzerError):
            raise found
        return found


def measure(
    *given: Figures | AnalyzerError,
    slo: str = "p95:50",
    plan: WindowPlan = PLAN,
    expected_per_s: float | None = None,
    rate_per_s: float | None = None,
) -> tuple[Measurement, list[int]]:
    trial = Trial(UNTUNED, 4, rate_per_s=rate_per_s)
    loader = cast(Loader, SimpleNamespace(slo=parse_slo([slo])))
    bench = GivenBench(loader, ModelConfig(), _warm=trial.point, _expected_per_s=expected_per_s, given=iter(given))
    return bench.measure(trial, plan), bench.windows_ms


def test_a_steady_first_attempt_is_the_measurement() -> None:
    measurement, windows_ms = measure(figures())
    assert (measurement.status, measurement.earlier, windows_ms) == ("measured", (), [700])


def test_an_unsteady_attempt_before_a_steady_one_is_kept_beside_it() -> None:
    measurement, _ = measure(figures(APART), figures())
    assert measurement.figures == figures()
    assert [attempt.window_rates_per_s for attempt in measurement.earlier] == [APART]
    assert str(measurement.earlier[0]) == ("unsteady: 200.0/s (windows 100, 200, 300), 500 requests in 2.5 s")


def test_a_fast_model_gets_short_windows_until_they_disagree() -> None:
    plan = WindowPlan(window_ms=700, least_ms=300)
    _, windows_ms = measure(figures(), plan=plan, expected_per_s=1000.0)
    assert windows_ms == [300]
    measurement, windows_ms = measure(figures(APART), figures(), plan=plan, expected_per_s=1000.0)
    assert (measurement.status, windows_ms) == ("measured", [300, 700])
    _, windows_ms = measure(figures(), plan=plan, expected_per_s=1000.0, rate_per_s=100.0)
    assert windows_ms == [700]  # an open loop waits for what comes now and then


def test_two_unsteady_attempts_are_no_number_and_both_are_kept() -> None:
    measurement, _ = measure(figures(APART), figures(APART))
    assert measurement.status == "unstable"
    assert "differs by 100%" in measurement.problem
    assert [attempt.why for attempt in measurement.earlier] == ["unsteady", "unsteady"]


def test_too_few_requests_are_measured_longer_and_the_short_window_is_kept() -> None:
    measurement, windows_ms = measure(figures(num_requests=40), figures(), slo="p95:50")
    assert (measurement.status, measurement.figures) == ("measured", figures())
    assert windows_ms[1] > 2 * 700
    assert [(attempt.why, attempt.num_requests) for attempt in measurement.earlier] == [("too few requests", 40)]


def test_too_few_requests_for_a_percentile_are_said_with_how_many_are_needed() -> None:
    measurement, windows_ms = measure(figures(num_requests=40), figures(num_requests=900), slo="p99.9:50")
    assert measurement.status == "unstable"
    assert measurement.problem == "900 requests in 2 s are too few for p99.9:50ms: about 5000 are needed"
    assert windows_ms == [700, PLAN.max_window_ms]
    assert [attempt.num_requests for attempt in measurement.earlier] == [40, 900]


def test_a_load_that_was_not_kept_up_is_measured_once_more_and_then_believed() -> None:
    """4 in flight at 200/s take 20 ms; 10 ms mean that only 2 were."""
    measurement, _ = measure(figures(latency_ms=10.0), figures(latency_ms=10.0))
    assert measurement.status == "measured"
    assert [attempt.why for attempt in measurement.earlier] == ["fewer requests in flight than asked for"]


def test_an_attempt_before_a_failure_is_kept_too() -> None:
    measurement, _ = measure(figures(APART), AnalyzerError("it hung"))
    assert (measurement.status, measurement.problem) == ("failed", "it hung")
    assert [attempt.why for attempt in measurement.earlier] == ["unsteady"]


def test_windows_that_know_their_mean_too_little_are_measured_again_where_the_plan_asks_for_it() -> None:
    wide, sure = figures((180.0, 200.0, 220.0)), WindowPlan(window_ms=700, half_width=0.2)
    assert measure(wide)[1] == [700]
    measurement, windows_ms = measure(wide, wide, plan=sure)
    assert windows_ms == [700, 700]
    assert measurement.figures == merged([wide, wide])
    assert measurement.earlier == ()
    assert measure(figures(), plan=sure)[1] == [700]
    # A percentile counts too, and once is the cap.
    unsure = replace(figures(), half_widths={"p95": 0.5})
    assert measure(unsure, unsure, plan=sure)[1] == [700, 700]


def test_a_repeat_without_an_answer_leaves_what_was_measured() -> None:
    wide, sure = figures((180.0, 200.0, 220.0)), WindowPlan(window_ms=700, half_width=0.2)
    assert measure(wide, EmptyWindowsError("nothing"), plan=sure)[0].figures == wide

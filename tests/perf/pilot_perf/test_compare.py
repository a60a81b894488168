from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pilot_perf.compare import Comparison, DifferentConditionsError, compare
from pilot_perf.knobs import UNTUNED
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.store import Store
from pilot_testing.simulated_study import measured, simulated_study

# Requests/s of three rounds: steady ones, noisy ones (lower by more than the tolerance, but not surely), slower ones.
RATES = (100.0, 101.0, 99.0), (75.0, 101.0, 99.0), (80.0, 80.8, 79.2)
MakeStudy = Callable[..., Path]


@pytest.fixture(scope="module")
def make_study(tmp_path_factory: pytest.TempPathFactory) -> MakeStudy:
    def make(factor: float = 1.0, **conditions: object) -> Path:
        """A study of a server that is `factor` times as fast: a shorter latency at the same load."""

        def measure(trial: Trial, number: int) -> Measurement:
            measurement = measured(trial, number)
            figures = measurement.figures
            if figures is None or trial.rate_per_s is not None:
                return measurement
            latency_ms = {name: value / factor for name, value in figures.latency_ms.items()}
            faster = replace(figures, throughput_per_s=figures.throughput_per_s * factor, latency_ms=latency_ms)
            return Measurement(trial, "measured", faster)

        return simulated_study(
            tmp_path_factory.mktemp("study") / "s.sqlite", measure=measure, conditions=dict(conditions)
        )

    return make


@pytest.fixture(scope="module")
def before(make_study: MakeStudy) -> Path:
    return make_study()


def comparison(a: Path, b: Path, **options: object) -> Comparison:
    with Store.open(a) as before, Store.open(b) as after:
        return compare(before, after, **options)  # type: ignore[arg-type]


def test_a_study_does_not_regress_from_itself(before: Path) -> None:
    found = comparison(before, before)
    assert found.regressions == []
    assert {row.configuration for row in found.rows} == {"untuned", "chosen"}
    assert all(row.ratio is not None and row.ratio.value == pytest.approx(1.0) for row in found.rows)


def test_a_server_that_became_slower_is_a_regression_of_both_configurations(
    before: Path, make_study: MakeStudy
) -> None:
    found = comparison(before, make_study(0.8))
    assert any(text.startswith("untuned: requests/s x 0.8") for text in found.regressions)
    assert any(text.startswith("chosen: requests/s x 0.") for text in found.regressions)


def test_a_faster_server_is_no_regression_and_a_wide_tolerance_allows_a_slower_one(
    before: Path, make_study: MakeStudy
) -> None:
    assert comparison(before, make_study(1.2)).regressions == []
    assert comparison(before, make_study(0.8), tolerance=0.4).regressions == []


def test_a_latency_at_another_load_is_not_judged(before: Path, make_study: MakeStudy) -> None:
    rows = comparison(before, make_study(0.5)).rows
    latencies = [row for row in rows if row.measure == "p95"]
    assert latencies
    assert any("in flight, then at" in row.not_judged for row in latencies)
    assert not any(row.is_regression(0.0) for row in latencies if row.not_judged)


def test_other_conditions_are_named_and_compared_only_where_they_are_allowed(
    before: Path, make_study: MakeStudy
) -> None:
    other = make_study(**{"software.server": "2.60.0"})
    with pytest.raises(DifferentConditionsError, match=r"software\.server was not there, then 2\.60\.0"):
        comparison(before, other)
    with pytest.raises(DifferentConditionsError, match=r"software\.server"):
        comparison(before, other, allowed=("model.",))
    assert comparison(before, other, allowed=("software.",)).regressions == []


def test_a_budget_that_nothing_keeps_any_more_is_a_regression(before: Path, make_study: MakeStudy) -> None:
    found = comparison(before, make_study(0.02))
    assert any("none in" in text or "breaks it" in text for text in found.regressions)


def load_study(path: Path, rates: Sequence[float], slo: str = "p95:50ms", errors: Sequence[float] = (0, 0, 0)) -> Path:
    with Store.create_or_resume(path, {"slo": slo}, "") as store:
        rounds = [("search", 100.0, 0.0), *(("confirm", *of) for of in zip(rates, errors, strict=True))]
        for phase, rate, error_rate in rounds:
            figures = Figures(rate, {"avg": 40.0, "p95": 40.0}, 500, 5.0, error_rate=error_rate)
            store.add(phase, Measurement(Trial(UNTUNED, 4), "measured", figures), 1.0)  # type: ignore[arg-type]
    return path


def test_a_share_of_errors_that_may_be_0_is_judged_by_its_budget_alone(tmp_path: Path) -> None:
    slo = "error_rate:<=:0.01"
    none, one, few = (
        load_study(tmp_path / name, RATES[0], slo, errors)
        for name, errors in (("a", (0, 0, 0)), ("b", (0, 0, 0.002)), ("c", (0.001, 0.001, 0.004)))
    )
    assert comparison(one, few).regressions == []
    assert comparison(none, few).regressions == []


def test_studies_of_the_load_alone_are_compared_by_their_confirming_rounds(tmp_path: Path) -> None:
    """Not by one short window each: three rounds have an interval."""
    before, noisy, slower = (load_study(tmp_path / name, rates) for name, rates in zip("abc", RATES, strict=True))
    assert comparison(before, noisy).regressions == []
    assert any(text.startswith("untuned: requests/s x 0.80 [") for text in comparison(before, slower).regressions)

from collections.abc import Callable
from dataclasses import replace

import pytest

from pilot_perf.knobs import Knobs
from pilot_perf.measures import Figures, Measurement
from pilot_perf.search.load import FINE, GUARD, LoadResult, climb, full_load, load_step
from pilot_perf.slo import parse_slo

KNOBS = Knobs(instances=1)
SLO = parse_slo(["p95:100"])
# Concurrency -> (requests/s, p95 ms).
Curve = Callable[[int], tuple[float, float]]


def saturating(capacity_per_s: float, alone_ms: float) -> Curve:
    """A server that answers alone in `alone_ms`, and never more than `capacity_per_s`."""

    def curve(load: int) -> tuple[float, float]:
        rate = min(load * 1000 / alone_ms, capacity_per_s)
        return rate, load / rate * 1000

    return curve


def run(
    curve: Curve, *, knobs: Knobs = KNOBS, max_concurrency: int = 1024, **options: float
) -> tuple[LoadResult, list[int]]:
    loads: list[int] = []
    search = climb(knobs, SLO, max_concurrency, **options)  # type: ignore[arg-type]
    try:
        trial = next(search)
        while True:
            loads.append(trial.concurrency)
            assert len(loads) < 40, loads
            rate, p95_ms = curve(trial.concurrency)
            figures = Figures(rate, {"avg": p95_ms * 0.9, "p95": p95_ms}, 1000, 2.0)
            trial = search.send(Measurement(trial, "measured", figures))
    except StopIteration as stop:
        return stop.value, loads


def best_load(result: LoadResult) -> int:
    assert result.best is not None
    return result.best.trial.concurrency


@pytest.mark.parametrize("knee", [1, 2, 3, 5, 9, 17, 40, 100, 333])
def test_the_knee_is_found_within_the_tolerance(knee: int) -> None:
    """Throughput rises with the load all the way, and the budget breaks just above the knee."""

    def curve(load: int) -> tuple[float, float]:
        return 10.0 * load, 90.0 if load <= knee else 90.0 + 20.0 * load / knee

    result, loads = run(curve)
    assert knee * (1 - FINE) - 1 <= best_load(result) <= knee
    assert len(loads) == len(set(loads)) <= 18


def test_it_goes_up_fast_and_never_far_past_the_violation() -> None:
    """47 in flight keep the guarded budget: by doubling alone that takes 7 loads, before the bisection."""
    result, loads = run(lambda load: (10.0 * load, 2.0 * load))
    assert 44 <= best_load(result) <= 47
    assert max(loads) <= 2 * 47
    assert len(loads) <= 7


def test_a_load_that_waits_for_nothing_yet_is_doubled_even_close_to_the_budget() -> None:
    """Latency is 90% of the budget from the first request on, and stays so until 16 are served at once."""
    result, loads = run(saturating(16 / 0.09, alone_ms=90.0))
    assert loads[:5] == [1, 2, 4, 8, 16]
    assert best_load(result) == 16


def test_it_also_looks_between_the_first_two_points() -> None:
    result, loads = run(lambda load: (10.0 * load, 30.0 * load), start=8)
    assert loads[0] == 8
    assert best_load(result) == 3


def test_saturation_ends_the_climb_before_the_budget_does() -> None:
    result, loads = run(saturating(200, alone_ms=10.0))
    assert loads == [1, 8, 18]
    assert best_load(result) == 8
    assert result.why == "throughput no longer rises with the load"


def test_one_disturbed_window_does_not_stop_the_climb() -> None:
    def curve(load: int) -> tuple[float, float]:
        return (4.0, 80.0) if load == 2 else (10.0 * load, 2.0 * load)

    result, _ = run(curve)
    assert best_load(result) > 30


def test_a_budget_that_nothing_keeps_gives_no_load_and_never_concurrency_0() -> None:
    result, loads = run(lambda load: (10.0, 500.0 * load), start=16)
    assert result.best is None
    assert min(loads) == 1


def test_the_largest_load_that_is_allowed_is_not_exceeded() -> None:
    result, loads = run(lambda load: (10.0 * load, 1.0), max_concurrency=100)
    assert best_load(result) == max(loads) == 100


def test_it_gives_up_as_soon_as_it_cannot_beat_what_is_known() -> None:
    result, loads = run(lambda load: (10.0 * load, 30.0 * load), start=8, to_beat=80.0)
    assert loads == [8]
    assert result.best is None


def test_windows_close_to_the_budget_do_not_count_as_kept() -> None:
    result, _ = run(lambda load: (10.0 * load, 100.0 * (GUARD + 0.01)))
    assert result.best is None


def test_noise_that_breaks_the_order_does_not_make_it_run_for_ever() -> None:
    """Above the knee every other load seems to keep the budget, and throughput falls with the load."""

    def curve(load: int) -> tuple[float, float]:
        return 1000.0 - load, 150.0 if load % 2 == 0 and load > 4 else 50.0

    for start in range(1, 40):
        run(curve, start=start)


def test_batches_that_wait_are_filled_by_every_load_that_is_tried() -> None:
    """4 instances with batches of 4, of which a single one may be more than the budget takes at once."""
    waiting = Knobs(instances=4, max_batch=4, queue_delay_us=5000)

    def curve(load: int) -> tuple[float, float]:
        return 10.0 * load, 4.0 * load if load % 4 == 0 else 110.0

    result, loads = run(curve, knobs=waiting, start=16)
    assert best_load(result) == 20
    assert loads[:2] == [16, 24]


def test_a_preferred_batch_is_what_fills_an_instance() -> None:
    knobs = Knobs(instances=2, max_batch=32, preferred_batch=8, queue_delay_us=1000)
    assert (full_load(knobs), load_step(knobs)) == (16, 8)
    assert full_load(replace(knobs, preferred_batch=None)) == 64
    assert full_load(replace(knobs, max_batch=1)) == 1


def test_a_failed_measurement_ends_it_with_what_was_kept() -> None:
    search = climb(KNOBS, SLO, 64)
    trial = next(search)
    kept = Measurement(trial, "measured", Figures(10.0, {"avg": 9.0, "p95": 10.0}, 100, 2.0))
    trial = search.send(kept)
    with pytest.raises(StopIteration) as stop:
        search.send(Measurement(trial, "failed", problem="the server is gone"))
    assert stop.value.value == LoadResult(kept, "failed: the server is gone")


def climb_with(statuses: dict[int, str]) -> tuple[LoadResult, list[int]]:
    """10 requests/s for each in flight, up to a knee of 8; loads of `statuses` bring no figures."""
    loads: list[int] = []
    search = climb(KNOBS, SLO, 64)
    try:
        trial = next(search)
        while True:
            loads.append(trial.concurrency)
            assert len(loads) < 40, loads
            status = statuses.get(trial.concurrency, "measured")
            p95_ms = 50.0 if trial.concurrency <= 8 else 500.0
            figures = Figures(10.0 * trial.concurrency, {"avg": p95_ms, "p95": p95_ms}, 1000, 2.0)
            made = Measurement(trial, status, figures if status == "measured" else None)  # type: ignore[arg-type]
            trial = search.send(made)
    except StopIteration as stop:
        return stop.value, loads


def test_one_unstable_first_window_does_not_end_the_climb() -> None:
    result, loads = climb_with({1: "unstable"})
    assert loads[:2] == [1, 2]
    assert best_load(result) == 8


def test_two_unstable_windows_end_it_and_so_does_one_that_failed() -> None:
    assert climb_with({1: "unstable", 2: "unstable"})[1] == [1, 2]
    assert climb_with({1: "failed"})[1] == [1]

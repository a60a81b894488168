from dataclasses import replace

import pytest

from pilot_perf.knobs import Knobs
from pilot_perf.measures import Figures, Trial
from pilot_perf.simulator import SimulatedModel

MODEL = SimulatedModel(4.0, 1.0, {"int8": 0.5}, 0.0, cores=2, client_ms=0.0, batch_jitter=0.0)


def figures(knobs: Knobs, concurrency: int, model: SimulatedModel = MODEL) -> Figures:
    measured = model.measure(Trial(knobs, concurrency)).figures
    assert measured is not None
    return measured


def test_one_request_at_a_time_takes_the_time_of_a_batch_of_one() -> None:
    alone = figures(Knobs("fp32", 1, 1, 1, 0), 1)
    assert alone.throughput_per_s == pytest.approx(200, rel=0.01)
    assert alone.latency_ms["p95"] == pytest.approx(5.0, rel=0.01)


def test_full_batches_give_the_throughput_that_arithmetic_gives() -> None:
    assert figures(Knobs("fp32", 1, 1, 8, 0), 64).throughput_per_s == pytest.approx(8 / 0.012, rel=0.02)
    assert figures(Knobs("int8", 2, 1, 8, 0), 64).throughput_per_s == pytest.approx(2 * 8 / 0.006, rel=0.05)


def test_threads_beyond_the_cores_gain_nothing() -> None:
    assert figures(Knobs("fp32", 2, 2, 8, 0), 64).throughput_per_s == pytest.approx(
        figures(Knobs("fp32", 2, 1, 8, 0), 64).throughput_per_s, rel=0.05
    )


def test_a_delay_is_waited_out_where_no_batch_fills() -> None:
    assert figures(Knobs("fp32", 1, 1, 8, 5000), 1).latency_ms["p50"] == pytest.approx(10.0, rel=0.01)


@pytest.mark.parametrize("concurrency", [1, 3, 8, 40])
def test_littles_law_holds(concurrency: int) -> None:
    assert figures(Knobs("fp32", 2, 1, 8, 1000), concurrency).littles_law_ratio(concurrency) == pytest.approx(
        1, abs=0.05
    )


def test_the_same_trial_gives_the_same_measurement_and_another_seed_another() -> None:
    noisy = SimulatedModel(4.0, 1.0, {}, 0.3, cores=2, window_noise=0.05)
    again = SimulatedModel(4.0, 1.0, {}, 0.3, cores=2, window_noise=0.05)
    other = SimulatedModel(4.0, 1.0, {}, 0.3, cores=2, window_noise=0.05, seed=1)
    knobs = Knobs(None, 1, 1, 4, 0)
    assert figures(knobs, 8, noisy) == figures(knobs, 8, again) != figures(knobs, 8, other)


def test_a_batch_of_the_preferred_size_does_not_wait_for_more() -> None:
    """8 in flight fill a batch of 8, and never one of 32, which waits out the delay."""
    waits = Knobs("fp32", 1, 1, 32, 20_000)
    assert figures(waits, 8).latency_ms["avg"] > 30
    assert figures(replace(waits, preferred_batch=8), 8).latency_ms["avg"] < 15


def test_what_has_waited_out_the_delay_goes_with_all_that_is_there() -> None:
    """Four go as soon as they are there, and the other five wait for longer than the delay meanwhile."""
    assert figures(Knobs("fp32", 1, 1, 8, 1000, 4), 9).throughput_per_s == pytest.approx(9 / 0.017, rel=0.02)


def test_a_disturbed_window_is_slower_in_a_part_of_it() -> None:
    knobs = Knobs("fp32", 1, 1, 1, 0)
    disturbed = figures(knobs, 1, replace(MODEL, disturbed_share=1.0, disturbed_factor=3.0))
    quiet = figures(knobs, 1)
    assert disturbed.throughput_per_s < 0.98 * quiet.throughput_per_s
    assert disturbed.latency_ms["p99"] > 1.05 * quiet.latency_ms["p99"]
    assert disturbed.latency_ms["avg"] < disturbed.latency_ms["p99"]

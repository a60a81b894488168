from pilot_perf.measures import Figures
from pilot_perf.slo import parse_slo
from pilot_perf.windows import WindowPlan, contradiction, disagreement, is_below_load, is_enough

P95 = parse_slo(["p95:50"])
SLOW_P95 = parse_slo(["p95:5s"])


def answered(num_requests: int, median_ms: float = 10.0) -> Figures:
    latency_ms = {"avg": median_ms, "p50": median_ms, "p95": 60.0}
    return Figures(throughput_per_s=num_requests / 2.0, latency_ms=latency_ms, num_requests=num_requests, window_s=2.0)


def test_too_few_requests_ask_for_a_longer_window() -> None:
    plan = WindowPlan(window_ms=700)
    assert plan.longer(700, answered(100), P95) is None
    assert plan.longer(700, answered(40), P95) == 2100
    assert plan.longer(700, answered(99), P95) == 1400


def test_windows_are_short_where_a_model_answers_hundreds_a_second() -> None:
    """p95 needs 100 requests; three times as many are enough."""
    plan = WindowPlan(window_ms=700, least_ms=300, num_enough=3)
    assert plan.first_ms(10_000.0, P95, 4) == 300
    assert plan.first_ms(200.0, P95, 4) == 500
    assert plan.first_ms(100.0, P95, 4) == 700
    assert WindowPlan(window_ms=700).first_ms(10_000.0, P95, 4) == 700


def test_windows_begin_as_long_as_a_slow_model_needs() -> None:
    plan = WindowPlan(window_ms=700, least_ms=300, max_window_ms=5000)
    assert plan.first_ms(20.0, SLOW_P95, 4) == 2000
    assert plan.longer(2000, answered(100), SLOW_P95) is None
    assert plan.first_ms(1.0, SLOW_P95, 4) == 5000


def test_a_few_requests_are_enough_where_half_of_them_are_over_the_budget() -> None:
    plan = WindowPlan(window_ms=700)
    assert plan.longer(700, answered(10, median_ms=51.0), P95) is None
    assert plan.longer(700, answered(9, median_ms=51.0), P95) is not None
    assert plan.longer(700, answered(10, median_ms=49.0), P95) is not None
    assert plan.longer(700, answered(10, median_ms=51.0), parse_slo(["p75:50"])) is not None
    assert is_enough(answered(10, median_ms=51.0), P95, share=0.5)
    assert not is_enough(answered(49), P95, share=0.5)


def test_windows_are_as_long_as_a_model_needs_that_is_far_too_slow_for_its_budget() -> None:
    plan = WindowPlan(window_ms=700)
    assert plan.first_ms(2.0, P95, 1) == 2000  # 12 requests in three windows, 500 ms each where 50 are allowed
    assert plan.first_ms(2.0, parse_slo(["p95:ttft:50"]), 1) == 20_000  # nothing is known of the time to first token


def test_windows_never_grow_past_the_cap() -> None:
    plan = WindowPlan(window_ms=700, max_window_ms=5000)
    assert plan.longer(700, answered(0), P95) == 5000
    assert plan.longer(5000, answered(3), P95) is None


def test_windows_that_agree_have_no_problem() -> None:
    assert disagreement([95.0, 100.0, 105.0], 3000) is None


def test_windows_that_differ_say_by_how_much() -> None:
    assert disagreement([50.0, 100.0, 150.0], 3000) == (
        "throughput of the windows differs by 100% (50, 100, 150 requests/s); at most 35% is steady"
    )


def test_few_requests_may_differ_more() -> None:
    assert disagreement([80.0, 100.0, 130.0], 3000) is not None
    assert disagreement([80.0, 100.0, 130.0], 300) is None


def test_numbers_that_contradict_littles_law_are_not_believed() -> None:
    """perf_analyzer's --request-count computes its throughput from a window that it then throws away."""
    true = Figures(100.0, {"avg": 80.0}, 1000, 10.0)
    doubled = Figures(200.0, {"avg": 80.0}, 1000, 10.0)
    assert contradiction(true, 8) is None
    assert contradiction(doubled, 8) == (
        "throughput x mean latency says 16.0 requests in flight where 8 were asked for: "
        "the numbers contradict each other"
    )
    few = Figures(125.0, {"avg": 80.0}, 20, 0.2)
    assert contradiction(few, 8) is None


def test_a_client_that_does_not_keep_the_load_up_is_seen() -> None:
    assert is_below_load(Figures(100.0, {"avg": 50.0}, 1000, 10.0), 8)
    assert not is_below_load(Figures(100.0, {"avg": 76.0}, 1000, 10.0), 8)

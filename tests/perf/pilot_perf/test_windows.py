from pilot_perf.measures import Figures
from pilot_perf.slo import parse_slo
from pilot_perf.windows import WindowPlan, contradiction, disagreement, is_below_load

P95 = parse_slo(["p95:50"])


def test_too_few_requests_ask_for_a_longer_window() -> None:
    plan = WindowPlan(window_ms=700)
    assert plan.longer(700, 100, P95) is None
    assert plan.longer(700, 40, P95) == 2100
    assert plan.longer(700, 99, P95) == 1400


def test_windows_are_short_where_a_model_answers_hundreds_a_second() -> None:
    """p95 needs 100 requests; three times as many are enough."""
    plan = WindowPlan(window_ms=700, least_ms=300, num_enough=3)
    assert plan.first_ms(10_000.0, P95) == 300
    assert plan.first_ms(200.0, P95) == 500
    assert plan.first_ms(100.0, P95) == 700
    assert WindowPlan(window_ms=700).first_ms(10_000.0, P95) == 700


def test_windows_begin_as_long_as_a_slow_model_needs() -> None:
    plan = WindowPlan(window_ms=700, least_ms=300, max_window_ms=5000)
    assert plan.first_ms(20.0, P95) == 2000
    assert plan.longer(plan.first_ms(20.0, P95), 100, P95) is None
    assert plan.first_ms(1.0, P95) == 5000


def test_windows_never_grow_past_the_cap() -> None:
    plan = WindowPlan(window_ms=700, max_window_ms=5000)
    assert plan.longer(700, 0, P95) == 5000
    assert plan.longer(5000, 3, P95) is None


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

import random
from collections.abc import Callable

import pytest

from pilot_client import model_config
from pilot_perf.attribution import NUM_ROUNDS, Attribution, next_attribution, path_to
from pilot_perf.confirm import Verdict, judge
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.side import Side
from pilot_perf.slo import parse_slo

SLO = parse_slo(["p95:50"])
CONFIG = model_config.parse(
    'name: "m" backend: "onnxruntime" max_batch_size: 8 default_model_filename: "model.fp32.onnx" '
    "instance_group { count: 1 }",
    "here",
)
CHOSEN = Knobs("int8", 2, 1, 8, 1000)
# What each knob multiplies the throughput by.
WORTH = {"int8": 1.5, "instances": 2.0, "batch": 1.0}


def rate_of(knobs: Knobs) -> float:
    rate = 100.0
    rate *= WORTH["int8"] if knobs.precision == "int8" else 1.0
    rate *= WORTH["instances"] if knobs.instances == 2 else 1.0
    return rate


def server(trial: Trial, number: int) -> Measurement:
    """8 requests/s for each in flight up to the configuration's rate; the budget breaks at 22 in flight per 100/s."""
    rate = rate_of(trial.knobs) * random.Random(number).gauss(1.0, 0.01)
    p95_ms = 230.0 * trial.concurrency / rate
    figures = Figures(min(rate, 8.0 * trial.concurrency), {"avg": p95_ms, "p95": p95_ms}, 500, 3.0)
    return Measurement(trial, "measured", figures)


def verdict_on(chosen: Knobs = CHOSEN, untuned_rate: float = 100.0) -> Verdict:
    sides = []
    for knobs, rate, load in ((UNTUNED, untuned_rate, 20), (chosen, 300.0, 60)):
        trial = Trial(knobs, load)
        rounds = [
            Measurement(trial, "measured", Figures(rate * factor, {"avg": 40.0, "p95": 45.0}, 500, 5.0))
            for factor in (1.0, 1.01, 0.99, 1.02)
        ]
        sides.append(Side(trial, tuple(rounds)))
    return judge(sides[0], sides[1], SLO)


def run(
    verdict: Verdict, measure: Callable[[Trial, int], Measurement] = server, searched: tuple[Measurement, ...] = ()
) -> tuple[Attribution | None, list[Measurement]]:
    measured: list[Measurement] = []
    while (step := next_attribution(CONFIG, verdict, searched, measured, SLO, 128)).trial is not None:
        measured.append(measure(step.trial, len(measured)))
        assert len(measured) < 200
    return step.attribution, measured


def test_the_path_turns_one_knob_at_a_time_in_a_fixed_order_and_ends_at_the_chosen_one() -> None:
    places = path_to(CHOSEN, CONFIG)
    assert [place.change for place in places] == [
        *("", "precision int8", "instances 2", "threads 1", "max batch 8", "queue delay us 1000"),
    ]
    assert places[0].knobs == UNTUNED
    assert places[3].knobs == Knobs("int8", 2, 1)
    assert places[-1].knobs == CHOSEN


def test_a_knob_that_is_as_installed_is_no_step() -> None:
    places = path_to(Knobs("fp32", 1, None, 1, 1000), CONFIG)
    assert [place.change for place in places] == ["", "max batch 1"]
    # A queue delay means nothing without batches; the place is still the one that was confirmed.
    assert places[-1].knobs == Knobs("fp32", 1, None, 1, 1000)


def test_the_knobs_of_an_ensembles_members_are_steps_of_their_own() -> None:
    chosen = UNTUNED.with_member("a", Knobs(instances=2)).with_member("b", Knobs(instances=2, max_batch=4))
    places = path_to(chosen, CONFIG)
    assert [place.change for place in places] == ["", "a: instances 2", "b: instances 2", "b: max batch 4"]
    assert places[-1].knobs == chosen


def test_each_step_has_the_gain_of_its_knob_and_what_brings_nothing_is_called_so() -> None:
    attribution, _ = run(verdict_on())
    assert attribution is not None
    gains = {step.change: step for step in attribution.steps}
    for change, worth in (("precision int8", 1.5), ("instances 2", 2.0)):
        ratio = gains[change].ratio
        assert ratio is not None
        assert ratio.value == pytest.approx(worth, rel=0.03)
        assert ratio.num_pairs == NUM_ROUNDS
        assert gains[change].text(SLO) == "faster"
    assert gains["max batch 8"].text(SLO) == "no difference found"


def test_the_sides_of_a_step_are_measured_one_after_the_other_in_every_round() -> None:
    _, measured = run(verdict_on())
    rounds = [m.trial.knobs for m in measured if m.trial.reason.startswith("round")]
    path = [place.knobs for place in path_to(CHOSEN, CONFIG)]
    assert rounds == path * NUM_ROUNDS


def test_places_between_stand_at_their_own_best_load_within_the_budget() -> None:
    attribution, _ = run(verdict_on())
    assert attribution is not None
    for step in attribution.steps:
        assert step.after.keeps(SLO)
    loads = [step.after.trial.concurrency for step in attribution.steps]
    assert loads[0] < loads[1]


def test_the_order_of_what_was_measured_is_all_the_state_there_is() -> None:
    _, measured = run(verdict_on())
    for known in range(len(measured)):
        assert next_attribution(CONFIG, verdict_on(), (), measured[:known], SLO, 128).trial == measured[known].trial


def test_what_the_search_has_measured_of_a_place_is_not_looked_for_again() -> None:
    place = Knobs("int8")
    known = tuple(server(Trial(place, load), 0) for load in (28, 30, 32, 36))
    _, fresh = run(verdict_on())
    _, informed = run(verdict_on(), searched=known)
    assert sum(m.trial.knobs == place for m in informed) < sum(m.trial.knobs == place for m in fresh)


def test_a_single_knob_is_what_the_confirmation_has_measured() -> None:
    verdict = verdict_on(Knobs("int8"))
    attribution, measured = run(verdict)
    assert measured == []
    assert attribution is not None
    assert [(step.change, step.ratio) for step in attribution.steps] == [("precision int8", verdict.ratio)]


def test_a_place_that_does_not_run_is_joined_with_the_next_knob() -> None:
    def refusing(trial: Trial, number: int) -> Measurement:
        if trial.knobs == Knobs("int8"):
            return Measurement(trial, "failed", problem="does not load")
        return server(trial, number)

    attribution, _ = run(verdict_on(), refusing)
    assert attribution is not None
    assert attribution.steps[0].change == "precision int8 and instances 2"
    assert attribution.steps[0].ratio is not None
    assert attribution.steps[0].ratio.value == pytest.approx(3.0, rel=0.03)


def test_a_place_beyond_the_budget_is_shown_as_that() -> None:
    def slow_alone(trial: Trial, number: int) -> Measurement:
        if trial.knobs == Knobs("int8"):
            figures = Figures(80.0, {"avg": 60.0, "p95": 70.0}, 500, 3.0)
            return Measurement(trial, "measured", figures)
        return server(trial, number)

    attribution, _ = run(verdict_on(), slow_alone)
    assert attribution is not None
    assert attribution.steps[0].text(SLO).endswith("and breaks the budget")


def test_no_gain_is_nothing_to_attribute() -> None:
    assert run(verdict_on(untuned_rate=400.0)) == (None, [])


def test_rows_of_another_path_answer_nothing() -> None:
    _, earlier = run(verdict_on())
    step = next_attribution(CONFIG, verdict_on(Knobs("fp32", 1, 2, 32, 0)), (), earlier, SLO, 128)
    assert step.attribution is None
    assert step.trial is not None
    assert step.trial.knobs.intra_op_threads == 2

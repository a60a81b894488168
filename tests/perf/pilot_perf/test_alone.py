from pathlib import Path

from pilot_perf.alone import MAX_ROUNDS, MAX_TOTAL, Alone, text_alone
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Measurement, Trial
from pilot_perf.outcome import Outcome
from pilot_perf.proof import Proof, next_proof
from pilot_perf.replicas import served_by_one
from pilot_perf.slo import parse_slo
from pilot_testing.planted_rounds import Server, answered, measurement

SLO = parse_slo(["p95:50"])
TUNED = Knobs(instances=2)

LOADS = [measurement(UNTUNED, load, 100.0 + load, 5.0 * load) for load in (1, 2, 4, 8, 16)]


def run(server: Server, searched: list[Measurement] = LOADS) -> tuple[Alone, list[Measurement]]:
    made: list[Measurement] = []
    while (step := next_proof(searched, made, SLO)).trial is not None:
        made.append(answered(server, step.trial, len(made)))
        assert len(made) <= MAX_TOTAL
    assert step.proof.alone is not None
    assert step.proof.verdict is None
    return step.proof.alone, made


def loads_of(made: list[Measurement]) -> list[int]:
    return [m.trial.concurrency for m in made]


def test_a_load_that_keeps_the_budget_is_sure_after_three_rounds() -> None:
    alone, made = run(lambda trial, number: (108.0, 40.0 + 0.2 * number))
    assert loads_of(made) == [8, 8, 8]
    assert alone.keeps
    assert text_alone(LOADS[3], alone) == (
        "the untuned configuration is the best that was found; it surely keeps the budget at 8 in flight (3 rounds)"
    )
    assert served_by_one(Proof(alone=alone), None) == 108.0


def test_the_lucky_window_of_the_search_is_found_out_and_a_lower_load_takes_its_place() -> None:
    """In the search 8 in flight kept it; in longer windows it does not."""
    alone, made = run(lambda trial, number: (100.0 + trial.concurrency, 7.0 * trial.concurrency))
    assert loads_of(made)[:2] == [8, 8]
    assert alone.keeps
    assert alone.num_given_up == 1
    assert alone.side.trial.concurrency < 8
    assert alone.side.num_kept(SLO) == len(alone.side.all_rounds)


def test_one_disturbed_round_is_outvoted_and_never_left_out() -> None:
    alone, made = run(lambda trial, number: (108.0, 70.0 if number == 1 else 40.0))
    assert set(loads_of(made)) == {8}
    assert 3 < len(made) <= MAX_ROUNDS
    assert alone.keeps
    assert len(alone.side.all_rounds) == len(made)


def test_what_never_keeps_the_budget_serves_nothing_and_ends() -> None:
    alone, _ = run(lambda trial, number: (108.0, 90.0))
    assert not alone.keeps
    assert "no load of it kept the budget with confidence" in text_alone(LOADS[3], alone)
    assert served_by_one(Proof(alone=alone), None) is None
    assert not run(lambda trial, number: None)[0].keeps


def test_a_tuned_winner_beside_an_untuned_one_without_figures_is_not_called_a_gain() -> None:
    searched = [
        Measurement(Trial(UNTUNED, 1), "unstable", problem="windows differ"),
        measurement(TUNED, 4, 200.0, 30.0),
    ]
    alone, made = run(lambda trial, number: (200.0, 30.0), searched)
    assert {m.trial.knobs for m in made} == {TUNED}
    outcome = Outcome(Path("s.sqlite"), SLO, 5, searched[1], searched[1], None, None, alone=alone)
    assert outcome.text == (
        "not comparable: the untuned configuration could not be measured, and stays; the best that was found surely "
        "keeps the budget at 4 in flight (3 rounds)"
    )
    assert outcome.chosen is outcome.installable is None


def test_rows_of_another_load_are_passed_over() -> None:
    """A search that has gone on has found a better load."""
    _, made = run(lambda trial, number: (108.0, 40.0))
    step = next_proof([*LOADS, measurement(UNTUNED, 9, 120.0, 45.0)], made, SLO)
    assert step.trial is not None
    assert step.trial.concurrency == 9
    assert step.proof == Proof()

from collections.abc import Callable
from pathlib import Path

from pilot_perf.knobs import UNTUNED
from pilot_perf.measures import Earlier, Figures, Measurement, Trial
from pilot_perf.search.space import Space
from pilot_perf.slo import parse_slo
from pilot_perf.store import Store
from pilot_perf.study import Study
from pilot_perf.windows import WindowPlan

SLO = parse_slo(["p95:50"])
ATTEMPT = Earlier("unsteady", 150.0, (100.0, 200.0), 300, 2.0)


def study(store: Store, measure: Callable[[Trial, WindowPlan], Measurement], revivals: list[bool]) -> Study:
    return Study(store, measure, Space(max_concurrency=1), SLO, 2, max_measurements=1, revive=revivals.pop)


def test_what_was_measured_before_a_server_died_is_kept_with_what_the_next_one_gave(tmp_path: Path) -> None:
    answers = [
        Measurement(Trial(UNTUNED, 1), "failed", problem="gone", earlier=(ATTEMPT,)),
        Measurement(Trial(UNTUNED, 1), "measured", Figures(100.0, {"avg": 10.0, "p95": 12.0}, 500, 5.0)),
    ]
    with Store.create_or_resume(tmp_path / "s.sqlite", {"slo": str(SLO)}, "") as store:
        study(store, lambda _trial, _plan: answers.pop(0), [True]).search()
        (row,) = store.measurements("search")
    assert (row.status, row.earlier) == ("measured", (ATTEMPT,))
    assert answers == []


def test_an_answer_without_a_rival_is_proven_and_found_again_without_measuring(tmp_path: Path) -> None:
    """The load alone: one search window, three rounds, and the same call again measures nothing."""
    made: list[Trial] = []

    def measure(trial: Trial, _plan: WindowPlan) -> Measurement:
        made.append(trial)
        return Measurement(trial, "measured", Figures(100.0, {"avg": 10.0, "p95": 12.0}, 500, 5.0))

    for _ in range(2):
        with Store.create_or_resume(tmp_path / "s.sqlite", {"slo": str(SLO)}, "") as store:
            whole = study(store, measure, [])
            assert whole.search() is not None
            proof = whole.prove()
        assert proof.serving is not None
        assert proof.serving.throughput_per_s == 100.0
        assert len(made) == 4

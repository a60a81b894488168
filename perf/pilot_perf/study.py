"""Runs a study to its end: search, confirm, open loop, attribution, overload, each step from what the store holds.

Nothing is remembered outside the store, so a study that was killed goes on where it was when the same call is made
again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pilot_client import model_config
from pilot_perf.attribution import Attribution, next_attribution
from pilot_perf.bench import Measure
from pilot_perf.confirm import Verdict
from pilot_perf.errors import PerfError
from pilot_perf.knobs import Knobs
from pilot_perf.measures import Measurement, Trial
from pilot_perf.open_loop import OpenLoop, next_open_loop
from pilot_perf.overload import Protection, next_overload
from pilot_perf.proof import Proof, next_proof
from pilot_perf.search.drive import next_trial
from pilot_perf.search.quick import quick
from pilot_perf.search.space import Space
from pilot_perf.search.task import SearchTask, Strategy
from pilot_perf.slo import Slo
from pilot_perf.store import Phase, Store
from pilot_perf.windows import WindowPlan
from pilot_perf.winner import winner_of

SEARCH_WINDOWS = WindowPlan(window_ms=700, least_ms=300)
# Three windows know their mean by two degrees of freedom only; as wide as that, three more are worth their time.
CONFIRM_WINDOWS = WindowPlan(window_ms=1800, least_ms=900, num_enough=5, half_width=0.3)
ATTRIBUTION_WINDOWS = WindowPlan(window_ms=1000, least_ms=600, num_enough=5)
OVERLOAD_WINDOWS = WindowPlan(window_ms=1700)
MAX_MEASUREMENTS = 60

# Told of every measurement: the phase, its number in the phase, and the measurement.
Watch = Callable[[Phase, int, Measurement], None]


@dataclass
class Study:
    """A space and a budget, the strategy that searches, the store that remembers, and the bench that measures.

    `revive` is asked after a trial that brought nothing: whether the server had died and another one is there now. It
    raises where there is none: then the other trials would only fail one by one.
    """

    store: Store
    measure: Measure
    space: Space
    slo: Slo
    cpus: int
    same_as_untuned: Knobs | None = None
    max_measurements: int = MAX_MEASUREMENTS
    strategy: Strategy = quick
    revive: Callable[[], bool] = lambda: False
    watch: Watch = lambda _phase, _number, _measurement: None

    def search(self) -> Measurement | None:
        """Measure until the search ends or the measurements are used up. Returns the winner."""
        history = self.store.measurements("search")
        task = SearchTask(self.space, self.slo, self.cpus, self.max_measurements, self.same_as_untuned)
        while len(history) < self.max_measurements:
            step = next_trial(lambda: self.strategy(task), history)
            if step.trial is None:
                break
            history.append(self._run("search", len(history) + 1, step.trial, SEARCH_WINDOWS))
            # What fails the installed configuration would fail all others, one after the other.
            if history[0].status == "failed":
                break
        if history and history[0].status == "failed":
            raise PerfError(
                f"the installed configuration cannot be measured: {history[0].problem}. Mend that (a model with free "
                "dimensions needs --input-data), then start anew with --fresh"
            )
        return winner_of(history, self.slo)

    def prove(self) -> Proof:
        """Measure the winner and the untuned configuration in turn; alone where there is nothing to compare it with."""
        searched, confirmed = self.store.measurements("search"), self.store.measurements("confirm")
        while True:
            step = next_proof(searched, confirmed, self.slo)
            if step.trial is None:
                return step.proof
            confirmed.append(self._run("confirm", len(confirmed) + 1, step.trial, CONFIRM_WINDOWS))

    def hold_in_open_loop(self, knobs: Knobs, closed_loop_per_s: float) -> OpenLoop | None:
        """Find the arrival rate at which the answer keeps its budget. None where nothing was measured."""
        measured = self.store.measurements("open_loop")
        while True:
            step = next_open_loop(knobs, closed_loop_per_s, measured, self.slo)
            if step.trial is None:
                return step.result
            measured.append(self._run("open_loop", len(measured) + 1, step.trial, CONFIRM_WINDOWS))

    def attribute(self, verdict: Verdict) -> Attribution | None:
        """Measure what each knob of the chosen configuration brought. None where it is no gain."""
        searched, measured = self.store.measurements("search"), self.store.measurements("attribution")
        untuned = model_config.parse(self.store.untuned_config, "the study's config.pbtxt")
        while True:
            step = next_attribution(untuned, verdict, searched, measured, self.slo, self.space.max_concurrency)
            if step.trial is None:
                return step.attribution
            measured.append(self._run("attribution", len(measured) + 1, step.trial, ATTRIBUTION_WINDOWS))

    def protect(self, verdict: Verdict) -> Protection | None:
        """Find the bound of the queue that protects the chosen configuration; None: there is nothing to protect."""
        measured = self.store.measurements("overload")
        while True:
            step = next_overload(verdict, measured, self.slo)
            if step.trial is None:
                return step.protection
            measured.append(self._run("overload", len(measured) + 1, step.trial, OVERLOAD_WINDOWS))

    def _run(self, phase: Phase, number: int, trial: Trial, plan: WindowPlan) -> Measurement:
        started = time.monotonic()
        measurement = self.measure(trial, plan)
        gone: PerfError | None = None
        try:
            while measurement.figures is None and self.revive():
                reason = f"{trial.reason}; once more, since the server had died ({measurement.problem})"
                earlier, measurement = measurement.earlier, self.measure(replace(trial, reason=reason), plan)
                measurement = replace(measurement, earlier=(*earlier, *measurement.earlier))
        except PerfError as error:
            # The trial is a row nevertheless: it may have been the cause, and would be again when the study goes on.
            gone = error
        self.store.add(phase, measurement, time.monotonic() - started)
        self.watch(phase, number, measurement)
        if gone is not None:
            raise gone
        return measurement

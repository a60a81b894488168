"""The guided search with the configurations chosen by Optuna's sampler (TPE) instead of our own model of the space.

Each configuration is still probed at the certificate's load and climbed only if it can win; the sampler is told the
throughput within the budget that came of it. It is seeded, so the same measurements lead to the same choices.
"""

import math
from typing import Any

from pilot_perf.errors import PerfError
from pilot_perf.knobs import Knobs
from pilot_perf.search.progress import Progress
from pilot_perf.search.quick import Choice, guided
from pilot_perf.search.surrogate import Surrogate, features
from pilot_perf.search.task import Search, SearchTask

SEED = 0
# Times in a row that the sampler may repeat itself before what it has not tried is taken in order.
MAX_REPEATS = 50


def optuna_search(task: SearchTask) -> Search:
    """
    Raises:
        PerfError: Optuna is not installed.
    """
    return guided(task, _Sampler(task), Surrogate(task.space.configurations(), task.cpus))


class _Sampler:
    """Asks Optuna for configurations by the places of their levels, and tells it what came of the last one."""

    def __init__(self, task: SearchTask) -> None:
        try:
            import optuna
        except ImportError as error:
            raise PerfError(
                "the strategy optuna needs Optuna: pip install 'tritonpilot[optuna]', or use --strategy quick"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=SEED))
        self._configurations = task.space.configurations()
        self._levels = _levels(self._configurations)
        self._by_levels = {self._key(knobs): knobs for knobs in self._configurations}
        self._asked: tuple[Any, Knobs] | None = None

    def __call__(self, untried: list[Knobs], progress: Progress) -> Choice:
        if self._asked is not None:
            self._tell(*self._asked, progress)
        for _ in range(MAX_REPEATS):
            trial = self._study.ask()
            key = tuple(trial.suggest_int(name, 0, len(levels) - 1) for name, levels in self._levels.items())
            knobs = self._by_levels.get(key)
            if knobs is not None and knobs not in progress.tried:
                self._asked = (trial, knobs)
                return knobs, None
            self._tell(trial, knobs, progress)
        self._asked = None
        return untried[0], None

    def _tell(self, trial: Any, knobs: Knobs | None, progress: Progress) -> None:
        """Failed where nothing is known of a configuration: it does not load, or is none of the space."""
        import optuna

        worth = None if knobs is None else progress.worth.get(knobs)
        if worth is None:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, math.log(worth))

    def _key(self, knobs: Knobs) -> tuple[int, ...]:
        values = features(knobs)
        return tuple(levels.index(values.get(name)) for name, levels in self._levels.items())


def _levels(configurations: list[Knobs]) -> dict[str, list[Any]]:
    """Of each knob that varies, its levels in order."""
    all_features = [features(knobs) for knobs in configurations]
    levels = {}
    for name in sorted({name for found in all_features for name in found}):
        values = {found.get(name) for found in all_features}
        if len(values) > 1:
            levels[name] = sorted(values, key=lambda value: (value is not None, value))
    return levels

"""The strategies by the names that a person gives them."""

from pilot_perf.search.grid import grid
from pilot_perf.search.optuna_search import optuna_search
from pilot_perf.search.quick import quick
from pilot_perf.search.task import Strategy

STRATEGIES: dict[str, Strategy] = {"quick": quick, "grid": grid, "optuna": optuna_search}

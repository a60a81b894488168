"""What `sweep` and `tune` show while they measure."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pilot_perf.measures import Measurement
    from pilot_perf.slo import Slo
    from pilot_perf.store import Phase

_DOING: dict["Phase", str] = {
    "search": "searching (at most)",
    "confirm": "confirming",
    "open_loop": "open loop",
    "attribution": "one knob at a time",
    "overload": "overloading",
}


# Below this a rate is shown with a digit behind the point.
FEW_PER_S = 20


class Watcher:
    """One line per measurement on stderr, under a bar where stderr is a terminal."""

    def __init__(self, slo: "Slo", max_measurements: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        from pilot_perf.attempt import NUM_PAIRS

        self._slo = slo
        self._totals = {"search": max_measurements, "confirm": 2 * NUM_PAIRS}
        self._best_per_s = 0.0
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty())
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> "Watcher":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, number: int, title: str) -> None:
        self._progress.console.print(f"[{number}] {title}", style="bold", markup=False)

    def show(self, message: str) -> None:
        """A result on the way, not dimmed as progress is."""
        self._progress.console.print(f"  {message}", markup=False)

    def say(self, message: str) -> None:
        self._progress.console.print(f"  {message}", style="dim", markup=False)

    def __call__(self, phase: "Phase", number: int, measurement: "Measurement") -> None:
        if phase not in self._tasks:
            self._tasks[phase] = self._progress.add_task(_DOING[phase], total=self._totals.get(phase))
        self._progress.update(self._tasks[phase], completed=number)
        self._progress.console.print(f"  [{phase} {number}] {self._line(phase, measurement)}", markup=False)

    def _line(self, phase: "Phase", measurement: "Measurement") -> str:
        trial, figures = measurement.trial, measurement.figures
        load = f"{trial.concurrency} in flight" if trial.rate_per_s is None else f"{trial.rate_per_s:.0f}/s arrive"
        where = f"{trial.knobs}; {load}: "
        if figures is None:
            return f"{where}{measurement.status}: {measurement.problem}"
        kept = self._slo.is_kept(figures)
        is_best = kept and phase == "search" and figures.throughput_per_s > self._best_per_s
        if is_best:
            self._best_per_s = figures.throughput_per_s
        verdict = "best so far" if is_best else "keeps the budget" if kept else "breaks the budget"
        refused = f", {figures.refused_rate:.0%} refused" if figures.refused_rate else ""
        tokens = "" if figures.output_tokens_per_s is None else f", {figures.output_tokens_per_s:.0f} tokens/s"
        # A language model answers a few requests a second.
        digits = 0 if figures.throughput_per_s >= FEW_PER_S else 1
        return (
            f"{where}{figures.throughput_per_s:.{digits}f}/s{tokens}{refused}, {self._slo.describe(figures)}, {verdict}"
        )

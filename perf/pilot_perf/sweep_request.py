"""What a person asks a sweep for."""

from dataclasses import dataclass, field
from pathlib import Path

from pilot_client import model_config
from pilot_perf.default_space import Levels
from pilot_perf.errors import BudgetError
from pilot_perf.knobs import SharedMemory
from pilot_perf.requests import RequestOptions
from pilot_perf.slo import Slo


@dataclass(frozen=True)
class Request:
    """What to sweep.

    `model_dir` None: the server is not ours, its files are not seen. `may_reload` False: only the load is swept.
    `results_dir` receives the study, unless `study_file` names it, and the chosen config.pbtxt.
    """

    model: str
    slo: Slo
    levels: Levels
    results_dir: Path
    model_dir: Path | None = None
    requests: RequestOptions = field(default_factory=RequestOptions)
    study_file: Path | None = None
    strategy: str = "quick"
    # Of the search; None: MAX_MEASUREMENTS, for the strategy grid without end.
    max_measurements: int | None = None
    may_reload: bool = True
    fresh: bool = False
    # Whether to measure what each knob brought, and which bound of the queue protects the chosen configuration.
    attribution: bool = True
    protection: bool = True
    # Whether to try the answer with arrivals that do not wait, and the intervals of a recorded trace for them.
    open_loop: bool = True
    trace: Path | None = None
    shared_memory: SharedMemory = "none"
    output_bytes: int | None = None
    # Requests/s that are to be served; None: nothing was said.
    rate_per_s: float | None = None

    def __post_init__(self) -> None:
        """Raises BudgetError where two wishes exclude each other."""
        ways = {self.shared_memory, *(self.levels.shared_memories or ())}
        if ways != {"none"} and any(budget.measure == "error_rate" for budget in self.slo.budgets):
            raise BudgetError(
                "failed requests are counted by a client that sends tensors over the connection: leave --shared-memory "
                "or the budget on error_rate out"
            )

    def model_dir_of(self, name: str) -> Path | None:
        """The folder of this model, or of a member of this ensemble, which lies beside it."""
        return None if self.model_dir is None else self.model_dir.parent / name

    def version_dir_of(self, name: str) -> Path | None:
        folder = self.model_dir_of(name)
        return None if folder is None else model_config.latest_version_dir(folder)

"""Turns a trial into a measurement on a real server: load the configuration, warm it up, load it, read all clocks.

Whatever goes wrong with one trial becomes a measurement that failed, with the reason; only a server that is gone
raises, because then no other trial can succeed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_client import repository, statistics
from pilot_client.errors import ClientError
from pilot_client.statistics import ModelStatistics
from pilot_perf.config_override import ENGINE_BACKENDS, apply, backend_of
from pilot_perf.errors import (
    AnalyzerError,
    EmptyWindowsError,
    FailedRequestsError,
    InputDataError,
    KnobError,
)
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.loading import Loader
from pilot_perf.measures import Earlier, Figures, Measurement, Point, Stages, Trial
from pilot_perf.merge import merged
from pilot_perf.target import Target
from pilot_perf.windows import WindowPlan, contradiction, disagreement, is_below_load, is_enough

UNSTEADY_ATTEMPTS = 2
# Windows without an answer become this much longer.
LONGER = 4

ERROR_BUDGET = ". A budget on the error rate (--slo error_rate:0.01) would count failures instead"

# Measures one trial with windows of the given plan.
Measure = Callable[[Trial, WindowPlan], Measurement]


@dataclass
class Bench:
    """One model on one server. `installed` is the full configuration that the untuned model runs with.

    `loaded` is what the server runs now, None when that is not known (a load has failed).
    """

    loader: Loader
    installed: ModelConfig
    # Of an ensemble: the configuration that each member is installed with, by its name.
    members: Mapping[str, ModelConfig] = field(default_factory=dict)
    loaded: Knobs | None = field(default=UNTUNED)
    # What the server is warm for, and the requests/s seen then.
    _warm: Point | None = None
    _expected_per_s: float | None = None
    # Whether a load has exchanged a configuration since the server was as we found it.
    _is_overridden: bool = False

    def measure(self, trial: Trial, plan: WindowPlan) -> Measurement:
        earlier: list[Earlier] = []
        try:
            self.load(trial.knobs)
            self._warm_up(trial)
            measurement = self._measure_steady(trial, plan, earlier)
        except (AnalyzerError, KnobError, InputDataError, ClientError) as error:
            is_uncounted = isinstance(error, FailedRequestsError) and not self._counts_failures(trial)
            mend = ERROR_BUDGET if is_uncounted else ""
            measurement = Measurement(trial, "failed", problem=" ".join(f"{error}{mend}".split()))
        return replace(measurement, earlier=tuple(earlier))

    def restore(self) -> None:
        """Load the untuned configuration again; a server that is not ours reads it from its own files."""
        if self.loader.server_pid is None and self._is_overridden:
            self._give_back()
        self.load(UNTUNED)

    def _give_back(self) -> None:
        """Have the server forget every override, which hides what its owner writes into a file from then on.

        A plain load keeps an override, so everything is unloaded first: an ensemble before its members. Where the files
        say something else than what was found, the override that says it is loaded again.
        """
        url, model = self._where
        installed = {**self.members, model: self.installed}
        self.loaded, self._warm = None, None
        for name in reversed(installed):
            repository.unload(url, name)
        for name, config in installed.items():
            try:
                repository.load(url, name)
                is_same = repository.model_config(url, name) == config
            except ClientError:
                is_same = False
            if not is_same:
                repository.load(url, name, config)
        repository.wait_ready(url, model)
        self.loaded, self._is_overridden = UNTUNED, False

    def reload(self) -> None:
        """Load the untuned configuration, whatever the server runs."""
        self.loaded = None
        self.load(UNTUNED)

    def load(self, knobs: Knobs) -> None:
        """Have the server run the configuration, where it does not already. How tensors get there is the client's."""
        knobs = replace(knobs, shared_memory=None)
        if self.loaded == knobs:
            return
        before, self.loaded = self.loaded, None
        url, model = self._where
        if not self.members:
            self._load_model(model, apply(self.installed, knobs))
        for name, config in self.members.items():
            own = dict(knobs.members).get(name, UNTUNED)
            if before is None or own != dict(before.members).get(name, UNTUNED):
                self._load_model(name, apply(config, own))
        repository.wait_ready(url, model)
        self.loaded, self._warm = knobs, None

    def _load_model(self, name: str, config: ModelConfig) -> None:
        url, _ = self._where
        if backend_of(config) in ENGINE_BACKENDS:
            # Both at once would need the memory twice, and the engine would take what the old one leaves.
            repository.unload(url, name)
        repository.load(url, name, config)
        self._is_overridden = True

    def move_to(self, grpc_url: str, server_pid: int | None) -> None:
        """Go on with another server, which runs the untuned configuration."""
        self.loader.move_to(grpc_url, server_pid)
        self.loaded, self._warm, self._is_overridden = UNTUNED, None, False

    @property
    def target(self) -> Target:
        return self.loader.target

    @property
    def _where(self) -> tuple[str, str]:
        return self.target.grpc_url, self.target.model

    def _warm_up(self, trial: Trial) -> None:
        """Once per load and configuration: the first batches of each size pay for allocations."""
        if self._warm == trial.point:
            return
        try:
            with self._served():
                self._expected_per_s = self.loader.warm_up(trial)
        except FailedRequestsError:
            if not self._counts_failures(trial):
                raise
            self._expected_per_s = None
        self._warm = trial.point

    def _counts_failures(self, trial: Trial) -> bool:
        """Whether failures are a result: in an open loop, where a queue may refuse, and under a budget on them."""
        return trial.rate_per_s is not None or any(b.measure == "error_rate" for b in self.loader.slo.budgets)

    @contextmanager
    def _served(self) -> Iterator[list[ModelStatistics]]:
        """Gives what the server did in the block, once it has ended.

        perf_analyzer may leave failed requests out of its numbers without a word, so they are looked for here.
        """
        before = statistics.read(*self._where)
        result: list[ModelStatistics] = []
        problem: AnalyzerError | None = None
        try:
            yield result
        except AnalyzerError as error:
            problem = error
        served = statistics.read(*self._where).since(before)
        if served.fail_count:
            asked = served.fail_count + served.success_count
            words = f": {problem}" if isinstance(problem, FailedRequestsError) else "; the server's log says why"
            raise FailedRequestsError(f"{served.fail_count} of {asked} requests failed{words}") from problem
        if problem is not None:
            raise problem
        result.append(served)

    def _measure_steady(self, trial: Trial, plan: WindowPlan, earlier: list[Earlier]) -> Measurement:
        """Measure, longer where there are too few requests, and once more where the windows disagree.

        What does not count is added to `earlier`.
        """
        slo, window_ms, problem, attempts = self.loader.slo, self._first_window_ms(trial, plan), "", 0
        while attempts < UNSTEADY_ATTEMPTS:
            try:
                figures = self._measure_once(trial, window_ms)
                if longer := plan.longer(window_ms, figures, slo):
                    earlier.append(_earlier(figures, "too few requests"))
                    window_ms = longer
                    figures = self._measure_once(trial, window_ms)
            except EmptyWindowsError as error:
                problem = str(error)
                if window_ms >= plan.max_window_ms:
                    break
                window_ms = min(LONGER * window_ms, plan.max_window_ms)
                continue
            if missing := slo.unmeasured(figures):
                names = ", ".join(budget.name for budget in missing)
                return Measurement(trial, "failed", problem=f"{names} cannot be measured here: leave that budget out")
            if not is_enough(figures, slo, share=0.5):
                problem = (
                    f"{figures.num_requests} requests in {figures.window_s:.0f} s are too few for {slo}: "
                    f"about {slo.min_requests} are needed"
                )
                earlier.append(_earlier(figures, "too few requests"))
                break
            problem, attempts = disagreement(figures.window_rates_per_s, figures.num_requests) or "", attempts + 1
            is_closed = trial.rate_per_s is None
            if not problem and is_closed:
                problem = contradiction(figures, trial.concurrency) or ""
                # Once more; that the client cannot keep the load up is a result, and the report says it.
                if attempts < UNSTEADY_ATTEMPTS and is_below_load(figures, trial.concurrency):
                    earlier.append(_earlier(figures, "fewer requests in flight than asked for"))
                    continue
            if not problem:
                return Measurement(trial, "measured", self._narrowed(figures, trial, window_ms, plan))
            earlier.append(_earlier(figures, "unsteady"))
            window_ms = max(window_ms, plan.window_ms)
        return Measurement(trial, "unstable", problem=problem)

    def _first_window_ms(self, trial: Trial, plan: WindowPlan) -> int:
        """An open loop is about what comes now and then, so its windows are not shortened."""
        if trial.rate_per_s is not None or self._expected_per_s is None:
            return plan.window_ms
        return plan.first_ms(self._expected_per_s, self.loader.slo, trial.concurrency)

    def _narrowed(self, figures: Figures, trial: Trial, window_ms: int, plan: WindowPlan) -> Figures:
        """`figures` with those of further windows, where the plan asks for surer ones."""
        runs = [figures]
        while len(runs) <= plan.max_repeats and plan.is_wide(merged(runs)):
            try:
                runs.append(self._measure_once(trial, window_ms))
            except EmptyWindowsError:
                break
        return merged(runs)

    def _measure_once(self, trial: Trial, window_ms: int) -> Figures:
        try:
            with self._served() as served, self._served_by_members() as members:
                figures = self.loader.by_analyzer(trial, window_ms)
            return _with_servers_times(figures, served[0], members)
        except FailedRequestsError:
            if not self._counts_failures(trial):
                raise
        before = statistics.read(*self._where)
        with self._served_by_members() as members:
            figures = self.loader.by_own_client(trial, window_ms)
        return _with_servers_times(figures, statistics.read(*self._where).since(before), members)

    @contextmanager
    def _served_by_members(self) -> Iterator[dict[str, ModelStatistics]]:
        """Gives what each member of an ensemble did in the block, once it has ended well."""
        url, _ = self._where
        before = {name: statistics.read(url, name) for name in self.members}
        result: dict[str, ModelStatistics] = {}
        yield result
        result.update({name: statistics.read(url, name).since(earlier) for name, earlier in before.items()})


def _earlier(figures: Figures, why: str) -> Earlier:
    rates = figures.window_rates_per_s
    return Earlier(why, figures.throughput_per_s, rates, figures.num_requests, figures.window_s)


def _with_servers_times(figures: Figures, served: ModelStatistics, members: Mapping[str, ModelStatistics]) -> Figures:
    return replace(
        figures,
        stages=_stages(served),
        batch_counts=dict(served.batch_counts),
        members={name: _stages(of_member) for name, of_member in members.items()} or None,
    )


def _stages(served: ModelStatistics) -> Stages:
    return Stages(
        served.queue_ms,
        served.compute_input_ms,
        served.compute_infer_ms,
        served.compute_output_ms,
        served.mean_batch_size,
    )

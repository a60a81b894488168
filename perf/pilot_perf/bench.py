"""Turns a trial into a measurement on a real server: load the configuration, warm it up, load it, read all clocks.

Whatever goes wrong with one trial becomes a measurement that failed, with the reason; only a server that is gone
raises, because then no other trial can succeed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_client import repository, statistics
from pilot_client.errors import ClientError
from pilot_client.statistics import ModelStatistics
from pilot_perf.analyzer import Target, measure_load, warm_up
from pilot_perf.analyzer_output import AnalyzerResult
from pilot_perf.config_override import apply
from pilot_perf.errors import AnalyzerError, KnobError, UnsteadyError
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Figures, Measurement, Point, Stages, Trial
from pilot_perf.process_cpu import cpu_seconds_between, tree_cpu_seconds
from pilot_perf.slo import Slo
from pilot_perf.usage import Usage
from pilot_perf.windows import WindowPlan, disagreement
from pilot_server.toolchain import PerfAnalyzer

WARM_UP_MS = 400
UNSTEADY_ATTEMPTS = 2

# Measures one trial with windows of the given plan.
Measure = Callable[[Trial, WindowPlan], Measurement]


@dataclass
class Bench:
    """One model on one server. `installed` is the full configuration that the untuned model runs with.

    `loaded` is what the server runs now, None when that is not known (a load has failed).
    """

    analyzer: PerfAnalyzer
    target: Target
    installed: ModelConfig
    slo: Slo
    server_pid: int | None = None
    loaded: Knobs | None = field(default=UNTUNED)
    _warm: Point | None = None

    def measure(self, trial: Trial, plan: WindowPlan) -> Measurement:
        try:
            self._load(trial.knobs)
            self._warm_up(trial)
            return self._measure_steady(trial, plan)
        except (AnalyzerError, KnobError, ClientError) as error:
            return Measurement(trial, "failed", problem=" ".join(str(error).split()))

    def restore(self) -> None:
        """Load the untuned configuration again."""
        self._load(UNTUNED)

    def _load(self, knobs: Knobs) -> None:
        if self.loaded == knobs:
            return
        self.loaded = None
        config = apply(self.installed, knobs)
        repository.load(self.target.grpc_url, self.target.model, config)
        repository.wait_ready(self.target.grpc_url, self.target.model)
        self.loaded, self._warm = knobs, None

    def _warm_up(self, trial: Trial) -> None:
        """Once per load and configuration: the first batches of each size pay for allocations."""
        if self._warm != trial.point:
            with self._served():
                warm_up(self.analyzer, self.target, trial.concurrency, WARM_UP_MS)
            self._warm = trial.point

    @contextmanager
    def _served(self) -> Iterator[list[ModelStatistics]]:
        """Gives what the server did in the block, once it has ended.

        perf_analyzer leaves failed requests out of its numbers without a word, so they are looked for here.
        """
        url, model = self.target.grpc_url, self.target.model
        before = statistics.read(url, model)
        result: list[ModelStatistics] = []
        problem: AnalyzerError | None = None
        try:
            yield result
        except AnalyzerError as error:
            problem = error
        served = statistics.read(url, model).since(before)
        if served.fail_count:
            asked = served.fail_count + served.success_count
            raise AnalyzerError(
                f"{served.fail_count} of {asked} requests failed; the server's log says why"
            ) from problem
        if problem is not None:
            raise problem
        result.append(served)

    def _measure_steady(self, trial: Trial, plan: WindowPlan) -> Measurement:
        """Measure, longer where there are too few requests, and once more where the windows disagree."""
        window_ms, problem = plan.window_ms, ""
        for _ in range(UNSTEADY_ATTEMPTS):
            try:
                result, figures = self._measure_once(trial, window_ms)
                if longer := plan.longer(window_ms, result.num_requests, self.slo):
                    window_ms = longer
                    result, figures = self._measure_once(trial, window_ms)
            except UnsteadyError as error:
                problem = str(error)
                continue
            if missing := self.slo.unmeasured(figures):
                names = ", ".join(budget.name for budget in missing)
                return Measurement(
                    trial, "failed", problem=f"{names} was not measured: this model or load has no such number"
                )
            if result.num_requests < self.slo.min_requests / 2:
                problem = (
                    f"{result.num_requests} requests in {result.window_s:.0f} s are too few for {self.slo}: "
                    f"about {self.slo.min_requests} are needed"
                )
                break
            problem = disagreement(result.window_rates_per_s, result.num_requests) or ""
            if not problem:
                return Measurement(trial, "measured", figures)
        return Measurement(trial, "unstable", problem=problem)

    def _measure_once(self, trial: Trial, window_ms: int) -> tuple[AnalyzerResult, Figures]:
        cpu_before = {} if self.server_pid is None else tree_cpu_seconds(self.server_pid)
        with self._served() as served:
            result = measure_load(self.analyzer, self.target, trial.concurrency, window_ms)
        cpu_s = None
        if self.server_pid is not None:
            cpu_s = cpu_seconds_between(cpu_before, tree_cpu_seconds(self.server_pid))
        stages = Stages(
            served[0].queue_ms,
            served[0].compute_input_ms,
            served[0].compute_infer_ms,
            served[0].compute_output_ms,
            served[0].mean_batch_size,
        )
        figures = Figures(
            result.throughput_per_s,
            result.latency_ms,
            result.num_requests,
            result.window_s,
            stages,
            Usage(server_cpu_cores=None if cpu_s is None else cpu_s / result.window_s),
            window_rates_per_s=result.window_rates_per_s,
        )
        return result, figures

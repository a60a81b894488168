"""Puts one load on a model that is there, and turns what came back into figures.

perf_analyzer puts it on where it is measured, as far as it can. It ends at the first request that fails, so where
failures are to be counted (in an open loop, whose queue may refuse; under a budget on the error rate) our own client
takes over. That one also warms up: perf_analyzer takes a second to start and to end.
"""

import time
from dataclasses import asdict, dataclass, replace
from itertools import count

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_perf import own_client
from pilot_perf.analyzer import WINDOW_STRETCH, Load, LoadRun, measure_load
from pilot_perf.input_data import Row
from pilot_perf.llm_measures import llm_figures
from pilot_perf.measures import Figures, Trial
from pilot_perf.model_inputs import inputs_of
from pilot_perf.own_client import OwnLoad
from pilot_perf.percentiles import summary
from pilot_perf.records import NS_PER_S, LoadRecords
from pilot_perf.schedule import at_rate, poisson_intervals_us
from pilot_perf.slo import Slo
from pilot_perf.target import Target
from pilot_perf.usage_sampler import UsageSampler
from pilot_perf.widths import percentile_half_widths
from pilot_perf.windows import NUM_WINDOWS
from pilot_server.toolchain import PerfAnalyzer

WARM_UP_MS, WARM_UP_ROWS = 400, 64
# In flight while an open loop is warmed up: its own bound may be far above what the server takes at once.
OPEN_LOOP_WARM_UP = 4
# perf_analyzer's start and end, beside its windows.
_MARGIN_S = 3.0


@dataclass
class Loader:
    """The client's side of a bench. `config` is the model's configuration. `server_pid` None: not seen from here."""

    analyzer: PerfAnalyzer
    target: Target
    config: ModelConfig
    slo: Slo
    server_pid: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self._loads = count()

    def move_to(self, grpc_url: str, server_pid: int | None) -> None:
        self.target, self.server_pid = replace(self.target, grpc_url=grpc_url), server_pid

    def warm_up(self, trial: Trial) -> float:
        """Put the load on for a moment, over the connection. Returns the requests/s that were answered, which is less
        than perf_analyzer would get of a fast model. Raises as `own_client.warm_up`.
        """
        concurrency = trial.concurrency if trial.rate_per_s is None else min(trial.concurrency, OPEN_LOOP_WARM_UP)
        return own_client.warm_up(self._own_load(concurrency, WARM_UP_ROWS), WARM_UP_MS)

    def by_analyzer(self, trial: Trial, window_ms: int) -> Figures:
        """The figures of three windows, without the server's own times. Raises as `analyzer.measure_load`."""
        load = Load(trial.concurrency, self._intervals_us(trial, window_ms))
        with UsageSampler(self.server_pid) as sampler:
            run = measure_load(self.analyzer, self._target_of(trial), load, window_ms, sampler.watch_client)
        usage = sampler.usage(*run.period_s)
        if run.records is not None:
            return replace(self._from_records(run.records, trial), usage=usage)
        return replace(_from_result(run), usage=usage)

    def by_own_client(self, trial: Trial, window_ms: int) -> Figures:
        """The same, counting failures; tensors come over the connection, whatever the trial says. Raises as
        `own_client.measure`.
        """
        load = replace(self._own_load(trial.concurrency), intervals_us=self._intervals_us(trial, window_ms))
        clock_ns = time.time_ns() - time.monotonic_ns()
        with UsageSampler(self.server_pid) as sampler:
            records = own_client.measure(load, window_ms, sampler.watch_client)
        first_ns, last_ns = records.borders_ns[0] - clock_ns, records.borders_ns[-1] - clock_ns
        usage = sampler.usage(first_ns / NS_PER_S, last_ns / NS_PER_S)
        return replace(self._from_records(records, trial), usage=usage)

    def _own_load(self, concurrency: int, max_rows: int | None = None) -> OwnLoad:
        target = self.target
        rows = [self._with_batch(row) for row in target.requests.rows()[:max_rows]]
        datatypes = {name: spec.datatype for name, spec in inputs_of(self.config).items()}
        return OwnLoad(
            *(target.grpc_url, target.model, datatypes, rows, target.is_streamed, concurrency),
            is_sequence=self.config.HasField("sequence_batching"),
        )

    def _target_of(self, trial: Trial) -> Target:
        memory = trial.knobs.shared_memory
        return self.target if memory is None else replace(self.target, shared_memory=memory)

    def _intervals_us(self, trial: Trial, window_ms: int) -> list[int] | None:
        """The schedule of an open loop; each load draws another one."""
        if trial.rate_per_s is None:
            return None
        if self.target.trace_us is not None:
            return at_rate(self.target.trace_us, trial.rate_per_s)
        seconds = NUM_WINDOWS * WINDOW_STRETCH * window_ms / 1000.0 + _MARGIN_S
        return poisson_intervals_us(trial.rate_per_s, seconds, seed=hash((self.seed, next(self._loads))))

    def _with_batch(self, row: Row) -> Row:
        if self.config.max_batch_size < 1:
            return row
        return {name: array[np.newaxis] for name, array in row.items()}

    def _from_records(self, records: LoadRecords, trial: Trial) -> Figures:
        succeeded = records.succeeded
        figures = Figures(
            throughput_per_s=len(succeeded) / records.window_s,
            latency_ms=records.latency_ms(self.target.statistics.get("latency_ms", ())),
            num_requests=len(succeeded),
            window_s=records.window_s,
            error_rate=records.error_rate,
            window_rates_per_s=records.window_rates_per_s(),
            asked_rate_per_s=trial.rate_per_s,
            late_sends=None if trial.rate_per_s is None else records.late_sends,
            refused_rate=len(records.refused) / len(records.records),
            refused_ms=summary(record.latency_ms for record in records.refused),
            half_widths=percentile_half_widths(
                [record.latency_ms for record in succeeded], self.target.statistics.get("latency_ms", ())
            ),
        )
        if (tokens := self.target.requests.tokens) is None:
            return figures
        of_tokens = asdict(llm_figures(records, tokens, self.target.statistics, self.slo))
        of_tokens["half_widths"] = {**(figures.half_widths or {}), **of_tokens["half_widths"]}
        return replace(figures, **of_tokens)


def _from_result(run: LoadRun) -> Figures:
    if run.result is None:
        raise ValueError("a launch brings records or a result")
    return Figures(
        throughput_per_s=run.result.throughput_per_s,
        latency_ms=run.result.latency_ms,
        num_requests=run.result.num_requests,
        window_s=run.result.window_s,
        error_rate=0.0,
        window_rates_per_s=run.result.window_rates_per_s,
    )

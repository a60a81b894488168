"""Turns a trial of the overload phase into a measurement: the load that may be refused, and the server's times."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pilot_client import statistics
from pilot_client.errors import ClientError
from pilot_perf.analyzer import Target
from pilot_perf.errors import PerfError
from pilot_perf.knobs import Knobs
from pilot_perf.measures import Figures, Measurement, Stages, Trial
from pilot_perf.overload import window_s
from pilot_perf.refusing_load import Answers, measure_refusals, request_bytes, statistics_of
from pilot_perf.slo import Slo

STATISTICS = ("avg", "p50", "p90", "p95", "p99")


@dataclass
class OverloadBench:
    """`load` has the server run a configuration; requests are made once, at the first measurement."""

    load: Callable[[Knobs], None]
    target: Target
    slo: Slo
    _requests: list[bytes] = field(default_factory=list)

    def measure(self, trial: Trial) -> Measurement:
        url, model = self.target.grpc_url, self.target.model
        if trial.rate_per_s is None:
            raise ValueError("an overload needs a rate")
        try:
            self.load(trial.knobs)
            if not self._requests:
                self._requests = request_bytes(url, model, self.target.input_data)
            before = statistics.read(url, model)
            seconds = window_s(trial.rate_per_s, self.slo)
            answers = measure_refusals(url, self._requests, trial.rate_per_s, seconds, trial.concurrency)
            served = statistics.read(url, model).since(before)
        except (ClientError, PerfError) as error:
            return Measurement(trial, "failed", problem=" ".join(str(error).split()))
        if not answers.accepted_ms:
            return Measurement(trial, "failed", problem="no request was accepted")
        stages = Stages(
            served.queue_ms,
            served.compute_input_ms,
            served.compute_infer_ms,
            served.compute_output_ms,
            served.mean_batch_size,
        )
        return Measurement(trial, "measured", self._figures(answers, trial.rate_per_s, stages))

    def _figures(self, answers: Answers, rate_per_s: float, stages: Stages) -> Figures:
        names = tuple(dict.fromkeys([*STATISTICS, *self.slo.statistics_of("latency_ms")]))
        accepted = len(answers.accepted_ms)
        return Figures(
            accepted / answers.window_s,
            statistics_of(answers.accepted_ms, names),
            accepted,
            answers.window_s,
            stages,
            error_rate=len(answers.refused_ms) / answers.num_sent,
            asked_rate_per_s=rate_per_s,
            late_sends=answers.late_share,
            refused_ms=statistics_of(answers.refused_ms, names) or None,
        )

"""Whom to load, with what, and what is wanted of it: all that is the same for every measurement of a study."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_perf.errors import BudgetError, InputDataError
from pilot_perf.knobs import SharedMemory
from pilot_perf.measures import TIMES
from pilot_perf.percentiles import USUAL_STATISTICS
from pilot_perf.requests import Requests
from pilot_perf.slo import Slo


@dataclass(frozen=True)
class Target:
    """One model on one server.

    `statistics` names what is wanted of each time beyond the usual ones.
    """

    grpc_url: str
    model: str
    requests: Requests
    statistics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # A decoupled model answers over a gRPC stream, with any number of responses.
    is_streamed: bool = False
    shared_memory: SharedMemory = "none"
    # The largest output tensor of text or of a free shape, which shared memory must have room for.
    output_bytes: int | None = None
    # The intervals of a recorded trace, for open loops; None: a Poisson process.
    trace_us: tuple[int, ...] | None = None

    @property
    def extra_statistics(self) -> tuple[str, ...]:
        """Statistics of the latency that perf_analyzer does not print."""
        return tuple(name for name in self.statistics.get("latency_ms", ()) if name not in USUAL_STATISTICS)


def target_for(grpc_url: str, config: ModelConfig, requests: Requests, slo: Slo, **options: Any) -> Target:
    """The model of `config` at `grpc_url`, with what `slo` wants to know; `options` as Target's fields.

    Raises:
        BudgetError: a budget on tokens, for a model that does not stream them.
        InputDataError: shared memory for a language model.
    """
    if requests.tokens is not None and options.get("shared_memory", "none") != "none":
        raise InputDataError(
            f"{config.name} is a language model: its answers must come over the connection, or their tokens are not "
            "seen. Leave --shared-memory out"
        )
    is_streamed = config.model_transaction_policy.decoupled
    about_tokens = [budget for budget in slo.budgets if budget.measure in ("ttft_ms", "itl_ms")]
    if about_tokens and (requests.tokens is None or not is_streamed):
        what = "is no language model" if requests.tokens is None else "answers in one piece (it is not decoupled)"
        raise BudgetError(f"{config.name} {what}, so nothing can be said of {about_tokens[0].name}: limit its latency")
    statistics = {measure: slo.statistics_of(measure) for measure in TIMES}
    return Target(grpc_url, config.name, requests, statistics, is_streamed, **options)

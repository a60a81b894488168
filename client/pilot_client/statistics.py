"""Triton's own counters of a model: how many requests, in which batches, and where their time went."""

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

from pilot_client.connection import grpc_connection
from pilot_client.errors import ClientError

NS_PER_MS = 1e6


@dataclass(frozen=True)
class ModelStatistics:
    """Cumulative since the model was loaded; with several versions loaded, their sum.

    A request counts once, `inference_count` counts its rows, `execution_count` the batches that the backend ran.
    Times are sums over successful requests; a request in a batch carries the compute time of its whole batch.
    """

    inference_count: int = 0
    execution_count: int = 0
    success_count: int = 0
    success_ns: int = 0
    fail_count: int = 0
    fail_ns: int = 0
    queue_count: int = 0
    queue_ns: int = 0
    compute_input_count: int = 0
    compute_input_ns: int = 0
    compute_infer_count: int = 0
    compute_infer_ns: int = 0
    compute_output_count: int = 0
    compute_output_ns: int = 0
    cache_hit_count: int = 0
    cache_hit_ns: int = 0
    cache_miss_count: int = 0
    cache_miss_ns: int = 0
    # Batches that the backend ran, by their number of rows.
    batch_counts: Counter[int] = field(default_factory=Counter)

    def since(self, earlier: "ModelStatistics") -> "ModelStatistics":
        """What happened between `earlier` and this reading, as counters of their own.

        Raises:
            ClientError: a counter went back, so the model was loaded anew in between.
        """
        difference = {name: getattr(self, name) - getattr(earlier, name) for name in _COUNTERS}
        if any(value < 0 for value in difference.values()):
            raise ClientError("the model was loaded anew between two readings of its statistics: measure again")
        return ModelStatistics(**difference, batch_counts=self.batch_counts - earlier.batch_counts)

    @property
    def queue_ms(self) -> float | None:
        """Mean time a request waited before its batch ran; None when nothing ran. The same for those below."""
        return _mean_ms(self.queue_ns, self.queue_count)

    @property
    def compute_input_ms(self) -> float | None:
        return _mean_ms(self.compute_input_ns, self.compute_input_count)

    @property
    def compute_infer_ms(self) -> float | None:
        return _mean_ms(self.compute_infer_ns, self.compute_infer_count)

    @property
    def compute_output_ms(self) -> float | None:
        return _mean_ms(self.compute_output_ns, self.compute_output_count)

    @property
    def request_ms(self) -> float | None:
        return _mean_ms(self.success_ns, self.success_count)

    @property
    def mean_batch_size(self) -> float | None:
        """Rows per batch that the backend ran."""
        return self.inference_count / self.execution_count if self.execution_count else None


_COUNTERS = tuple(field.name for field in fields(ModelStatistics) if field.name != "batch_counts")


def read(url: str, model: str, timeout_s: float = 10.0) -> ModelStatistics:
    """The counters of `model` now.

    Raises:
        ModelNotReadyError: the model is not loaded.
    """
    with grpc_connection(url) as connection:
        response: Any = connection.get_inference_statistics(model, client_timeout=timeout_s)
    totals = dict.fromkeys(_COUNTERS, 0)
    batch_counts: Counter[int] = Counter()
    for row in response.model_stats:
        batch_counts.update({batch.batch_size: batch.compute_infer.count for batch in row.batch_stats})
        totals["inference_count"] += row.inference_count
        totals["execution_count"] += row.execution_count
        for duration in (
            "success",
            "fail",
            "queue",
            "compute_input",
            "compute_infer",
            "compute_output",
            "cache_hit",
            "cache_miss",
        ):
            totals[f"{duration}_count"] += getattr(row.inference_stats, duration).count
            totals[f"{duration}_ns"] += getattr(row.inference_stats, duration).ns
    return ModelStatistics(**totals, batch_counts=batch_counts)


def _mean_ms(total_ns: int, count: int) -> float | None:
    return total_ns / count / NS_PER_MS if count else None

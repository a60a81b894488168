"""What the engine counts, under vLLM's metric names and with vLLM's meaning.

    vllm:num_requests_running                gauge      requests in the running batch
    vllm:num_requests_waiting                gauge      accepted requests that do not run: being tokenised, in the
                                                        queue, or preempted
    vllm:kv_cache_usage_perc                 gauge      held KV blocks / all, 0..1
    vllm:prefix_cache_queries_total          counter    prompt tokens looked up in the prefix cache
    vllm:prefix_cache_hits_total             counter    of these: found
    vllm:num_preemptions_total               counter
    vllm:prompt_tokens_total                 counter    prompt tokens of requests that have started
    vllm:generation_tokens_total             counter    tokens sampled
    vllm:spec_decode_num_drafts_total        counter    guesses of what follows
    vllm:spec_decode_num_draft_tokens_total     counter tokens guessed
    vllm:spec_decode_num_accepted_tokens_total  counter of these: right
    vllm:request_success_total               counter    by finished_reason: stop, length, abort, error
    vllm:time_to_first_token_seconds         histogram  arrival to first token sampled
    vllm:inter_token_latency_seconds         histogram  between a sequence's tokens
    vllm:e2e_request_latency_seconds         histogram  arrival to end
    vllm:request_queue_time_seconds          histogram  arrival to first scheduled
    vllm:request_prefill_time_seconds        histogram  first scheduled to first token
    vllm:request_decode_time_seconds         histogram  first token to last token
    vllm:request_prompt_tokens               histogram  of finished requests
    vllm:request_generation_tokens           histogram  of finished requests, all sequences together
    vllm:request_params_n                    histogram
    vllm:request_params_max_tokens           histogram

All times are of one monotonic clock. Exporting costs far more than counting (some 20 us a value in Triton), so nobody
exports here: an exporter takes a `snapshot` once or twice a second.

Shared: all values, under `_lock`. The engine thread writes once a step, a responder thread once a request. Who has
not started yet is known to the waiting room, which is asked for each snapshot.
"""

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pilot_llm.mailbox import LockFactory, plain_lock
from pilot_llm.request import FinishReason

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0)
_COUNTS = (1.0, 2.0, 5.0, 10.0, 20.0)

HISTOGRAM_BUCKETS: Mapping[str, tuple[float, ...]] = {
    "vllm:time_to_first_token_seconds": _SECONDS,
    "vllm:inter_token_latency_seconds": _SECONDS,
    "vllm:e2e_request_latency_seconds": _SECONDS,
    "vllm:request_queue_time_seconds": _SECONDS,
    "vllm:request_prefill_time_seconds": _SECONDS,
    "vllm:request_decode_time_seconds": _SECONDS,
    "vllm:request_prompt_tokens": _TOKENS,
    "vllm:request_generation_tokens": _TOKENS,
    "vllm:request_params_n": _COUNTS,
    "vllm:request_params_max_tokens": _TOKENS,
}
"""Upper bounds of each histogram's buckets; a last bucket without a bound follows."""

COUNTERS = (
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
)

GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")

FINISHED_REASON: Mapping[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "cancelled": "abort",
    "timeout": "abort",
    "error": "error",
}
"""Our finish reason -> label `finished_reason` of vllm:request_success_total."""


@dataclass(frozen=True)
class HistogramValues:
    """`counts[i]` observations were at most `bounds[i]` and above the bound before; the last had no bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True)
class MetricsSnapshot:
    """All values at one moment. Counters and histograms never go down."""

    counters: Mapping[str, int]
    requests_by_finished_reason: Mapping[str, int]
    gauges: Mapping[str, float]
    histograms: Mapping[str, HistogramValues]


@dataclass
class _Histogram:
    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.sum += value * times


Observation = tuple[str, float, int]
"""(name of a histogram, value, how many times)."""


class EngineMetrics:
    """Counts for one engine."""

    def __init__(self, make_lock: LockFactory = plain_lock, num_not_started: Callable[[], int] = lambda: 0) -> None:
        """`num_not_started`: accepted requests that have not run yet; asked by whoever takes a snapshot."""
        self._lock = make_lock("metrics")
        self._num_not_started = num_not_started
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._finished = dict.fromkeys(FINISHED_REASON.values(), 0)
        self._gauges = dict.fromkeys(GAUGES, 0.0)
        self._histograms = {name: _Histogram(bounds) for name, bounds in HISTOGRAM_BUCKETS.items()}

    def record_step(
        self, counters: Mapping[str, int], gauges: Mapping[str, float], observations: Sequence[Observation]
    ) -> None:
        """By the engine thread: what one step adds to the counters, and how things stand."""
        with self._lock:
            for name, added in counters.items():
                self._counters[name] += added
            self._gauges.update(gauges)
            self._observe(observations)

    def record_end(self, finish_reason: FinishReason, observations: Sequence[Observation]) -> None:
        """By a responder thread: a request is over."""
        with self._lock:
            self._finished[FINISHED_REASON[finish_reason]] += 1
            self._observe(observations)

    def snapshot(self) -> MetricsSnapshot:
        """By anybody."""
        num_not_started = self._num_not_started()
        with self._lock:
            counters, finished, gauges = dict(self._counters), dict(self._finished), dict(self._gauges)
            histograms = {
                name: HistogramValues(histogram.bounds, tuple(histogram.counts), histogram.sum)
                for name, histogram in self._histograms.items()
            }
        gauges["vllm:num_requests_waiting"] += num_not_started
        return MetricsSnapshot(counters, finished, gauges, histograms)

    def _observe(self, observations: Sequence[Observation]) -> None:
        for name, value, times in observations:
            self._histograms[name].observe(value, times)

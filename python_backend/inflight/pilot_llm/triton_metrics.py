"""Shows the engine's counts on Triton's metrics endpoint, labelled with model, version and engine.

Two engines never share a series: server 2.51 takes it away from both when the first ends, and what the second then says
of it crashes the server. Engines of one model live side by side while a reload lets the old one finish, and with one
instance per GPU. So `engine` is a number that the operating system gives to one process at a time: 0, or the smallest
that no other engine of this model and server has. A killed engine leaves its series to the next one with its number.

A value costs 20 to 40 us to update here (a message to the server), so the engine never does it. One thread does, once
per period, for what has changed. It sleeps for good while the model is idle:

    request_opened()  -->  every period: snapshot, export the differences  -->  none open, nothing changed: sleep

Triton's histograms take one observation at a time and no totals, so the new observations of a bucket are replayed with
values between its bounds that add up to the exact sum.

Shared state, under `_lock`: `_num_open`, `_is_awake` and `_is_closed`. Everything else belongs to the exporting thread,
and after its end to `close`. The lock is not held while anything is exported.
"""

import errno
import hashlib
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import triton_python_backend_utils as pb_utils

from pilot_llm.metrics import COUNTERS, FINISHED_REASON, GAUGES, HISTOGRAM_BUCKETS, HistogramValues, MetricsSnapshot

PERIOD_S = 0.5

_DESCRIPTIONS = {
    "vllm:num_requests_running": "Requests in the running batch.",
    "vllm:num_requests_waiting": "Accepted requests that do not run.",
    "vllm:kv_cache_usage_perc": "Share of the KV blocks that requests hold, 0 to 1.",
    "vllm:prefix_cache_queries_total": "Prompt tokens looked up in the prefix cache.",
    "vllm:prefix_cache_hits_total": "Prompt tokens found in the prefix cache.",
    "vllm:num_preemptions_total": "Requests that lost their KV blocks to others and were computed again.",
    "vllm:prompt_tokens_total": "Prompt tokens of requests that have started.",
    "vllm:generation_tokens_total": "Tokens sampled.",
    "vllm:spec_decode_num_drafts_total": "Guesses of the tokens that follow.",
    "vllm:spec_decode_num_draft_tokens_total": "Tokens guessed.",
    "vllm:spec_decode_num_accepted_tokens_total": "Tokens guessed right.",
    "vllm:request_success_total": "Sequences that have ended, by reason.",
    "vllm:time_to_first_token_seconds": "From arrival to the first token.",
    "vllm:inter_token_latency_seconds": "Between the tokens of a sequence.",
    "vllm:e2e_request_latency_seconds": "From arrival to the end.",
    "vllm:request_queue_time_seconds": "From arrival to the first step that works on the request.",
    "vllm:request_prefill_time_seconds": "From the first step to the first token.",
    "vllm:request_decode_time_seconds": "From the first token to the last.",
    "vllm:request_prompt_tokens": "Prompt tokens of a finished request.",
    "vllm:request_generation_tokens": "Tokens sampled for a finished request.",
    "vllm:request_params_n": "Sequences that a request asked for.",
    "vllm:request_params_max_tokens": "max_tokens of a request, at most max_model_len.",
}
_FINISHED = "vllm:request_success_total"


class TritonMetrics:
    """One engine's values on the endpoint, from construction to `close`."""

    def __init__(self, snapshot: Callable[[], MetricsSnapshot], model: str, version: str) -> None:
        """All values appear at once, as zeros where no killed engine has left some; `snapshot` is asked by a thread of
        this object."""
        self._snapshot = snapshot
        self._families: dict[str, Any] = {}
        self._metrics: dict[str, Any] = {}
        engine, self._place = take_place(f"{os.getppid()}/{model}/{version}")
        self._create({"model": model, "version": version, "engine": str(engine)})
        self._exported = snapshot()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._num_open = 0
        self._is_awake = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="llm-metrics", daemon=True)
        self._thread.start()

    def request_opened(self) -> None:
        """Something is about to change, until `request_closed`."""
        with self._lock:
            self._num_open += 1
            if not self._is_awake:
                self._is_awake = True
                self._changed.notify()

    def request_closed(self) -> None:
        with self._lock:
            self._num_open -= 1

    def close(self) -> None:
        """Export what is left, then take everything off the endpoint."""
        with self._lock:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()
        self._export(self._snapshot())
        # Triton drops a family only after its last metric.
        self._metrics.clear()
        self._families.clear()
        self._place.close()

    def _run(self) -> None:
        while self._wait():
            snapshot = self._snapshot()
            if snapshot == self._exported and not any(snapshot.gauges.values()):
                with self._lock:
                    self._is_awake = self._num_open > 0
            self._export(snapshot)

    def _wait(self) -> bool:
        """Until the next export is due; False once closed."""
        with self._lock:
            while not self._is_awake and not self._is_closed:
                self._changed.wait()
            if not self._is_closed:
                self._changed.wait(PERIOD_S)
            return not self._is_closed

    def _create(self, labels: dict[str, str]) -> None:
        kinds = pb_utils.MetricFamily
        for name in GAUGES:
            self._metrics[name] = self._family(name, kinds.GAUGE).Metric(labels=labels)
            self._metrics[name].set(0)
        for name in COUNTERS:
            self._metrics[name] = self._family(name, kinds.COUNTER).Metric(labels=labels)
        family = self._family(_FINISHED, kinds.COUNTER)
        for reason in set(FINISHED_REASON.values()):
            self._metrics[_FINISHED + reason] = family.Metric(labels={**labels, "finished_reason": reason})
        for name, bounds in HISTOGRAM_BUCKETS.items():
            self._metrics[name] = self._family(name, kinds.HISTOGRAM).Metric(labels=labels, buckets=list(bounds))

    def _family(self, name: str, kind: Any) -> Any:
        family = pb_utils.MetricFamily(name=name, description=_DESCRIPTIONS[name], kind=kind)
        self._families[name] = family
        return family

    def _export(self, snapshot: MetricsSnapshot) -> None:
        before = self._exported
        for name, level in snapshot.gauges.items():
            if level != before.gauges[name]:
                self._metrics[name].set(level)
        for name, count in snapshot.counters.items():
            self._add(name, count - before.counters[name])
        for reason, count in snapshot.requests_by_finished_reason.items():
            self._add(_FINISHED + reason, count - before.requests_by_finished_reason[reason])
        for name, histogram in snapshot.histograms.items():
            for value in new_observations(before.histograms[name], histogram):
                self._metrics[name].observe(value)
        self._exported = snapshot

    def _add(self, name: str, difference: int) -> None:
        if difference:
            self._metrics[name].increment(difference)


def take_place(name: str) -> tuple[int, socket.socket]:
    """The smallest number that no living process has under this name, taken until the socket is closed or we die.

    The socket has an address in Linux's abstract namespace (unix(7)) and is never connected to: no file is left behind.
    """
    address = hashlib.sha256(name.encode()).hexdigest()[:32]  # An address holds 107 bytes.
    number = 0
    while True:
        place = socket.socket(socket.AF_UNIX)
        try:
            place.bind(f"\0tritonpilot-{address}-{number}")
        except OSError as error:
            place.close()
            if error.errno != errno.EADDRINUSE:
                raise
            number += 1
        else:
            return number, place


def new_observations(before: HistogramValues, after: HistogramValues) -> Iterator[float]:
    """Values that bring a histogram from `before` to `after`: the right number in each bucket, and the right sum."""
    counts = [new - old for new, old in zip(after.counts, before.counts, strict=True)]
    lows = (0.0, *after.bounds)
    # The last bucket has no upper bound: give it one that surely leaves room for the whole sum.
    highs = (*after.bounds, after.bounds[-1] + max(0.0, after.sum - before.sum))
    at_least = sum(count * low for count, low in zip(counts, lows, strict=True))
    room = sum(count * (high - low) for count, low, high in zip(counts, lows, highs, strict=True))
    # Every value stands at the same share of its bucket, which is the share that makes the sum come out.
    share = min(max((after.sum - before.sum - at_least) / room, 0.0), 1.0) if room else 0.0
    for count, low, high in zip(counts, lows, highs, strict=True):
        for _ in range(count):
            value = low + share * (high - low)
            # A value at a bound belongs to the bucket below it; 0 is in the first one.
            yield max(value, math.nextafter(low, high)) if low else value

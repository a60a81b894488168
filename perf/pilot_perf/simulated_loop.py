"""The closed loop of simulator.py, compiled by Numba (the extra `llm` brings it): a search asks for thousands."""

import heapq
import math

import numpy as np
from numba import njit


@njit(cache=True)
def closed_loop(
    times_ms,
    concurrency,
    num_requests,
    awaited,
    delay_ms,
    client_ms,
    slowdown,
    disturbance,
    away,
    jitter,
):
    """The latencies of at least `num_requests` requests after the warm-up, and the time they took, both in ms.

    times_ms: of a batch, [busy instances][rows].
    disturbance: the share of the requests after which it begins and ends, and its factor.
    away: the share of client_ms after which each client sends again, one for each answer.
    jitter: the factor of each batch.
    """
    instances, max_batch = times_ms.shape[0] - 1, times_ms.shape[1] - 1
    # As many as are in flight at once start together, which is no steady state yet.
    warm_up = max(num_requests // 5, concurrency)
    total = num_requests + warm_up
    slow_from, slow_to = warm_up + disturbance[0] * num_requests, warm_up + disturbance[1] * num_requests
    # What comes next: requests by the time at which they are sent, batches by the time at which they are done.
    sends = [client * 0.01 for client in range(concurrency)]
    done_ms, rows_of = np.full(instances, math.inf), np.zeros(instances, np.int64)
    sent = np.empty((instances, max_batch))
    queue, head, tail = np.empty(total + concurrency + max_batch), 0, 0
    latencies, answered, dispatched, idle = np.empty(total + max_batch), 0, 0, instances
    started_ms, now_ms = 0.0, 0.0
    while answered < total:
        next_ms = sends[0] if sends else math.inf
        if idle and head < tail:
            next_ms = min(next_ms, queue[head] + delay_ms)
        first = np.argmin(done_ms)
        if done_ms[first] <= next_ms:
            now_ms, done_ms[first] = done_ms[first], math.inf
            idle += 1
            for row in range(rows_of[first]):
                latencies[answered] = now_ms - sent[first, row]
                heapq.heappush(sends, now_ms + client_ms * away[answered])
                answered += 1
            if started_ms == 0.0 and answered >= warm_up:
                started_ms, warm_up = now_ms, answered
        else:
            now_ms = next_ms
            while sends and sends[0] <= now_ms:
                queue[tail] = heapq.heappop(sends)
                tail += 1
        while idle and head < tail and (tail - head >= awaited or now_ms >= queue[head] + delay_ms):
            has_waited = 0.0 < delay_ms <= now_ms - queue[head]
            rows = awaited if tail - head >= awaited and not has_waited else min(max_batch, tail - head)
            idle -= 1
            work_ms = times_ms[instances - idle, rows] * slowdown * jitter[dispatched]
            if slow_from <= answered < slow_to:
                work_ms *= disturbance[2]
            free = np.argmax(done_ms)
            done_ms[free], rows_of[free] = now_ms + work_ms, rows
            sent[free, :rows] = queue[head : head + rows]
            head += rows
            dispatched += 1
    return latencies[warm_up:answered], now_ms - started_ms

"""A server with a known knee, to try a search on in milliseconds: Triton's dynamic batcher as a queueing model.

    closed loop: `concurrency` clients, each sends its next request `client_ms` after its last answer
    queue -> dispatch rule -> one of `instances` instances -> answers

Dispatch rule, as Triton's: an idle instance takes a full batch at once; a smaller one when its oldest request
has waited for the queue delay.

Time of a batch of b rows, ms, on an otherwise idle machine, Amdahl's law for the threads:

    (fixed + per_row x b) x precision factor x (serial share + (1 - serial share) / threads)

and longer by the share in which the busy instances' threads outnumber the cores, and by their interference.
"""

import heapq
import random
from collections import deque
from dataclasses import dataclass, field

from pilot_perf.knobs import Knobs
from pilot_perf.measures import Figures, Measurement, Trial


@dataclass(frozen=True)
class SimulatedModel:
    """The constants of one model on one machine. Seeded: the same trial gives the same measurement."""

    fixed_ms: float
    per_row_ms: float
    precision_factor: dict[str, float]
    serial_share: float
    cores: int
    # Share by which each further busy thread slows all of them (memory bandwidth, caches).
    interference: float = 0.0
    client_ms: float = 0.5
    batch_jitter: float = 0.05
    # Spread of a whole measurement (a noisy neighbour), as the sigma of a lognormal factor on all batch times.
    window_noise: float = 0.0
    untuned: Knobs = field(default_factory=Knobs)
    seed: int = 0

    def measure(self, trial: Trial, num_requests: int = 600) -> Measurement:
        """Run the load until `num_requests` were answered; the first fifth is warm-up."""
        knobs = _filled(trial.knobs, self.untuned)
        rng = random.Random(f"{self.seed} {knobs} {trial.concurrency} {num_requests}")
        slowdown = rng.lognormvariate(0.0, self.window_noise)
        latencies_ms, window_ms = _closed_loop(self, knobs, trial.concurrency, num_requests, slowdown, rng)
        latencies_ms.sort()
        latency_ms = {
            f"p{q}": latencies_ms[min(len(latencies_ms) - 1, len(latencies_ms) * q // 100)] for q in (50, 90, 95, 99)
        }
        latency_ms["avg"] = sum(latencies_ms) / len(latencies_ms)
        figures = Figures(len(latencies_ms) / window_ms * 1000.0, latency_ms, len(latencies_ms), window_ms / 1000.0)
        return Measurement(trial, "measured", figures)

    def batch_ms(self, knobs: Knobs, rows: int, busy_instances: int) -> float:
        threads = knobs.intra_op_threads or 1
        running = busy_instances * threads
        contention = max(1.0, running / self.cores) * (1.0 + self.interference * (running - 1))
        amdahl = self.serial_share + (1.0 - self.serial_share) / threads
        factor = self.precision_factor.get(knobs.precision or "", 1.0)
        return (self.fixed_ms + self.per_row_ms * rows) * factor * amdahl * contention


def _filled(knobs: Knobs, untuned: Knobs) -> Knobs:
    default = Knobs(None, 1, 1, 1, 0)
    pairs = [(getattr(knobs, name), getattr(untuned, name), value) for name, value in default.as_dict().items()]
    return Knobs(*(next((value for value in triple if value is not None), None) for triple in pairs))


def _closed_loop(
    model: SimulatedModel, knobs: Knobs, concurrency: int, num_requests: int, slowdown: float, rng: random.Random
) -> tuple[list[float], float]:
    """The latencies after the warm-up, and the time they took."""
    max_batch = knobs.max_batch or 1
    delay_ms = (knobs.queue_delay_us or 0) / 1000.0 if max_batch > 1 else 0.0
    # Events: (time, order, what, requests' send times). A "send" puts one request in, "done" answers a batch.
    events: list[tuple[float, int, str, list[float]]] = []
    order = 0
    for client in range(concurrency):
        heapq.heappush(events, (client * 0.01, order, "send", []))
        order += 1
    queue: deque[float] = deque()
    idle = knobs.instances or 1
    latencies: list[float] = []
    warm_up, started_ms, now_ms = num_requests // 5, 0.0, 0.0
    while len(latencies) < num_requests + warm_up:
        now_ms, _, what, sent = heapq.heappop(events)
        if what == "done":
            idle += 1
            for send_ms in sent:
                latencies.append(now_ms - send_ms)
                heapq.heappush(events, (now_ms + model.client_ms * rng.uniform(0.5, 1.5), order, "send", []))
                order += 1
            if started_ms == 0.0 and len(latencies) >= warm_up:
                started_ms, warm_up = now_ms, len(latencies)
        elif what == "send":
            queue.append(now_ms)
            if delay_ms:
                heapq.heappush(events, (now_ms + delay_ms, order, "timer", []))
                order += 1
        while idle and queue and (len(queue) >= max_batch or now_ms - queue[0] >= delay_ms - 1e-9):
            batch = [queue.popleft() for _ in range(min(max_batch, len(queue)))]
            idle -= 1
            busy = (knobs.instances or 1) - idle
            work_ms = model.batch_ms(knobs, len(batch), busy) * slowdown * rng.lognormvariate(0.0, model.batch_jitter)
            heapq.heappush(events, (now_ms + work_ms, order, "done", batch))
            order += 1
    return latencies[warm_up:], now_ms - started_ms

"""A server with a known knee, to try a search on in milliseconds: Triton's dynamic batcher as a queueing model.

    closed loop: `concurrency` clients, each sends its next request `client_ms` after its last answer
    queue -> dispatch rule -> one of `instances` instances -> answers

Dispatch rule, as Triton's: an idle instance takes a full batch at once (one of the preferred size, if there is such a
size); what is there, up to a full one, when its oldest request has waited for the queue delay.

Time of a batch of b rows, ms, on an otherwise idle machine, Amdahl's law for the threads:

    (fixed + per_row x b) x precision factor x (serial share + (1 - serial share) / threads)

and longer by the share in which the busy instances' threads outnumber the cores, and by their interference. Rows beyond
`cache_rows` cost more.

What a real machine adds, each with its own constant and all seeded: batches jitter; whole windows are slower or faster
(`window_noise`); the machine's speed drifts from one measurement to the next (`drift`); now and then a window is
disturbed by something else that wants the cores (`disturbed_share`, up to `disturbed_factor` slower for a part of it).
"""

import math
import random
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pilot_perf.knobs import Knobs
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.simulated_loop import closed_loop

# Measurements in one period of the drift; two waves whose ratio is irrational never repeat.
DRIFT_PERIODS = (37.0, 37.0 * math.sqrt(2) / 4)
PERCENTILES = (50, 90, 95, 99)


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
    # A row beyond `cache_rows` of a batch costs `spill_factor` as much as one below.
    cache_rows: int = 1 << 30
    spill_factor: float = 1.0
    # Spread of a whole measurement (a noisy neighbour), as the sigma of a lognormal factor on all batch times.
    window_noise: float = 0.0
    # Amplitude of the slow change of speed, as the log of a factor.
    drift: float = 0.0
    disturbed_share: float = 0.0
    disturbed_factor: float = 2.0
    untuned: Knobs = field(default_factory=Knobs)
    seed: int = 0

    def measure(self, trial: Trial, num_requests: int = 600, number: int = 0) -> Measurement:
        """Run the load until `num_requests` were answered; the first fifth is warm-up.

        `number` is the measurement's place in the study: another one has another noise and another phase of the drift.
        """
        knobs = _filled(trial.knobs, self.untuned)
        rng = random.Random(f"{self.seed} {knobs} {trial.concurrency} {num_requests} {number}")
        slowdown = math.exp(rng.gauss(0.0, self.window_noise) + self.drift * _wave(self.seed, number))
        disturbance = (0.0, 0.0, 1.0)
        if rng.random() < self.disturbed_share:
            start = rng.random() * 0.7
            disturbance = (start, start + rng.uniform(0.1, 0.6), rng.uniform(1.1, self.disturbed_factor))
        max_batch = knobs.max_batch or 1
        # More than there can be answers and batches, the warm-up included.
        most = 2 * num_requests + 2 * trial.concurrency + max_batch
        draws = np.random.default_rng(rng.getrandbits(64))
        latencies_ms, window_ms = closed_loop(
            self.batch_times_ms(knobs, max_batch),
            trial.concurrency,
            num_requests,
            min(knobs.preferred_batch or max_batch, max_batch),
            (knobs.queue_delay_us or 0) / 1000.0 if max_batch > 1 else 0.0,
            self.client_ms,
            slowdown,
            disturbance,
            0.5 + draws.random(most),
            np.exp(self.batch_jitter * draws.standard_normal(most)),
        )
        count = len(latencies_ms)
        latencies_ms.sort()
        latency_ms = {f"p{q}": float(latencies_ms[min(count - 1, count * q // 100)]) for q in PERCENTILES}
        latency_ms["avg"] = float(latencies_ms.mean())
        figures = Figures(count / window_ms * 1000.0, latency_ms, count, window_ms / 1000.0)
        return Measurement(trial, "measured", figures)

    @property
    def quiet(self) -> "SimulatedModel":
        """The same without noise between measurements: what it would show on average over a long time."""
        return replace(self, window_noise=0.0, drift=0.0, disturbed_share=0.0)

    def batch_times_ms(self, knobs: Knobs, most: int) -> npt.NDArray[np.float64]:
        """The time of a batch by [busy instances][rows]; place 0 is not used."""
        threads = knobs.intra_op_threads or 1
        amdahl = self.serial_share + (1.0 - self.serial_share) / threads
        factor = amdahl * self.precision_factor.get(knobs.precision or "", 1.0)
        times = []
        for busy in range((knobs.instances or 1) + 1):
            running = busy * threads
            contention = max(1.0, running / self.cores) * (1.0 + self.interference * max(0, running - 1))
            times.append([self._rows_ms(rows) * factor * contention for rows in range(most + 1)])
        return np.array(times)

    def _rows_ms(self, rows: int) -> float:
        spilled = max(0, rows - self.cache_rows)
        return self.fixed_ms + self.per_row_ms * (rows - spilled + spilled * self.spill_factor)


def _wave(seed: int, number: int) -> float:
    slow, fast = (math.sin(seed + 2 * math.pi * number / period) for period in DRIFT_PERIODS)
    return 0.7 * slow + 0.3 * fast


def _filled(knobs: Knobs, untuned: Knobs) -> Knobs:
    default = Knobs(None, 1, 1, 1, 0)
    named = [(name, (getattr(knobs, name), getattr(untuned, name), value)) for name, value in default.as_dict().items()]
    return Knobs.from_dict({name: next((v for v in values if v is not None), None) for name, values in named})

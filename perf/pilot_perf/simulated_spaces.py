"""Random search problems with a known answer: a simulated model, a space, a budget, and what is best there.

The machines have 2 to 8 cores, the spaces 104 to 468 configurations beside the load; the constants cover models where a
batch pays and where it does not, precisions that help and that harm, narrow and wide tails, and budgets from hardly
above a single request's time to many times it.
"""

import math
import random
from dataclasses import dataclass, field

from pilot_perf.knobs import Knobs
from pilot_perf.measures import Figures, Trial
from pilot_perf.search.space import Space
from pilot_perf.simulator import SimulatedModel
from pilot_perf.slo import Slo, parse_slo

# Requests of a measurement that counts as the truth: with batches of 32 that jitter by a quarter, 1000 of them give a
# percentile that is off by a tenth, and the best of hundreds of such is the luckiest.
TRUE_REQUESTS = 20_000
# Of a first look at a point, and at a configuration.
SKETCH_REQUESTS, GLANCE_REQUESTS = 1000, 300
# The gap, as a share of the load, within which the best load of a configuration is sketched.
TOLERANCE = 0.03
# So many of the best sketched points are measured truly; one that broke the budget by up to NEAR may truly keep it.
NUM_TRUE, NEAR = 24, 1.03

Point = tuple[Knobs, int]


@dataclass
class Case:
    """One problem. The truth is the model without noise between measurements; each of it is computed once."""

    model: SimulatedModel
    space: Space
    slo: Slo
    _true: dict[Point, Figures] = field(default_factory=dict)
    _sketched: dict[Point, Figures] = field(default_factory=dict)

    def true_figures(self, knobs: Knobs, concurrency: int) -> Figures:
        return self._figures(self._true, (knobs, concurrency), TRUE_REQUESTS)

    def true_use(self, knobs: Knobs, concurrency: int) -> float:
        return self.slo.worst_use(self.true_figures(knobs, concurrency))

    def optimum_per_s(self, most_use: float = 1.0) -> float:
        """The most requests/s of any configuration that uses at most this share of the budget; 0 where nothing does."""
        if not self._sketched:
            self._sketch_all()
        near = [point for point, figures in self._sketched.items() if self.slo.worst_use(figures) <= NEAR * most_use]
        best = sorted(near, key=lambda point: -self._sketched[point].throughput_per_s)[:NUM_TRUE]
        return max(
            (self.true_figures(*point).throughput_per_s for point in best if self.true_use(*point) <= most_use),
            default=0.0,
        )

    def _sketch_all(self) -> None:
        """What the certificate excludes (with a margin, for batches that a load does not fill) is only glanced at."""
        configurations = self.space.configurations()
        best_per_s = self._best_per_s(configurations[0])
        glance = {knobs: self._glance_per_s(knobs, best_per_s) for knobs in configurations}
        for knobs in sorted(configurations, key=lambda knobs: -glance[knobs]):
            if self._glance_per_s(knobs, best_per_s) > 0.9 * best_per_s:
                best_per_s = max(best_per_s, self._best_per_s(knobs))

    def _glance_per_s(self, knobs: Knobs, best_per_s: float) -> float:
        """Throughput at the certificate's load, from a short measurement."""
        load = min(math.ceil(best_per_s * self.slo.mean_limit_ms / 1000) or 1, self.space.max_concurrency)
        figures = self.model.quiet.measure(Trial(knobs, load), GLANCE_REQUESTS).figures
        return 0.0 if figures is None else figures.throughput_per_s

    def _best_per_s(self, knobs: Knobs) -> float:
        """Sketch the configuration up to its best load."""
        kept, broken = 0, self.space.max_concurrency + 1
        while broken - kept > max(1, TOLERANCE * kept):
            load = min(2 * kept or 1, (kept + broken) // 2)
            if self._sketched_use(knobs, load) <= 1:
                kept = load
            else:
                broken = load
        full = (knobs.max_batch or 1) * (knobs.instances or 1)
        loads = {kept, *range(full, kept, full)} - {0}
        rates = [self._sketch(knobs, c).throughput_per_s for c in loads if self._sketched_use(knobs, c) <= 1]
        return max(rates, default=0.0)

    def _sketch(self, knobs: Knobs, concurrency: int) -> Figures:
        return self._figures(self._sketched, (knobs, concurrency), SKETCH_REQUESTS)

    def _sketched_use(self, knobs: Knobs, concurrency: int) -> float:
        return self.slo.worst_use(self._sketch(knobs, concurrency))

    def _figures(self, known: dict[Point, Figures], point: Point, num_requests: int) -> Figures:
        if point not in known:
            figures = self.model.quiet.measure(Trial(*point), num_requests).figures
            if figures is None:
                raise ValueError(f"the simulator did not measure {point[0]}; {point[1]} in flight")
            known[point] = figures
        return known[point]


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    cores = rng.choice((2, 2, 4, 8))
    model = SimulatedModel(
        fixed_ms=10 ** rng.uniform(-0.3, 1.0),
        per_row_ms=10 ** rng.uniform(-0.8, 1.0),
        precision_factor={"int8": rng.uniform(0.4, 1.15), "fp16": rng.uniform(0.6, 1.3)},
        serial_share=rng.uniform(0.1, 0.7),
        cores=cores,
        interference=rng.choice([0.0, 0.05, 0.2]),
        client_ms=rng.uniform(0.2, 1.5),
        batch_jitter=rng.choice([0.03, 0.1, 0.25]),
        cache_rows=rng.choice([4, 8, 16, 64]),
        spill_factor=rng.uniform(1.0, 2.0),
        window_noise=0.03,
        drift=0.03,
        disturbed_share=0.05,
        untuned=Knobs("fp32", 1, cores, 1, 0),
        seed=rng.randrange(10**6),
    )
    alone_ms = model.fixed_ms + model.per_row_ms + 1
    return Case(
        model,
        Space(
            precisions=("fp32", "int8", "fp16")[: rng.choice((2, 3))],
            instances=(1, 2, 4)[: 2 if cores == 2 else 3],
            intra_op_threads=(1, 2, 4, 8)[: int(math.log2(cores)) + 1],
            max_batches=(1, 4, 8, 16, 32),
            queue_delays_us=(0, 1000, 5000),
        ),
        parse_slo([f"p95:{alone_ms * 10 ** rng.uniform(0.15, 1.3):.1f}"]),
    )

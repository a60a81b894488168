"""What the configurations that were measured say about the others: a Gaussian process over log throughput.

Two configurations are alike as far as their levels are near in each knob. The covariance adds up three parts: what each
knob does alone, what each pair of knobs does together, and what all do together.

    k(a, b) = ALONE x mean over knobs of s + PAIRS x mean over pairs of s x s + ALL x product of s,
    s = exp(-(distance in levels)^2 / 2 LENGTH^2) of one knob; 0 or 1 where its levels are names

It starts from what is known of servers in general (`expectation`), so that the first steps are sensible; thirty
measurements outweigh it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pilot_perf.knobs import Knobs
from pilot_perf.search.load import full_load

ALONE, PAIRS, ALL = 0.7, 0.2, 0.1
LENGTH = 1.6
# Sigma of the log of one short window's throughput.
NOISE = 0.04
# Sigma of the process before anything was measured, and the least that it is taken for afterwards.
USUAL_SCALE, LEAST_SCALE = 0.5, 0.25

# Of the log of throughput, for each doubling by which batches need more load than the budget lets be in flight.
LOST = 0.4

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Prediction:
    """Of log throughput, for each configuration that was asked about."""

    mean: Array
    sigma: Array

    def gain(self, best: float) -> Array:
        """The expected improvement over `best`, a log throughput; about a share of the throughput."""
        z = (self.mean - best) / self.sigma
        density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        below = np.array([0.5 * (1.0 + math.erf(value / math.sqrt(2))) for value in z])
        return np.asarray((self.mean - best) * below + self.sigma * density)


class Surrogate:
    """Predicts over the configurations of one space, and over others that are added with the same levels."""

    def __init__(self, configurations: Sequence[Knobs], cpus: int) -> None:
        self._cpus = cpus
        all_features = [features(knobs) for knobs in configurations]
        # Of each knob that varies: the places of its levels, and how alike two of them are.
        self._levels: dict[str, dict[Any, int]] = {}
        self._alike: dict[str, Array] = {}
        for name in sorted({name for feature in all_features for name in feature}):
            values = {feature.get(name) for feature in all_features}
            levels = sorted(values, key=lambda level: (level is not None, level))
            if len(levels) > 1:
                self._levels[name] = {level: place for place, level in enumerate(levels)}
                self._alike[name] = _alike(len(levels), any(isinstance(level, str) for level in levels))
        self._index: dict[Knobs, int] = {}
        self._expected, self._log_fill = np.empty(0), np.empty(0)
        # Of each knob that varies: the place of each configuration's level.
        self._places = {name: np.empty(0, dtype=int) for name in self._levels}
        self.add(configurations)

    def add(self, configurations: Sequence[Knobs]) -> None:
        """Know these, too."""
        new = [knobs for knobs in dict.fromkeys(configurations) if knobs not in self._index]
        self._index |= {knobs: len(self._index) + place for place, knobs in enumerate(new)}
        self._expected = np.append(self._expected, [expectation(knobs, self._cpus) for knobs in new])
        # Log2 of the load that fills the batches; nothing waits for that without a queue delay.
        log_fill = [math.log2(full_load(knobs)) if knobs.queue_delay_us else 0.0 for knobs in new]
        self._log_fill = np.append(self._log_fill, log_fill)
        new_features = [features(knobs) for knobs in new]
        for name, levels in self._levels.items():
            places = [levels[feature.get(name)] for feature in new_features]
            self._places[name] = np.append(self._places[name], np.array(places, dtype=int))

    def knows(self, knobs: Knobs) -> bool:
        return knobs in self._index

    def predict(
        self, log_throughput: Mapping[Knobs, float], of: Sequence[Knobs], load: int | None = None
    ) -> Prediction:
        """For the configurations `of`, from those of the space that were measured; from none only the expectation.

        `load` is about what the budget lets be in flight: a queue delay is lost time where that fills no batch.
        """
        expected = (
            self._expected
            if load is None
            else self._expected - LOST * np.maximum(self._log_fill - math.log2(load), 0.0)
        )
        seen = [(self._index[knobs], value) for knobs, value in log_throughput.items() if knobs in self._index]
        asked = np.array([self._index[knobs] for knobs in of])
        if not seen:
            return Prediction(expected[asked], np.full(len(of), USUAL_SCALE))
        rows, values = np.array([place for place, _ in seen]), np.array([value for _, value in seen])
        inverse, level, weighted, scale2 = self._fit(rows, values - expected[rows])
        cross = self._covariance(asked, rows)
        left = 1.0 - np.einsum("ij,ij->i", cross @ inverse, cross)
        return Prediction(expected[asked] + level + cross @ weighted, np.sqrt(np.maximum(left, 1e-6) * scale2))

    def _fit(self, rows: Array, residual: Array) -> tuple[Array, float, Array, float]:
        """The inverse covariance of what was seen, the level of its residuals, their weights, the squared scale."""
        noise = (NOISE / USUAL_SCALE) ** 2 * np.eye(len(rows))
        inverse = np.linalg.inv(self._covariance(rows, rows) + noise)
        level = float(inverse.sum(axis=0) @ residual / inverse.sum())
        weighted = inverse @ (residual - level)
        # The scale that makes what was seen most likely, with two pseudo-observations of the usual one.
        scale2 = (float((residual - level) @ weighted) + 2 * USUAL_SCALE**2) / (len(rows) + 2)
        return inverse, level, weighted, max(scale2, LEAST_SCALE**2)

    def _covariance(self, a: Array, b: Array) -> Array:
        alike = [self._alike[name][np.ix_(places[a], places[b])] for name, places in self._places.items()]
        if not alike:
            return np.ones((len(a), len(b)))
        everything, total = np.prod(alike, axis=0), np.sum(alike, axis=0)
        pairs = everything
        if len(alike) > 1:
            # The mean product of two different ones, without a matrix for each pair.
            pairs = (total * total - sum(one * one for one in alike)) / (len(alike) * (len(alike) - 1))
        return np.asarray(ALONE * total / len(alike) + PAIRS * pairs + ALL * everything)


def expectation(knobs: Knobs, cpus: int) -> float:
    """What one would guess of log throughput before any measurement, up to a constant."""
    if knobs.members:
        return sum(expectation(member, cpus) for _, member in knobs.members) / len(knobs.members)
    busy = (knobs.instances or 1) * (knobs.intra_op_threads or 1)
    used = 0.3 * math.log2(min(busy, cpus)) - 0.3 * math.log2(max(busy / cpus, 1))
    batch = 0.1 * math.log2((knobs.max_batch or 1) * (knobs.max_num_seqs or 1))
    delay = -0.03 * math.log10(1 + (knobs.queue_delay_us or 0))
    return used + batch + delay + (0.15 if knobs.precision not in (None, "fp32") else 0.0)


def features(knobs: Knobs) -> dict[str, Any]:
    """The knobs that are set, those of an ensemble's members beside its own."""
    own = {name: value for name, value in knobs.as_dict().items() if name != "members" and value is not None}
    for member, inner in knobs.members:
        own |= {f"{member}.{name}": value for name, value in features(inner).items()}
    return own


def _alike(num_levels: int, is_named: bool) -> Array:
    if is_named:
        return np.eye(num_levels)
    places = np.arange(num_levels)
    return np.asarray(np.exp(-0.5 * ((places[:, None] - places[None, :]) / LENGTH) ** 2))

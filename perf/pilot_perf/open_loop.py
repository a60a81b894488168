"""The final answer, tried with arrivals that do not wait for answers.

A closed loop is kind: where the server is slow, the next requests wait at the client and nobody counts their time.
Real users arrive when they arrive. So the configuration that was found is measured again under Poisson arrivals (or a
recorded trace) at the rate that the closed loop found, and at lower ones until the budget holds. Latency counts from
the moment at which a request was due.
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from pilot_perf.knobs import Knobs
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.replay import replayed
from pilot_perf.slo import Slo

# Of the closed loop's rate.
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
# A rate is held where so much of it is answered; less means a queue that grows.
MIN_ANSWERED = 0.95
# With more requests than this late the client is the one that cannot keep up.
MAX_LATE = 0.1
# The most in flight: far above what any budget allows, so that it bounds memory and nothing else.
MAX_IN_FLIGHT = 1000


@dataclass(frozen=True)
class OpenLoop:
    """What came of it. `attempts` in the order in which they were made.

    `kept` is, of the two at the rate that held, the one that used more of the budget.
    """

    closed_loop_per_s: float
    attempts: tuple[Measurement, ...]
    kept: Measurement | None

    @property
    def rate_per_s(self) -> float | None:
        """The arrivals per second at which the budget holds."""
        return None if self.kept is None else self.kept.trial.rate_per_s

    def text(self, slo: Slo) -> str:
        """The result in words, beside the closed loop's figure."""
        closed = f"the closed loop's {self.closed_loop_per_s:.1f}/s"
        if self.kept is None or self.kept.figures is None or self.rate_per_s is None:
            last = self.attempts[-1]
            reason = last.problem if last.figures is None else problem(last.figures, slo)
            return f"no arrival rate down to {SHARES[-1]:.0%} of {closed} keeps the budget (the last: {reason})"
        share = self.rate_per_s / self.closed_loop_per_s
        late = self.kept.figures.late_sends or 0.0
        note = f"; {late:.1%} of the requests were sent late" if late else ""
        return f"the budget holds at {self.rate_per_s:.1f} arrivals/s, {share:.0%} of {closed}: " + (
            f"{slo.describe(self.kept.figures)}{note}"
        )


@dataclass(frozen=True)
class OpenLoopStep:
    """Either the next trial or the result."""

    trial: Trial | None
    result: OpenLoop | None


def problem(figures: Figures, slo: Slo) -> str:
    """Why a measurement does not hold its rate within the budget; empty where it does."""
    counts_errors = any(budget.measure == "error_rate" for budget in slo.budgets)
    if (figures.late_sends or 0.0) > MAX_LATE and figures.throughput_per_s < MIN_ANSWERED * (
        figures.asked_rate_per_s or 0.0
    ):
        return (
            f"the client could not send {figures.asked_rate_per_s:.1f}/s: {figures.late_sends:.0%} of the requests "
            "were late, so nothing is said of the server. Run the client on a machine of its own"
        )
    if not counts_errors and figures.error_rate:
        return f"{figures.error_rate:.2%} of the requests failed"
    if not slo.is_kept(figures):
        return slo.describe(figures)
    if figures.asked_rate_per_s and figures.throughput_per_s < MIN_ANSWERED * figures.asked_rate_per_s:
        return f"of {figures.asked_rate_per_s:.1f}/s only {figures.throughput_per_s:.1f}/s were answered"
    return ""


def open_loop(knobs: Knobs, closed_loop_per_s: float, slo: Slo) -> Generator[Trial, Measurement, OpenLoop]:
    """Yields what to measure next; returns the highest rate that was seen to hold.

    The first of SHARES that holds, or the one half a step above it.
    """
    attempts: list[Measurement] = []

    def held(share: float, asked: str) -> Generator[Trial, Measurement, Measurement | None]:
        """Twice, since one window may be a lucky one: the measurement that used more of the budget."""
        kept = []
        for reason in (asked, "it held: once more"):
            measurement = yield Trial(knobs, MAX_IN_FLIGHT, reason, rate_per_s=round(share * closed_loop_per_s, 3))
            attempts.append(measurement)
            if measurement.figures is None or problem(measurement.figures, slo):
                return None
            kept.append((slo.worst_use(measurement.figures), measurement))
        return max(kept, key=lambda pair: pair[0])[1]

    above = None
    for share in SHARES:
        asked = "does it hold when arrivals do not wait?" if share == 1.0 else f"{share:.0%} of the closed loop's rate"
        kept = yield from held(share, asked)
        if kept is not None:
            if above is not None:
                kept = (yield from held((share + above) / 2, "half a step above what holds")) or kept
            return OpenLoop(closed_loop_per_s, tuple(attempts), kept)
        above = share
    return OpenLoop(closed_loop_per_s, tuple(attempts), None)


def next_open_loop(knobs: Knobs, closed_loop_per_s: float, measured: Iterable[Measurement], slo: Slo) -> OpenLoopStep:
    """A pure function of what was measured."""
    return OpenLoopStep(*replayed(open_loop(knobs, closed_loop_per_s, slo), measured))

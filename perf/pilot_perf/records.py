"""What became of each request of a load, and the numbers that follow from it.

    due ---- sent ---- first chunk -- chunk -- ... -- last byte
     |--late--|
     |-------------------- latency ----------------------|

In a closed loop a request is due when it is sent. In an open loop it is due when the schedule says so, whether the
client (or a server that does not take it) is late or not: latency counted from the send would leave out the waiting
that a user would have felt (coordinated omission).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pilot_perf.errors import AnalyzerError, EmptyWindowsError, FailedRequestsError
from pilot_perf.percentiles import summary

NS_PER_MS = 1e6
NS_PER_S = 1e9
# A send that is this late has waited for the client, not for the clock.
LATE_MS = 5.0
# What Triton says when the queue's policy refuses a request.
REFUSALS = ("Exceeds maximum queue size", "Request timeout expired")


@dataclass(frozen=True)
class Record:
    """One request. `responses` are its tensors by name, one mapping per response; both are as the client saw them."""

    sent_ns: int
    response_ns: tuple[int, ...]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    responses: tuple[Mapping[str, Any], ...] = ()
    due_ns: int | None = None
    # What the server said; empty for a success.
    error: str = ""

    @property
    def ended_ns(self) -> int:
        return self.response_ns[-1]

    @property
    def latency_ms(self) -> float:
        return (self.ended_ns - (self.sent_ns if self.due_ns is None else self.due_ns)) / NS_PER_MS

    @property
    def is_refused(self) -> bool:
        return any(words in self.error for words in REFUSALS)

    @property
    def late_ms(self) -> float:
        return 0.0 if self.due_ns is None else (self.sent_ns - self.due_ns) / NS_PER_MS


@dataclass(frozen=True)
class LoadRecords:
    """All requests of a load that ended within its windows, whose borders are `borders_ns` (one more than windows)."""

    borders_ns: tuple[int, ...]
    records: tuple[Record, ...]

    @property
    def window_s(self) -> float:
        """Length of all windows together."""
        return (self.borders_ns[-1] - self.borders_ns[0]) / NS_PER_S

    @property
    def succeeded(self) -> list[Record]:
        return [record for record in self.records if not record.error]

    @property
    def error_rate(self) -> float:
        return sum(1 for record in self.records if record.error) / len(self.records)

    @property
    def refused(self) -> list[Record]:
        return [record for record in self.records if record.is_refused]

    @property
    def late_sends(self) -> float:
        """The share of requests that were sent late."""
        return sum(1 for record in self.records if record.late_ms > LATE_MS) / len(self.records)

    def window_rates_per_s(self) -> tuple[float, ...]:
        """Successes per second, window by window."""
        rates = []
        for start, end in zip(self.borders_ns, self.borders_ns[1:], strict=False):
            count = sum(1 for record in self.succeeded if start <= record.ended_ns < end)
            rates.append(count / (end - start) * NS_PER_S)
        return tuple(rates)

    def latency_ms(self, statistics: Iterable[str]) -> dict[str, float]:
        """
        Raises:
            FailedRequestsError: no request succeeded; carries what was said of the first.
        """
        found = summary((record.latency_ms for record in self.succeeded), statistics)
        if found is None:
            raise FailedRequestsError(f"all {len(self.records)} requests failed: {self.records[0].error}")
        return found


def load_records(borders_ns: Sequence[int], records: Iterable[Record]) -> LoadRecords:
    """Those of `records` that ended within the borders.

    Raises:
        AnalyzerError: there are no windows.
        EmptyWindowsError: none did.
    """
    if len(borders_ns) < 2 or borders_ns[0] >= borders_ns[-1]:
        raise AnalyzerError("the load came without windows")
    inside = tuple(r for r in records if r.response_ns and borders_ns[0] <= r.ended_ns < borders_ns[-1])
    if not inside:
        seconds = (borders_ns[-1] - borders_ns[0]) / NS_PER_S
        raise EmptyWindowsError(f"no request ended within {seconds:.1f} s: measure with longer windows")
    return LoadRecords(tuple(borders_ns), inside)

"""When the requests of an open loop are due: a Poisson process, or the intervals of a recorded trace.

perf_analyzer is given the intervals as a file (--request-intervals) in place of a rate: it would draw them itself and
tell nobody. Known intervals let each request that it reports be laid beside the moment at which it was due.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pilot_perf.errors import InputDataError
from pilot_perf.records import LoadRecords

US_PER_S = 1e6
NS_PER_US = 1000
# So many requests may have been sent before the first window.
_MAX_SKIPPED = 500


def poisson_intervals_us(rate_per_s: float, duration_s: float, seed: int) -> list[int]:
    """Intervals between arrivals of that mean rate, for at least `duration_s`; the same seed gives the same."""
    draw = random.Random(seed)
    count = math.ceil(rate_per_s * duration_s) + 8 * math.ceil(math.sqrt(rate_per_s * duration_s)) + 8
    # 0 would mean to perf_analyzer that there is no interval.
    return [max(1, round(draw.expovariate(rate_per_s) * US_PER_S)) for _ in range(count)]


def read_trace(path: Path) -> list[int]:
    """The intervals of a trace: a text file with one number of microseconds per line, as perf_analyzer takes it.

    Raises:
        InputDataError: no such file, an empty one, or a line that is no positive whole number.
    """
    try:
        lines = path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise InputDataError(f"the trace {path} cannot be read: {error}") from error
    try:
        intervals = [int(line) for line in lines]
    except ValueError as error:
        raise InputDataError(f"the trace {path} must have one whole number of microseconds per line: {error}") from None
    if not intervals or min(intervals) < 0 or sum(intervals) == 0:
        raise InputDataError(f"the trace {path} must have at least one interval above 0 us, and none below")
    return [max(1, interval) for interval in intervals]


def at_rate(intervals_us: Sequence[int], rate_per_s: float) -> list[int]:
    """The trace, stretched or pressed to a mean rate: its bursts stay, as parts of the whole."""
    factor = US_PER_S / rate_per_s / (sum(intervals_us) / len(intervals_us))
    return [max(1, round(interval * factor)) for interval in intervals_us]


def with_due_times(load: LoadRecords, intervals_us: Sequence[int]) -> LoadRecords:
    """`load` with the moment at which each request was due, found by laying its sends beside the schedule.

    perf_analyzer reports neither the requests before its windows nor how many they were, so the place of the first one
    in the schedule is where all of them together are least late. Somebody was in time: the clock of the schedule is
    set so that no request was sent early. Both are in favour of the client.
    """
    records = sorted(load.records, key=lambda record: record.sent_ns)
    sent_us = np.array([record.sent_ns - records[0].sent_ns for record in records]) / NS_PER_US
    length = len(records) + _MAX_SKIPPED
    due_us = np.concatenate(([0.0], np.cumsum(np.resize(np.array(intervals_us, dtype=np.float64), length))))
    late_us = [sent_us - due_us[skipped : skipped + len(records)] for skipped in range(_MAX_SKIPPED)]
    best = min(range(_MAX_SKIPPED), key=lambda skipped: float(np.mean(late_us[skipped]) - np.min(late_us[skipped])))
    late_us_of = late_us[best] - np.min(late_us[best])
    timed = [
        replace(record, due_ns=record.sent_ns - round(float(late) * NS_PER_US))
        for record, late in zip(records, late_us_of, strict=True)
    ]
    return LoadRecords(load.borders_ns, tuple(timed))

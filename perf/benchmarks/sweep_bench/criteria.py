"""What each tool of `sweep_peers.py` came to, and what is asked of our sweep beside Model Analyzer's."""

from dataclasses import dataclass
from typing import Any

from criterion import criterion

from pilot_perf.measures import Trial
from pilot_perf.ratio import Ratio

# Of the time that Model Analyzer's brute search takes, where it ends by itself.
TIME = 1 / 6
# The lower bound of the paired ratio of our pick's throughput to theirs.
RATIO_LOW = 0.95
# Re-runs of our pick that may break the budget.
BROKEN = 1 / 20


@dataclass(frozen=True)
class Found:
    """What one tool came to. `pick` None: nothing within the budget."""

    tool: str
    took_s: float
    num_launches: int
    has_ended: bool
    pick: Trial | None
    claimed_per_s: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Both picks measured in turn: our throughput over theirs, and in how many runs each broke the budget."""

    ratio: Ratio | None
    num_runs: int
    num_broken: int
    peer_num_broken: int


def criteria(ours: Found, peer: Found, comparison: Comparison | None) -> list[str]:
    """A line for each thing that is asked: what, what was found, whether it is met."""
    lines = [
        criterion(f"ended in at most 1/{1 / TIME:.0f} of its time", f"1/{peer.took_s / ours.took_s:.1f}",
                  ours.has_ended and ours.took_s <= TIME * peer.took_s)
    ]  # fmt: skip
    if not peer.has_ended:
        lines[0] += f" of the {peer.took_s:.0f} s after which it was ended"
    if comparison is None:
        return lines
    low = None if comparison.ratio is None else comparison.ratio.low
    lines.append(
        criterion(f"lower bound of ours / theirs >= {RATIO_LOW}", "none" if low is None else f"{low:.2f}",
                  low is not None and low >= RATIO_LOW)
    )  # fmt: skip
    found = f"{comparison.num_broken} of {comparison.num_runs}"
    is_met = comparison.num_broken <= BROKEN * comparison.num_runs
    return [*lines, criterion(f"budget broken in at most {BROKEN:.0%} of our re-runs", found, is_met)]


def describe(found: Found) -> str:
    pick = (
        "nothing within the budget" if found.pick is None else f"{found.pick.knobs}; {found.pick.concurrency} in flight"
    )
    end = "" if found.has_ended else " (did not end by itself)"
    rate = "" if found.claimed_per_s is None else f", says {found.claimed_per_s:.0f}/s"
    return f"{found.tool}: {found.took_s:.0f} s{end}, {found.num_launches} launches of perf_analyzer; {pick}{rate}"


def describe_comparison(peer: Found, comparison: Comparison | None) -> str:
    if comparison is None:
        return f"{peer.tool}: nothing to compare"
    return (
        f"measured again in turn: ours / {peer.tool} {comparison.ratio}; budget broken in {comparison.num_broken} of "
        f"{comparison.num_runs} runs of ours, {comparison.peer_num_broken} of {comparison.num_runs} of theirs"
    )


def described(found: Found) -> dict[str, Any]:
    """For a program."""
    pick = None
    if found.pick is not None:
        pick = {"knobs": found.pick.knobs.as_dict(), "concurrency": found.pick.concurrency}
    return {
        "tool": found.tool,
        "took_s": found.took_s,
        "num_launches": found.num_launches,
        "has_ended": found.has_ended,
        "pick": pick,
        "claimed_per_s": found.claimed_per_s,
    }

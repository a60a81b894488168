"""The table of `search.py`, and what is asked of the guided search beside what was found."""

from dataclasses import dataclass
from math import sqrt
from statistics import mean, median

from criterion import criterion

# At most this share of the measurements of exhaustive search, on average over the spaces that both have searched.
MEASUREMENTS = 1 / 20
# Of the best throughput within the budget.
MEDIAN_SHARE, WORST_SHARE = 0.97, 0.85
# The share of the budget that the search aims at: what uses more is seldom proved by windows that differ by percents.
PROVABLE = 0.93
# Spaces whose pick breaks the budget in truth.
BROKEN = 0.01
# Spaces below which the shares say little.
LEAST_SPACES = 300


@dataclass(frozen=True)
class Result:
    """One search of one space.

    `share` of the optimum, `share_of_provable` of the best that uses at most PROVABLE of the budget; None: it chose
    nothing, or there is no such.
    """

    seed: int
    rule: str
    num_configurations: int
    num_search: int
    num_confirm: int
    share: float | None
    share_of_provable: float | None
    true_use: float | None


def report(results: list[Result]) -> str:
    return "\n".join([table(results), "", *criteria(results), *_of_provable(results)])


def criteria(results: list[Result]) -> list[str]:
    """A line for each thing that is asked of `quick`: what, what was found, whether it is met."""
    ours = [result for result in results if result.rule == "quick"]
    if not ours:
        return []
    shares = [result.share or 0.0 for result in ours]
    broken = sum((result.true_use or 0.0) > 1 for result in ours) / len(ours)
    lines = [
        criterion(
            f"share of the optimum: median >= {MEDIAN_SHARE}", f"{median(shares):.3f}", median(shares) >= MEDIAN_SHARE
        ),
        criterion(f"share of the optimum: worst >= {WORST_SHARE}", f"{min(shares):.3f}", min(shares) >= WORST_SHARE),
        criterion(f"breaks the budget: at most {BROKEN:.0%} of the spaces", f"{broken:.1%}", broken <= BROKEN),
        criterion(f"spaces: at least {LEAST_SPACES}", str(len(ours)), len(ours) >= LEAST_SPACES),
    ]
    full = {result.seed: result.num_search for result in results if result.rule == "exhaustive"}
    if both := [result for result in ours if result.seed in full]:
        used = mean(r.num_search + r.num_confirm for r in both) / mean(full[r.seed] for r in both)
        name = f"measurements with proof: at most 1/{1 / MEASUREMENTS:.0f} of exhaustive search's"
        lines.insert(0, criterion(name, f"1/{1 / used:.0f}", used <= MEASUREMENTS))
    return lines


def _of_provable(results: list[Result]) -> list[str]:
    shares = [r.share_of_provable for r in results if r.rule == "quick" and r.share_of_provable is not None]
    if not shares:
        return []
    few = sum(share < WORST_SHARE for share in shares)
    return [
        f"        share of the best that uses at most {PROVABLE:.0%} of the budget: median {median(shares):.3f}, "
        f"worst {min(shares):.3f}, below {WORST_SHARE} in {few} of {len(shares)}"
    ]


def table(results: list[Result]) -> str:
    head = (
        f"{'rule':<16}{'spaces':>7}{'search':>8}{'+ proof':>9}{'most':>6}{'share: median':>15}{'5%':>7}{'worst':>7}"
        f"{f'below {WORST_SHARE}':>12}{'  breaks the budget'}"
    )
    lines = [head]
    for rule in dict.fromkeys(result.rule for result in results):
        of = [result for result in results if result.rule == rule]
        shares = sorted(result.share or 0.0 for result in of)
        totals = [result.num_search + result.num_confirm for result in of]
        broken = sum(1 for result in of if (result.true_use or 0.0) > 1)
        lines.append(
            f"{rule:<16}{len(of):>7}{median(result.num_search for result in of):>8.0f}{median(totals):>9.0f}"
            f"{max(totals):>6}{median(shares):>15.3f}{shares[len(of) // 20]:>7.3f}{shares[0]:>7.3f}"
            f"{sum(share < WORST_SHARE for share in shares):>12}  {broken} of {len(of)}, {_interval(broken, len(of))}"
        )
    return "\n".join([*lines, "", *_ratios(results)])


def _ratios(results: list[Result]) -> list[str]:
    """Our measurements as a share of the exhaustive search's, in the spaces that both searched."""
    lines = []
    for rule in ("exhaustive", "grid"):
        full = {result.seed: result.num_search for result in results if result.rule == rule}
        ours = [result for result in results if result.rule == "quick" and result.seed in full]
        if not ours:
            continue
        total = sum(full.values())
        search = sum(result.num_search for result in ours)
        both = search + sum(result.num_confirm for result in ours)
        lines.append(
            f"{rule}: {total / len(ours):.0f} measurements a space; quick takes 1/{total / search:.0f} of them, "
            f"1/{total / both:.0f} with its proof"
        )
    return lines


def _interval(count: int, total: int) -> str:
    """Wilson's 95% interval of a share."""
    z, share = 1.96, count / total
    center = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z * sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return f"{max(center - half, 0.0):.1%} to {center + half:.1%}"

"""Decides whether a variant may be installed: measures and thresholds in, reasons out. Pure."""

from pilot_export.measures import Quality
from pilot_export.spec import Thresholds

# A variant in the original's own precision may differ by rounding alone.
EXACT_ERROR_SHARE = 1e-3
# An edge case may be this many times as far off as the mean over real data.
EDGE_FACTOR = 5


def judge(
    quality: Quality, speedup: float | None, thresholds: Thresholds, *, is_exact: bool, edge_failures: tuple[str, ...]
) -> tuple[str, ...]:
    """Every reason against the variant, in words with the figures; none means that it passes.

    Args:
        speedup: rows/s over fp32's; None for fp32 itself, and for a variant made for other hardware.
        is_exact: in the precision of the original, so it must be equal up to rounding.
        edge_failures: what went wrong on the edge cases.
    """
    reasons = list(edge_failures)
    if is_exact:
        allowed = EXACT_ERROR_SHARE * max(1.0, quality.largest_value)
        if quality.max_abs_error > allowed:
            reasons.append(f"an output is off by {quality.max_abs_error:.2g}, rounding allows {allowed:.2g}")
    if thresholds.min_mean_cosine is not None and quality.mean_cosine < thresholds.min_mean_cosine:
        reasons.append(f"mean cosine {quality.mean_cosine:.4f} is under {thresholds.min_mean_cosine:g}")
    if thresholds.min_mean_cosine is not None:
        # A single odd row may lose more than the mean of all, but not its direction.
        allowed_cosine = 1 - EDGE_FACTOR * (1 - thresholds.min_mean_cosine)
        reasons += [
            f"cosine {cosine:.4f} on {name} is under {allowed_cosine:g}"
            for name, cosine in quality.edge_cosines.items()
            if cosine < allowed_cosine
        ]
    if thresholds.min_confident_agreement is not None:
        if quality.confident_agreement is None:
            reasons.append("the original is never confident on this data, so agreement says nothing")
        elif quality.confident_agreement < thresholds.min_confident_agreement:
            reasons.append(
                f"agrees on {100 * quality.confident_agreement:.2f}% of the confident rows, "
                f"{100 * thresholds.min_confident_agreement:g}% is asked"
            )
    task = quality.task
    if task is not None and task.drop_high > thresholds.max_task_drop:
        reasons.append(
            f"{task.name} may drop by {100 * task.drop_high:.2f} points "
            f"({100 * task.original:.1f}% -> {100 * task.variant:.1f}%, upper end of the 95% interval), "
            f"{100 * thresholds.max_task_drop:g} are allowed"
        )
    if speedup is not None and speedup < thresholds.min_speedup:
        reasons.append(
            f"not faster on this machine: {speedup:.2f} x fp32, at least {thresholds.min_speedup:g} x is asked"
        )
    return tuple(reasons)

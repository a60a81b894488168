"""The study as a PNG, drawn without a browser: the load curves, and what each knob brought."""

from pathlib import Path
from typing import Any

from pilot_perf.attribution import Attribution
from pilot_perf.knobs import UNTUNED
from pilot_perf.report import colors
from pilot_perf.report.content import Content


def write_picture(content: Content, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    attribution = content.attribution
    num_bars = 0 if attribution is None else len(attribution.steps) + 1
    figure = Figure(figsize=(8, 5 + 0.45 * num_bars), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    if attribution is None:
        _draw_curves(figure.add_subplot(), content)
    else:
        above, below = figure.subplots(2, 1, height_ratios=[5, max(1.2, 0.45 * num_bars)])
        _draw_curves(above, content)
        _draw_attribution(below, attribution)
    # No date and no version of matplotlib: the same study makes the same file.
    figure.savefig(path, metadata={"Software": None})


def _draw_curves(axes: Any, content: Content) -> None:
    others_named = False
    for knobs, points in content.curves.items():
        x, y = [p.throughput_per_s for p in points], [p.time_ms for p in points]
        if knobs == content.highlighted:
            axes.plot(x, y, "o-", color=colors.CHOSEN, linewidth=2.5, zorder=4, label=f"chosen: {knobs}")
        elif knobs == UNTUNED:
            axes.plot(x, y, "s-", color=colors.UNTUNED, linewidth=2.5, zorder=3, label="untuned")
        else:
            label = None if others_named else "other configurations"
            axes.plot(x, y, ".-", color=colors.OTHER, linewidth=1, zorder=2, label=label)
            others_named = True
    if (budget := content.axis.budget) is not None:
        axes.axhline(budget.limit, color=colors.LIMIT, linestyle="--", linewidth=1.2, label=f"budget {budget}")
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.set_xlabel("throughput, requests/s")
    axes.set_ylabel(f"{content.axis.name}, ms")
    axes.set_title(f"{content.model}: each line is one configuration under rising load")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="y", which="minor", labelsize="small")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize="small")


def _draw_attribution(axes: Any, attribution: Attribution) -> None:
    sides = [attribution.steps[0].before, *(step.after for step in attribution.steps)]
    names = ["untuned", *(f"+ {step.change}" for step in attribution.steps)]
    ends = [colors.UNTUNED, *([colors.OTHER] * (len(sides) - 2)), colors.CHOSEN]
    axes.barh(names, [side.throughput_per_s or 0.0 for side in sides], color=ends)
    for name, side in zip(names, sides, strict=True):
        rates = [m.figures.throughput_per_s for m in side.rounds if m.figures]
        axes.plot(rates, [name] * len(rates), "|", color=colors.LIMIT)
    axes.invert_yaxis()
    axes.set_xlabel("throughput within the budget, requests/s; each stroke is one round")

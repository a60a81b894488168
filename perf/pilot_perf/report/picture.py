"""The throughput-latency curves as a PNG, drawn without a browser."""

from pathlib import Path

from pilot_perf.knobs import UNTUNED
from pilot_perf.report.content import Content

UNTUNED_COLOR, CHOSEN_COLOR, OTHER_COLOR, LIMIT_COLOR = "#c2410c", "#0f766e", "#94a3b8", "#b91c1c"


def write_picture(content: Content, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    others_named = False
    for knobs, points in content.curves.items():
        x, y = [p.throughput_per_s for p in points], [p.latency_ms for p in points]
        if knobs == content.highlighted:
            axes.plot(x, y, "o-", color=CHOSEN_COLOR, linewidth=2.5, zorder=4, label=f"chosen: {knobs}")
        elif knobs == UNTUNED:
            axes.plot(x, y, "o-", color=UNTUNED_COLOR, linewidth=2.5, zorder=3, label="untuned")
        else:
            label = None if others_named else "other configurations"
            axes.plot(x, y, ".-", color=OTHER_COLOR, linewidth=1, zorder=2, label=label)
            others_named = True
    if content.limit_ms is not None:
        label = f"budget {content.slo.latency_budgets[0]}"
        axes.axhline(content.limit_ms, color=LIMIT_COLOR, linestyle="--", label=label)
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.set_xlabel("throughput, requests/s")
    axes.set_ylabel(f"{content.measure} latency, ms")
    axes.set_title(f"{content.model}: each line is one configuration under rising load")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="y", which="minor", labelsize="small")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize="small")
    figure.savefig(path)

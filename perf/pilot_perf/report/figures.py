"""The page's interactive figures (plotly): the load curves and where a request's time goes."""

import math
from typing import Any

import plotly.graph_objects as go

from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Measurement
from pilot_perf.report import colors
from pilot_perf.report.content import Content, Point

_TICKS_MS = [digit * 10.0**power for power in range(-2, 6) for digit in (1, 2, 3, 5, 7)]
# Bars beyond these are not readable on a phone.
MAX_BARS = 8


def curves_figure(content: Content) -> Any:
    """Throughput against latency, a line per configuration, the budget and the Pareto front."""
    figure = go.Figure()
    named_other = False
    # The two that matter on top of the others.
    for knobs, points in sorted(content.curves.items(), key=lambda item: item[0] in (UNTUNED, content.highlighted)):
        if knobs == content.highlighted:
            style = {"color": colors.CHOSEN, "width": 3, "name": "chosen", "legend": True, "symbol": "circle"}
        elif knobs == UNTUNED:
            style = {"color": colors.UNTUNED, "width": 3, "name": "untuned", "legend": True, "symbol": "square"}
        else:
            style = {"color": colors.OTHER, "width": 1, "name": "others", "legend": not named_other, "symbol": "x-thin"}
            named_other = True
        figure.add_scatter(
            x=[p.throughput_per_s for p in points],
            y=[p.time_ms for p in points],
            text=[_hover(content, p) for p in points],
            hoverinfo="text",
            mode="lines+markers",
            name=style["name"],
            legendgroup=style["name"],
            showlegend=style["legend"],
            line={"color": style["color"], "width": style["width"]},
            marker={"symbol": style["symbol"], "size": 7, "line": {"color": style["color"], "width": 1}},
        )
    figure.add_scatter(
        x=[p.throughput_per_s for p in content.pareto],
        y=[p.time_ms for p in content.pareto],
        mode="lines",
        name="Pareto front",
        hoverinfo="skip",
        line={"color": colors.LIMIT, "width": 1.5, "dash": "dot", "shape": "vh"},
    )
    if (budget := content.axis.budget) is not None:
        figure.add_hline(y=budget.limit, line={"color": colors.LIMIT, "dash": "dash", "width": 1.5})
        figure.add_annotation(
            x=0, xref="paper", xanchor="left", y=math.log10(budget.limit), yanchor="bottom", showarrow=False,
            text=f"budget {budget}", font={"color": colors.LIMIT},
        )  # fmt: skip
    figure.update_layout(**layout(), height=460)
    figure.update_xaxes(title="throughput, requests/s", rangemode="tozero")
    figure.update_yaxes(
        title=f"{content.axis.name}, ms",
        type="log",
        tickvals=_TICKS_MS,
        ticktext=[f"{tick:g}" for tick in _TICKS_MS],
    )
    return figure


def stages_figure(content: Content) -> Any | None:
    """Where a request's mean time goes, at each configuration's best load; None without Triton's statistics."""
    chosen = _shown_stages(content)
    if not chosen:
        return None
    names = [f"{short(m.trial.knobs)}<br>{m.trial.concurrency} in flight" for m in chosen]
    figure = go.Figure()
    rest = [m.figures.latency_ms["avg"] if m.figures else 0.0 for m in chosen]
    for label, attribute, color in colors.STAGES:
        values = [getattr(m.figures.stages, attribute) or 0.0 if m.figures else 0.0 for m in chosen]
        rest = [left - value for left, value in zip(rest, values, strict=True)]
        _add_stage(figure, names, values, label, color)
    _add_stage(figure, names, [max(left, 0.0) for left in rest], "client and network", colors.REST)
    figure.update_layout(**layout(), barmode="stack", height=150 + 46 * len(names))
    figure.update_layout(legend={"y": 1.02, "yanchor": "bottom", "traceorder": "normal"})
    figure.update_xaxes(title="mean latency, ms")
    figure.update_yaxes(autorange="reversed", automargin=True, tickfont={"size": 10})
    return figure


def _add_stage(figure: Any, names: list[str], values: list[float], label: str, color: str) -> None:
    figure.add_bar(
        y=names, x=values, name=label, orientation="h", marker={"color": color},
        hovertemplate=f"{label} %{{x:.2f}} ms<extra></extra>",
    )  # fmt: skip


def _shown_stages(content: Content) -> list[Measurement]:
    """Each configuration at its best: the chosen one, the untuned one, then the others, fastest first."""
    with_stages = [m for m in content.best_of_each.values() if m.figures and m.figures.stages]
    by_rate = sorted(with_stages, key=lambda m: -m.figures.throughput_per_s if m.figures else 0.0)
    order = {content.highlighted: 0, UNTUNED: 1}
    return sorted(by_rate, key=lambda m: order.get(m.trial.knobs, 2))[:MAX_BARS]


def _hover(content: Content, point: Point) -> str:
    kept = "keeps" if point.is_kept else "breaks"
    return (
        f"{point.knobs}<br>{point.concurrency} in flight<br>{point.throughput_per_s:.0f} requests/s<br>"
        f"{content.axis.name} {point.time_ms:.1f} ms, {kept} the budget"
    )


def short(knobs: Knobs) -> str:
    """In few letters, on two lines where there is much to say."""
    text = str(knobs).replace("instances ", "inst ").replace("max batch ", "batch ").replace("delay us ", "delay ")
    parts = text.split(", ")
    half = (len(parts) + 1) // 2
    return text if len(text) < 24 else f"{', '.join(parts[:half])},<br>{', '.join(parts[half:])}"


def layout() -> dict[str, Any]:
    """What all figures share."""
    return {
        "template": "plotly_white",
        "margin": {"l": 52, "r": 14, "t": 30, "b": 48},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "dragmode": False,
    }

"""The page's interactive figures (plotly)."""

import math
from typing import Any

import plotly.graph_objects as go

from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Figures, Measurement
from pilot_perf.report.content import Content, Point
from pilot_perf.report.picture import CHOSEN_COLOR, LIMIT_COLOR, OTHER_COLOR, UNTUNED_COLOR

STAGES = (
    ("queue", "queue_ms", "#f59e0b"),
    ("input", "compute_input_ms", "#60a5fa"),
    ("compute", "compute_infer_ms", "#0f766e"),
    ("output", "compute_output_ms", "#a78bfa"),
)
_TICKS_MS = [digit * 10.0**power for power in range(-2, 6) for digit in (1, 2, 3, 5, 7)]
REST_COLOR = "#cbd5e1"
# Bars beyond these are not readable on a phone.
MAX_BARS = 10


def curves_figure(content: Content) -> Any:
    """Throughput against latency, a line per configuration, the budget and the Pareto front."""
    figure = go.Figure()
    named_other = False
    for knobs, points in content.curves.items():
        if knobs == content.highlighted:
            style = {"color": CHOSEN_COLOR, "width": 3, "name": "chosen", "legend": True}
        elif knobs == UNTUNED:
            style = {"color": UNTUNED_COLOR, "width": 3, "name": "untuned", "legend": True}
        else:
            style = {"color": OTHER_COLOR, "width": 1, "name": "other configurations", "legend": not named_other}
            named_other = True
        figure.add_scatter(
            x=[p.throughput_per_s for p in points],
            y=[p.latency_ms for p in points],
            text=[_hover(content, p) for p in points],
            hoverinfo="text",
            mode="lines+markers",
            name=style["name"],
            legendgroup=style["name"],
            showlegend=style["legend"],
            line={"color": style["color"], "width": style["width"]},
        )
    figure.add_scatter(
        x=[p.throughput_per_s for p in content.pareto],
        y=[p.latency_ms for p in content.pareto],
        mode="lines",
        name="Pareto front",
        hoverinfo="skip",
        line={"color": "#1e293b", "width": 1.5, "dash": "dot", "shape": "vh"},
    )
    if content.limit_ms is not None:
        figure.add_hline(y=content.limit_ms, line={"color": LIMIT_COLOR, "dash": "dash"})
        figure.add_annotation(
            x=0, xref="paper", xanchor="left", y=math.log10(content.limit_ms), yanchor="bottom", showarrow=False,
            text=f"budget {content.slo.latency_budgets[0]}", font={"color": LIMIT_COLOR},
        )  # fmt: skip
    figure.update_layout(**_layout(), height=480)
    figure.update_xaxes(title="throughput, requests/s", rangemode="tozero")
    figure.update_yaxes(
        title=f"{content.measure} latency, ms",
        type="log",
        tickvals=_TICKS_MS,
        ticktext=[f"{tick:g}" for tick in _TICKS_MS],
    )
    return figure


def stages_figure(content: Content) -> Any | None:
    """Where a request's mean time goes, at each configuration's best load; None without Triton's statistics."""
    chosen = _best_of_each(content)
    if not chosen:
        return None
    names = [_short(m.trial.knobs) + f"<br>{m.trial.concurrency} in flight" for m, _ in chosen]
    figure = go.Figure()
    rest = [figures.latency_ms["avg"] for _, figures in chosen]
    for label, attribute, color in STAGES:
        values = [getattr(figures.stages, attribute) or 0.0 for _, figures in chosen]
        rest = [left - value for left, value in zip(rest, values, strict=True)]
        figure.add_bar(y=names, x=values, name=label, orientation="h", marker={"color": color})
    figure.add_bar(
        y=names, x=[max(left, 0.0) for left in rest], name="client and network", orientation="h",
        marker={"color": REST_COLOR},
    )  # fmt: skip
    layout = _layout() | {"legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}}
    figure.update_layout(**layout, barmode="stack", height=200 + 44 * len(names))
    figure.update_xaxes(title="mean latency, ms")
    figure.update_yaxes(autorange="reversed", automargin=True, tickfont={"size": 10})
    return figure


def _best_of_each(content: Content) -> list[tuple[Measurement, Figures]]:
    """The best measurement within the budget of each configuration (else its lowest latency), fastest first."""
    best: dict[Knobs, tuple[Measurement, Figures]] = {}
    for row in content.rows:
        measurement, figures = row.measurement, row.measurement.figures
        if row.phase != "search" or figures is None or figures.stages is None:
            continue
        known = best.get(measurement.trial.knobs)
        if known is None or _goodness(content, figures) > _goodness(content, known[1]):
            best[measurement.trial.knobs] = (measurement, figures)
    ordered = sorted(best.items(), key=lambda item: item[1][1].throughput_per_s, reverse=True)
    ordered = [item for item in ordered if item[0] in (UNTUNED, content.highlighted)] + [
        item for item in ordered if item[0] not in (UNTUNED, content.highlighted)
    ]
    return [pair for _, pair in ordered[:MAX_BARS]]


def _goodness(content: Content, figures: Figures) -> tuple[bool, float]:
    kept = content.slo.is_kept(figures)
    return kept, figures.throughput_per_s if kept else -content.slo.worst_use(figures)


def _hover(content: Content, point: Point) -> str:
    kept = "keeps" if point.is_kept else "breaks"
    return (
        f"{point.knobs}<br>{point.concurrency} in flight<br>{point.throughput_per_s:.0f} requests/s<br>"
        f"{content.measure} {point.latency_ms:.1f} ms, {kept} the budget"
    )


def _short(knobs: Knobs) -> str:
    return str(knobs).replace("instances ", "inst ").replace("max batch ", "batch ").replace("delay us ", "delay ")


def _layout() -> dict[str, Any]:
    return {
        "template": "plotly_white",
        "margin": {"l": 60, "r": 16, "t": 24, "b": 56},
        "legend": {"orientation": "h", "y": -0.2},
        "font": {"family": "system-ui, sans-serif"},
    }

"""The page's figures about knobs: what each brought, how all configurations compare, and which batches ran."""

from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from pilot_perf.attribution import Attribution
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Measurement
from pilot_perf.report import colors
from pilot_perf.report.content import Content
from pilot_perf.report.figures import layout

AXES = (
    ("precision", "precision"),
    ("instances", "instances"),
    ("intra_op_threads", "threads"),
    ("max_batch", "max batch"),
    ("preferred_batch", "preferred"),
    ("queue_delay_us", "delay us"),
    ("max_num_seqs", "max seqs"),
    ("max_num_batched_tokens", "batched tokens"),
    ("block_size", "block size"),
    ("shared_memory", "shared memory"),
)
INSTALLED = "as installed"
# From slow to fast; the chosen one has a colour of its own.
SCALE = ["#d1d5db", "#374151"]


def attribution_figure(attribution: Attribution) -> Any:
    """Throughput of each place on the path from untuned to chosen, with the rounds as dots."""
    sides = [attribution.steps[0].before, *(step.after for step in attribution.steps)]
    names = ["untuned", *(f"+ {step.change}" for step in attribution.steps)]
    rates = [side.throughput_per_s or 0.0 for side in sides]
    ends = [colors.UNTUNED, *([colors.OTHER] * (len(sides) - 2)), colors.CHOSEN]
    figure = go.Figure()
    figure.add_bar(
        y=names, x=rates, orientation="h", marker={"color": ends}, hoverinfo="skip", showlegend=False,
        text=[f"{rate:.0f}/s" for rate in rates], textposition="auto", textangle=0, insidetextanchor="start",
    )  # fmt: skip
    dots = [
        (name, m.figures.throughput_per_s) for name, s in zip(names, sides, strict=True) for m in s.rounds if m.figures
    ]
    figure.add_scatter(
        y=[name for name, _ in dots], x=[rate for _, rate in dots], mode="markers", name="one round",
        marker={"color": colors.LIMIT, "symbol": "line-ns-open", "size": 9}, hovertemplate="%{x:.0f}/s<extra></extra>",
    )  # fmt: skip
    figure.update_layout(**layout(), height=110 + 38 * len(names))
    figure.update_xaxes(title="requests/s within the budget", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", automargin=True)
    return figure


def parallel_figure(content: Content) -> Any | None:
    """A line per configuration over its knobs, coloured by its best throughput; None where one knob at most moved.

    Drawn from plain lines: plotly's own parallel coordinates need WebGL, and cannot be read on a phone or in print.
    """
    best = {knobs: m for knobs, m in content.best_of_each.items() if knobs != UNTUNED or content.highlighted == UNTUNED}
    axes = [(field, name) for field, name in AXES if len({getattr(knobs, field) for knobs in best}) > 1]
    if len(axes) < 2:
        return None
    levels = {field: _levels(field, best) for field, _ in axes}
    rates = {knobs: m.figures.throughput_per_s for knobs, m in best.items() if m.figures}
    top = max(rates.values())
    figure = go.Figure()
    for knobs, rate in sorted(rates.items(), key=lambda item: item[1]):
        heights = [_height(levels[field], getattr(knobs, field)) for field, _ in axes] + [rate / top]
        is_chosen = knobs == content.highlighted
        figure.add_scatter(
            x=list(range(len(axes) + 1)),
            y=heights,
            mode="lines",
            line={
                "color": colors.CHOSEN if is_chosen else sample_colorscale(SCALE, [rate / top])[0],
                "width": 4 if is_chosen else 1.5,
            },
            text=f"{knobs}<br>{rate:.0f} requests/s",
            hoverinfo="text",
            showlegend=False,
        )
    for place, (field, _) in enumerate(axes):
        figure.add_vline(x=place, line={"color": colors.OTHER, "width": 1}, layer="below")
        for level in levels[field]:
            _label(figure, place, _height(levels[field], level), INSTALLED if level is None else str(level))
    figure.add_vline(x=len(axes), line={"color": colors.OTHER, "width": 1}, layer="below")
    for part in (0.0, 0.5, 1.0):
        _label(figure, len(axes), part, f"{part * top:.0f}")
    figure.update_layout(**layout(), height=340)
    figure.update_xaxes(
        tickvals=list(range(len(axes) + 1)), ticktext=[*(name for _, name in axes), "requests/s"], side="top",
        range=[-0.3, len(axes) + 0.45], showgrid=False, zeroline=False, tickfont={"size": 11}, tickangle=-30,
    )  # fmt: skip
    figure.update_yaxes(visible=False, range=[-0.08, 1.08])
    figure.update_layout(margin={"l": 10, "r": 10, "t": 70, "b": 10})
    return figure


def _levels(field: str, best: dict[Knobs, Measurement]) -> list[Any]:
    found = {getattr(knobs, field) for knobs in best}
    return sorted(found, key=lambda level: (level is not None, level if isinstance(level, int) else 0, str(level)))


def _height(levels: list[Any], level: Any) -> float:
    return 0.5 if len(levels) == 1 else levels.index(level) / (len(levels) - 1)


def _label(figure: Any, x: float, y: float, text: str) -> None:
    figure.add_annotation(
        x=x, y=y, text=text, showarrow=False, xanchor="left", xshift=3, font={"size": 11, "color": colors.LIMIT},
        bgcolor="rgba(255,255,255,0.75)",
    )  # fmt: skip


def batches_figure(content: Content) -> Any | None:
    """Share of the requests' rows by the size of the batch in which they ran; None where it was not counted."""
    figure = go.Figure()
    for knobs, name, color in (
        (UNTUNED, "untuned", colors.UNTUNED),
        (content.highlighted, "chosen", colors.CHOSEN),
    ):
        measurement = None if knobs is None else content.best_of_each.get(knobs)
        counts = None if measurement is None or measurement.figures is None else measurement.figures.batch_counts
        if not counts or any(trace.name == name for trace in figure.data) or (name == "chosen" and knobs == UNTUNED):
            continue
        rows = sum(size * count for size, count in counts.items())
        sizes = sorted(counts)
        figure.add_bar(
            x=[str(size) for size in sizes], y=[size * counts[size] / rows for size in sizes], name=name,
            marker={"color": color}, hovertemplate="batch %{x}: %{y:.1%}<extra></extra>",
        )  # fmt: skip
    if not figure.data:
        return None
    every = sorted({int(size) for trace in figure.data for size in trace.x})
    figure.update_layout(**layout(), barmode="group", height=280)
    figure.update_xaxes(
        title="rows in the batch", type="category", categoryorder="array", categoryarray=[str(size) for size in every]
    )
    figure.update_yaxes(title="share of all rows", tickformat=".0%")
    return figure

"""The HTML page: one file that needs no network, readable on a phone and in print. The answer stands first."""

from html import escape
from typing import Any

import plotly.io

from pilot_perf.report import sections
from pilot_perf.report.answer import answer
from pilot_perf.report.content import Content
from pilot_perf.report.figures import curves_figure, stages_figure
from pilot_perf.report.html import STYLE, note
from pilot_perf.report.knob_figures import attribution_figure, batches_figure, parallel_figure

_PLOT_CONFIG = {"responsive": True, "displaylogo": False, "displayModeBar": False}
# Figures are sized for the screen: in print they must follow the paper, and all rows must be open.
_SCRIPT = """
addEventListener('beforeprint', () => {
  document.querySelectorAll('details').forEach(d => d.open = true);
  document.querySelectorAll('.plotly-graph-div').forEach(d => Plotly.Plots.resize(d));
});
"""


def page(content: Content) -> str:
    title = escape(f"{content.model}: the most throughput within {', '.join(map(str, content.slo.budgets))}")
    figures = _Figures()
    body = [
        f"<h1>{title}</h1>",
        note(f"Study begun {content.created_at}; {len(content.rows)} measurements"),
        answer(content),
        sections.config_diff(content),
        *_why(content, figures),
        sections.bottleneck(content),
        figures.add(
            "Throughput and latency",
            curves_figure(content),
            "Each line is one configuration under rising load; a single mark is a configuration that one measurement "
            "discarded. The dotted line joins what nothing else beats in both.",
        ),
        sections.open_loop(content),
        sections.protection(content),
        figures.add(
            "Where the time of a request goes",
            stages_figure(content),
            "Mean per request from Triton's statistics, at each configuration's best load within the budget; what is "
            "left of the client's latency is client and network.",
        ),
        sections.members(content),
        figures.add(
            "Batches that ran", batches_figure(content), "At the best load of each; a row is counted by its batch."
        ),
        sections.explored_path(content),
        figures.add(
            "All configurations",
            parallel_figure(content),
            "Each line is one configuration at its best load that was measured, the darker the faster; the thick one "
            "is the chosen one.",
        ),
        sections.measurements(content),
        sections.conditions(content),
    ]
    return "\n".join(
        [
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
            "<meta name='viewport' content='width=device-width, initial-scale=1'>",
            # Without it a browser asks for /favicon.ico.
            "<link rel='icon' href='data:,'>",
            f"<title>{title}</title><style>{STYLE}</style></head><body>",
            *body,
            f"<script>{_SCRIPT}</script></body></html>",
        ]
    )


def _why(content: Content, figures: "_Figures") -> list[str]:
    if content.attribution is None:
        return []
    figure = figures.add(
        "What each knob brought",
        attribution_figure(content.attribution),
        "From the untuned configuration to the chosen one, one knob at a time, each place at its own best load within "
        "the budget and all measured in turn. A gain is that of its step: it depends on the knobs before it.",
    )
    return [figure, sections.attribution_table(content)]


class _Figures:
    """Turns figures into HTML; the first one carries plotly itself, and ids are counted: equal pages are equal."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, title: str, figure: Any | None, text: str) -> str:
        """A section, or nothing where there is no figure."""
        if figure is None:
            return ""
        self._count += 1
        html = plotly.io.to_html(
            figure,
            full_html=False,
            include_plotlyjs=self._count == 1,
            config=_PLOT_CONFIG,
            div_id=f"figure-{self._count}",
        )
        return f"<h2>{escape(title)}</h2><div class='figure'>{html}</div>{note(text)}"

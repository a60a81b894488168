"""The HTML page: one file that needs no network, readable on a phone and in print."""

from html import escape
from typing import Any

import plotly.io

from pilot_perf.ratio import METHOD
from pilot_perf.report.content import Content
from pilot_perf.report.figures import curves_figure, stages_figure

_STYLE = """
:root { color-scheme: light }
body { font: 16px/1.5 system-ui, sans-serif; color: #0f172a; margin: 0 auto; padding: 1rem; max-width: 70rem }
h1 { font-size: 1.5rem; margin: .2rem 0 } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem }
.verdict { font-size: 1.1rem; padding: .8rem 1rem; background: #f0fdfa; border-left: 4px solid #0f766e }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .85rem }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #e2e8f0; text-align: left; white-space: nowrap }
td.number { text-align: right; font-variant-numeric: tabular-nums } td.wide { white-space: normal; min-width: 16rem }
tr.broken td { color: #b45309 } tr.failed td { color: #b91c1c }
pre { background: #f8fafc; padding: .8rem; overflow-x: auto; font-size: .85rem }
.add { color: #0f766e } .remove { color: #b91c1c } p.note { color: #475569; font-size: .9rem }
@media print { .scroll { overflow: visible } body { max-width: none } }
"""
_PLOT_CONFIG = {"responsive": True, "displaylogo": False, "displayModeBar": False}


def page(content: Content) -> str:
    figures = [(_CURVES_NOTE, curves_figure(content))]
    if (stages := stages_figure(content)) is not None:
        figures.append((_STAGES_NOTE, stages))
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        # Without it a browser asks for /favicon.ico.
        "<link rel='icon' href='data:,'>",
        f"<title>{escape(content.model)} within {escape(str(content.slo))}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(content.model)} within {escape(str(content.slo))}</h1>",
        f"<p class='note'>Study begun {escape(content.created_at)}; {len(content.rows)} measurements</p>",
        f"<p class='verdict'>{escape(_conclusion(content))}</p>",
        _comparison(content),
    ]
    for index, (note, figure) in enumerate(figures):
        html = plotly.io.to_html(
            figure, full_html=False, include_plotlyjs=index == 0, config=_PLOT_CONFIG, div_id=f"figure-{index + 1}"
        )
        parts += [f"<h2>{escape(note[0])}</h2>", html, f"<p class='note'>{escape(note[1])}</p>"]
    parts += [_diff(content), _measurements(content), _conditions(content), "</body></html>"]
    return "\n".join(parts)


_CURVES_NOTE = (
    "Throughput and latency",
    "Each line is one configuration under rising load; a single dot is a configuration that one measurement "
    "discarded. The dotted line joins what nothing else beats in both.",
)
_STAGES_NOTE = (
    "Where the time of a request goes",
    "Mean per request from Triton's statistics, at each configuration's best load within the budget; what is left of "
    "the client's latency is client and network.",
)


def _conclusion(content: Content) -> str:
    if content.winner is None:
        return f"Nothing keeps {content.slo}."
    if content.verdict is not None:
        return content.verdict.text[0].upper() + content.verdict.text[1:] + "."
    if content.winner.trial.knobs.is_untuned:
        return "The untuned configuration is the best that was found."
    return "The search has found a better configuration; it has not been confirmed yet."


def _comparison(content: Content) -> str:
    verdict = content.verdict
    if verdict is None:
        return ""
    sides = (("untuned", verdict.untuned), ("chosen", verdict.chosen))
    budgets = content.slo.budgets
    head = [
        "",
        "configuration",
        "in flight",
        "throughput, requests/s",
        *(budget.name for budget in budgets),
        "kept the budget",
    ]
    rows = [
        [
            name,
            content.name_of(side.trial.knobs),
            side.trial.concurrency,
            _number(side.throughput_per_s, 0),
            *(budget.text(side.value(budget)) for budget in budgets),
            f"{side.num_kept(content.slo)} of {len(side.rounds)} rounds",
        ]
        for name, side in sides
    ]
    ratio = "" if verdict.ratio is None else f"Ratio chosen / untuned: {verdict.ratio}; {METHOD}. "
    warning = "" if content.warning is None else f" Warning: {content.warning}."
    note = f"{ratio}Medians of {len(verdict.chosen.rounds)} rounds, measured in turn.{warning}"
    return _table(head, rows) + f"<p class='note'>{escape(note)}</p>"


def _diff(content: Content) -> str:
    if not content.config_diff:
        return ""
    lines = []
    for line in content.config_diff.splitlines():
        kind = "add" if line.startswith("+") else "remove" if line.startswith("-") else ""
        lines.append(f"<span class='{kind}'>{escape(line)}</span>" if kind else escape(line))
    return "<h2>The chosen configuration</h2><pre>" + "\n".join(lines) + "</pre>"


def _measurements(content: Content) -> str:
    measures = list(dict.fromkeys([*content.slo.statistics_of("latency_ms"), "avg", "p50", "p99"]))
    head = ["#", "phase", "configuration", "in flight", "requests/s", *(f"{m} ms" for m in measures)]
    head += ["batch", "server cores", "result", "why it was measured"]
    rows, kinds = [], []
    for number, row in enumerate(content.rows, start=1):
        trial, figures = row.measurement.trial, row.measurement.figures
        cells: list[Any] = [number, row.phase, content.name_of(trial.knobs), trial.concurrency]
        if figures is None:
            cells += [""] * (len(measures) + 3)
            cells += [f"{row.measurement.status}: {row.measurement.problem}", trial.reason]
            kinds.append("failed")
        else:
            kept = content.slo.is_kept(figures)
            mean_batch = None if figures.stages is None else figures.stages.mean_batch
            cells += [_number(figures.throughput_per_s, 0), *(_number(figures.latency_ms.get(m), 1) for m in measures)]
            cells += [_number(mean_batch, 1), _number(figures.usage.server_cpu_cores if figures.usage else None, 2)]
            cells += ["keeps the budget" if kept else "breaks the budget", trial.reason]
            kinds.append("" if kept else "broken")
        rows.append(cells)
    return f"<h2>All {len(rows)} measurements</h2>" + _table(head, rows, kinds)


def _conditions(content: Content) -> str:
    rows = [[name, str(value)] for name, value in sorted(content.conditions.items())]
    return "<h2>Conditions</h2>" + _table(["", ""], rows)


def _table(head: list[str], rows: list[list[Any]], kinds: list[str] | None = None) -> str:
    def cell(value: Any) -> str:
        text = str(value)
        is_number = kinds is not None and text.replace(".", "", 1).isdigit()
        kind = "number" if is_number else "wide" if len(text) > 60 else ""
        return f"<td class='{kind}'>{escape(text)}</td>" if kind else f"<td>{escape(text)}</td>"

    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        f"<tr class='{kind}'>{''.join(map(cell, row))}</tr>"
        for row, kind in zip(rows, kinds or [""] * len(rows), strict=True)
    )
    return f"<div class='scroll'><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"

"""Small pieces of HTML: tables, numbers, and the page's style."""

from collections.abc import Sequence
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light; --ink: #111827; --soft: #4b5563; --line: #e5e7eb; --good: #0072b2; --bad: #b45309 }
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); margin: 0 auto; padding: 1rem; max-width: 68rem;
       overflow-wrap: break-word }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .2rem 0 }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; padding-top: .6rem; border-top: 1px solid var(--line) }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem }
p { margin: .4rem 0 } p.note, figcaption { color: var(--soft); font-size: .9rem }
.verdict { font-size: 1.15rem; font-weight: 600; margin: .8rem 0; padding: .7rem 1rem; background: #eef6fb;
           border-left: 5px solid var(--good) }
.verdict.none { background: #fdf4e7; border-color: var(--bad) }
.warning { padding: .5rem 1rem; background: #fdf4e7; border-left: 5px solid var(--bad) }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .6rem; margin: 1rem 0 }
.tile { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem }
.tile b { display: block; font-size: 1.45rem; line-height: 1.2; font-variant-numeric: tabular-nums }
.tile span { color: var(--soft); font-size: .85rem }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .85rem; width: 100% }
th { text-align: left; color: var(--soft); font-weight: 600; vertical-align: bottom }
th, td { padding: .28rem .6rem .28rem 0; border-bottom: 1px solid var(--line) }
td { vertical-align: top } th.number, td.number { text-align: right; font-variant-numeric: tabular-nums }
td.short { white-space: nowrap } td.wide { min-width: 13rem }
tr.broken td { color: var(--bad) } tr.failed td { color: #9f1239 } tr.chosen td { font-weight: 600 }
pre { background: #f9fafb; padding: .8rem; overflow-x: auto; font-size: .8rem; line-height: 1.45 }
.add { color: #00598a; background: #e3f1fa } .remove { color: #9a3412; background: #fdeee3 }
details { margin-top: 2.2rem; padding-top: .6rem; border-top: 1px solid var(--line) }
summary { font-size: 1.15rem; font-weight: 700; cursor: pointer }
details h2 { display: none }
.figure { width: 100%; min-width: 0; overflow: hidden }
@media print {
  @page { margin: 12mm }
  body { max-width: none; padding: 0; font-size: 11pt } .scroll, pre { overflow: visible; white-space: pre-wrap }
  table { font-size: 7.5pt } td, th { padding-right: .35rem } td.short { white-space: normal } td.wide { min-width: 0 }
  h2, h3, summary { break-after: avoid } tr, .tile, .figure, .verdict { break-inside: avoid }
}
"""


def table(
    head: Sequence[str], rows: Sequence[Sequence[Any]], kinds: Sequence[str] | None = None, numbers: Sequence[int] = ()
) -> str:
    """`kinds` are classes of rows, `numbers` the columns that are set as numbers. Cells are text, not HTML."""

    def name(index: int, text: str) -> str:
        return f"<th class='number'>{escape(text)}</th>" if index in numbers else f"<th>{escape(text)}</th>"

    def cell(index: int, value: Any) -> str:
        text = "" if value is None else str(value)
        kind = "number" if index in numbers else "wide" if len(text) > 40 else "short"
        return f"<td class='{kind}'>{escape(text)}</td>"

    names = "".join(name(index, text) for index, text in enumerate(head))
    body = "".join(
        f"<tr class='{kind}'>{''.join(cell(index, value) for index, value in enumerate(row))}</tr>"
        for row, kind in zip(rows, kinds or [""] * len(rows), strict=True)
    )
    return f"<div class='scroll'><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>"


def number(value: float | None, digits: int = 0) -> str:
    """Empty where nothing was measured."""
    return "" if value is None else f"{value:.{digits}f}"


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}" if 0 < value < 0.1 else f"{value:.0%}"


def note(text: str) -> str:
    return f"<p class='note'>{escape(text)}</p>"

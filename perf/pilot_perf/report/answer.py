"""The head of the page: the conclusion, its numbers, and the two sides that were compared."""

from html import escape

from pilot_perf.alone import text_alone
from pilot_perf.ratio import METHOD
from pilot_perf.report.content import Content
from pilot_perf.report.html import note, number, table
from pilot_perf.side import Side
from pilot_perf.token_rates import TOKEN_RATES, median_of


def answer(content: Content) -> str:
    is_gain = content.verdict is not None and content.verdict.is_a_gain
    parts = [f"<p class='verdict{'' if is_gain else ' none'}'>{escape(conclusion(content))}</p>"]
    if content.warning is not None:
        parts.append(f"<p class='warning'>Warning: {escape(content.warning)}.</p>")
    tiles = _tiles(content)
    if tiles:
        boxes = "".join(
            f"<div class='tile'><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in tiles
        )
        parts.append(f"<div class='tiles'>{boxes}</div>")
    parts.append(_comparison(content))
    return "".join(parts)


def conclusion(content: Content) -> str:
    if content.winner is None:
        near = content.nearest
        if near is None or near.figures is None:
            return f"Nothing keeps {content.slo}."
        where = f"{content.name_of(near.trial.knobs)}, {near.trial.concurrency} in flight"
        return f"Nothing keeps {content.slo}. Nearest: {where}: {content.slo.describe(near.figures)}."
    if content.verdict is not None:
        return content.verdict.text[0].upper() + content.verdict.text[1:] + "."
    if content.alone is None and not content.winner.trial.knobs.is_untuned:
        return "The search has found a better configuration; it has not been confirmed yet."
    text = text_alone(content.winner, content.alone)
    return text[0].upper() + text[1:] + "."


def _tiles(content: Content) -> list[tuple[str, str]]:
    """The few numbers that answer: value, and what it is."""
    verdict, tiles = content.verdict, list[tuple[str, str]]()
    if verdict is not None:
        if verdict.ratio is not None:
            tiles.append((f"x {verdict.ratio.value:.2f}", _interval(content)))
        tiles.append((f"{number(verdict.chosen.throughput_per_s)}/s", "requests within the budget, chosen"))
        tiles.append((f"{number(verdict.untuned.throughput_per_s)}/s", "requests, untuned"))
        tiles += [(b.text(verdict.chosen.value(b)), f"{b.name} of the chosen; budget {b}") for b in content.slo.budgets]
        tiles += _token_tiles(verdict.chosen)
    elif content.alone is not None:
        side = content.alone.side
        tiles.append((f"{number(side.throughput_per_s)}/s", "requests, when measured again"))
        tiles += [(b.text(side.value(b)), f"{b.name}; budget {b}") for b in content.slo.budgets]
        kept = f"{side.num_kept(content.slo)} of {len(side.all_rounds)}"
        tiles.append((kept, f"rounds within the budget, at {side.trial.concurrency} in flight"))
        tiles += _token_tiles(side)
    elif content.winner is not None and content.winner.figures is not None:
        figures = content.winner.figures
        tiles.append((f"{number(figures.throughput_per_s)}/s", "requests within the budget"))
        tiles += [(b.text(b.value(figures)), f"{b.name}; budget {b}") for b in content.slo.budgets]
    if content.replicas is not None:
        tiles.append((str(content.replicas.count), f"replicas for {content.replicas.rate_per_s:g} requests/s"))
    return tiles


def _token_tiles(side: Side) -> list[tuple[str, str]]:
    known = [(median_of(side, field), form, name) for field, form, name in TOKEN_RATES]
    return [(form.format(value), name) for value, form, name in known if value is not None]


def _interval(content: Content) -> str:
    ratio = None if content.verdict is None else content.verdict.ratio
    if ratio is None or ratio.low is None or ratio.high is None:
        return "chosen / untuned; no interval"
    return f"chosen / untuned; 95% interval {ratio.low:.2f} to {ratio.high:.2f}"


def _comparison(content: Content) -> str:
    verdict = content.verdict
    if verdict is None:
        return ""
    budgets = content.slo.budgets
    tokens = TOKEN_RATES if content.has_tokens else ()
    head = ["", "configuration", "in flight", "requests/s", *(budget.name for budget in budgets)]
    head += [*(name for _, _, name in tokens), "kept the budget"]
    rows = [
        [
            name,
            content.name_of(side.trial.knobs) if not side.trial.knobs.is_untuned else "as installed",
            side.trial.concurrency,
            number(side.throughput_per_s),
            *(budget.text(side.value(budget)) for budget in budgets),
            *(number(median_of(side, field), 1) for field, _, _ in tokens),
            f"{side.num_kept(content.slo)} of {len(side.all_rounds)} rounds",
        ]
        for name, side in (("untuned", verdict.untuned), ("chosen", verdict.chosen))
    ]
    ratio = "" if verdict.ratio is None else f"Ratio chosen / untuned: {verdict.ratio}; {METHOD}. "
    given_up = ""
    if verdict.num_given_up:
        given_up = f" {verdict.num_given_up} faster candidate(s) broke the budget when measured again."
    texts = [f"{ratio}Figures are medians of the rounds, measured in turn.{given_up}"]
    if content.replicas is not None:
        texts.append(f"Replicas: {content.replicas.text}.")
    return table(head, rows, ["", "chosen"], (2, 3)) + "".join(map(note, texts))

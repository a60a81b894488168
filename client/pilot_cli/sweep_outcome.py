"""What a sweep came to, for a person and for a program."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pilot_cli.sweep_progress import FEW_PER_S

if TYPE_CHECKING:
    from pilot_perf.measures import Measurement
    from pilot_perf.open_loop import OpenLoop
    from pilot_perf.outcome import Outcome
    from pilot_perf.overload import Protection
    from pilot_perf.ratio import Ratio
    from pilot_perf.side import Side
    from pilot_perf.slo import Slo


def outcome_table(outcome: "Outcome") -> str:
    """The result for a person: untuned beside chosen, then the ratio and the conclusion."""
    lines: list[str] = []
    if outcome.winner is None:
        lines.append(f"Nothing keeps {outcome.slo}.")
        if (near := outcome.nearest) is not None and near.figures is not None:
            where = f"{near.trial.knobs}; {near.trial.concurrency} in flight"
            lines.append(f"Nearest: {where}: {outcome.slo.describe(near.figures)}")
    elif outcome.verdict is None:
        lines += [_alone_line(outcome), f"Conclusion: {outcome.text}"]
    else:
        verdict = outcome.verdict
        rows = [
            ("", "untuned", "chosen"),
            *_side_rows(verdict.untuned, verdict.chosen, outcome.slo),
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        if verdict.ratio is not None:
            from pilot_perf.ratio import METHOD

            lines.append(f"Ratio chosen / untuned: {verdict.ratio} ({METHOD}; {verdict.ratio.num_pairs} pairs)")
        if verdict.num_given_up:
            lines.append(f"{verdict.num_given_up} faster candidate(s) broke the budget when measured again")
        lines.append(f"Conclusion: {verdict.text}")
        if outcome.warning is not None:
            lines.append(f"Warning: {outcome.warning}")
    if outcome.chosen is not None and outcome.chosen.shared_memory is not None:
        lines.append(f"Clients must pass tensors through {outcome.chosen.shared_memory} shared memory for it.")
    if outcome.bottleneck is not None:
        lines += ["", outcome.bottleneck.text]
    if outcome.open_loop is not None:
        lines += ["", f"Open loop: {outcome.open_loop.text(outcome.slo)}"]
    if outcome.attribution is not None:
        lines += ["", "What each knob brought (throughput within the budget):", *_step_lines(outcome)]
    if outcome.protection is not None:
        lines += ["", f"Overload: {outcome.protection.text}"]
    if outcome.replicas is not None:
        lines += ["", f"Replicas: {outcome.replicas.text}"]
    return "\n".join(lines)


def _alone_line(outcome: "Outcome") -> str:
    """The winner that was compared with nothing: medians of its confirming rounds, else what the search measured."""
    from pilot_perf.token_rates import median_of

    side = outcome.answer
    if side is None:
        return ""
    slo, tokens = outcome.slo, median_of(side, "output_tokens_per_s")
    budgets = ", ".join(f"{budget.name} {budget.text(side.value(budget))}" for budget in slo.budgets)
    more = "" if tokens is None else f", {tokens:.0f} tokens/s"
    rounds = f", within the budget in {side.num_kept(slo)} of {len(side.all_rounds)} rounds"
    return (
        f"{side.trial.knobs}: {_rate(side.throughput_per_s)} at {side.trial.concurrency} in flight{more}, "
        f"{budgets}{rounds}"
    )


def _step_lines(outcome: "Outcome") -> list[str]:
    """One line per step: the knob, its gain with the interval, and the throughput after it."""
    steps = () if outcome.attribution is None else outcome.attribution.steps
    rows = [
        (
            f"  {step.change}",
            "" if step.ratio is None else f"x {step.ratio}",
            _rate(step.after.throughput_per_s),
            step.text(outcome.slo),
        )
        for step in steps
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _side_rows(untuned: "Side", chosen: "Side", slo: "Slo") -> list[tuple[str, str, str]]:
    sides = (untuned, chosen)

    def row(name: str, cell: Callable[["Side"], str]) -> tuple[str, str, str]:
        return (name, *map(cell, sides))  # type: ignore[return-value]

    return [
        row("configuration", lambda side: "as installed" if side.trial.knobs.is_untuned else str(side.trial.knobs)),
        row("in flight", lambda side: str(side.trial.concurrency)),
        row("throughput", lambda side: _rate(side.throughput_per_s)),
        *_token_rows(row, sides),
        *(row(b.name, lambda side, b=b: b.text(side.value(b))) for b in slo.budgets),  # type: ignore[misc]
        row(f"kept {slo}", lambda side: f"{side.num_kept(slo)} of {len(side.all_rounds)} rounds"),
    ]


def _token_rows(
    row: Callable[[str, Callable[["Side"], str]], tuple[str, str, str]], sides: tuple["Side", "Side"]
) -> list[tuple[str, str, str]]:
    """Of a language model: what all readers together get, and what one of them sees."""
    from pilot_perf.token_rates import median_of

    if not any(m.figures and m.figures.output_tokens_per_s for side in sides for m in side.all_rounds):
        return []

    return [
        row("output", lambda side: _number(median_of(side, "output_tokens_per_s"), " tokens/s", 0)),
        row("for one user", lambda side: _number(median_of(side, "output_tokens_per_s_per_user"), " tokens/s", 0)),
        row("goodput", lambda side: _rate(median_of(side, "goodput_per_s"))),
    ]


def _rate(value: float | None) -> str:
    """Requests per second; a language model answers only a few."""
    return _number(value, "/s", 0 if value is None or value >= FEW_PER_S else 1)


def _number(value: float | None, unit: str, digits: int) -> str:
    return "not measured" if value is None else f"{value:.{digits}f}{unit}"


def outcome_json(outcome: "Outcome") -> dict[str, Any]:
    """The same for programs. Figures of both sides are medians over the confirming rounds.

    `winner` is what the search measured of it, once and briefly; `alone` what was confirmed where there is nothing to
    compare it with; `nearest` the closest miss where nothing keeps the budget.
    """
    verdict = outcome.verdict

    def side(of: "Side") -> dict[str, Any]:
        return {
            "knobs": of.trial.knobs.as_dict(),
            "concurrency": of.trial.concurrency,
            "throughput_per_s": of.throughput_per_s,
            "measures": {budget.name: of.value(budget) for budget in outcome.slo.budgets},
            "rounds": len(of.all_rounds),
            "rounds_within_budget": of.num_kept(outcome.slo),
        }

    def single(measurement: "Measurement | None") -> dict[str, Any] | None:
        if measurement is None or (figures := measurement.figures) is None:
            return None
        return {
            "knobs": measurement.trial.knobs.as_dict(),
            "concurrency": measurement.trial.concurrency,
            "throughput_per_s": figures.throughput_per_s,
            "measures": {budget.name: budget.value(figures) for budget in outcome.slo.budgets},
        }

    result: dict[str, Any] = {
        "conclusion": outcome.text,
        "warning": outcome.warning,
        "slo": str(outcome.slo),
        "chosen_knobs": None if outcome.chosen is None else outcome.chosen.as_dict(),
        "measurements": outcome.num_measurements,
        "study": str(outcome.study_file),
        "config": None if outcome.config_file is None else str(outcome.config_file),
        "member_configs": {name: str(file) for name, file in outcome.member_files.items()},
        "winner": single(outcome.winner),
        "nearest": single(outcome.nearest) if outcome.winner is None else None,
        "alone": None if (alone := outcome.alone) is None else {**side(alone.side), "keeps_budget": alone.keeps},
        "untuned": None if verdict is None else side(verdict.untuned),
        "tuned": None if verdict is None else side(verdict.chosen),
        "ratio": None if verdict is None else ratio_json(verdict.ratio),
        "bottleneck": None if outcome.bottleneck is None else asdict(outcome.bottleneck),
        "open_loop": None if outcome.open_loop is None else _open_loop_json(outcome.open_loop, outcome.slo),
        "attribution": None,
        "overload": None,
        "replicas": None,
    }
    if outcome.attribution is not None:
        result["attribution"] = [
            {
                "change": step.change,
                "result": step.text(outcome.slo),
                "ratio": ratio_json(step.ratio),
                "before": side(step.before),
                "after": side(step.after),
            }
            for step in outcome.attribution.steps
        ]
    if outcome.protection is not None:
        result["overload"] = _overload_json(outcome.protection)
    if (replicas := outcome.replicas) is not None:
        result["replicas"] = {
            "count": replicas.count,
            "rate_per_s": replicas.rate_per_s,
            "measured_per_s": replicas.measured_per_s,
            "load_per_replica": replicas.load_per_replica,
        }
    return result


def ratio_json(ratio: "Ratio | None") -> dict[str, Any] | None:
    if ratio is None:
        return None
    return {"value": ratio.value, "low": ratio.low, "high": ratio.high, "pairs": ratio.num_pairs}


def _open_loop_json(held: "OpenLoop", slo: "Slo") -> dict[str, Any]:
    """`rate_per_s` None: no rate that was tried keeps the budget."""
    return {
        "conclusion": held.text(slo),
        "closed_loop_per_s": held.closed_loop_per_s,
        "rate_per_s": held.rate_per_s,
        "late_sends": None if held.kept is None or held.kept.figures is None else held.kept.figures.late_sends,
    }


def _overload_json(protection: "Protection") -> dict[str, Any]:
    """`knobs` None: no bound protects, none is installed. An attempt whose `problem` is empty does what it should."""
    return {
        "conclusion": protection.text,
        "tuned_rate_per_s": protection.room.rate_per_s,
        "knobs": None if protection.knobs is None else protection.knobs.as_dict(),
        "attempts": [
            {
                "bound": attempt.name,
                "knobs": attempt.trial.knobs.as_dict(),
                "rate_per_s": attempt.trial.rate_per_s,
                "problem": attempt.problem,
                "accepted_per_s": None if (figures := attempt.figures) is None else figures.throughput_per_s,
                "refused_share": None if figures is None else figures.refused_rate,
                "accepted_ms": None if figures is None else figures.latency_ms,
                "refused_ms": None if figures is None else figures.refused_ms,
                "late_sends": None if figures is None else figures.late_sends,
            }
            for attempt in protection.attempts
        ],
    }

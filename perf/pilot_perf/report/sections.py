"""The sections of the page that are tables: why it is faster, what an overload does, how it was found, and all rows."""

from html import escape
from typing import Any

from pilot_perf.knobs import UNTUNED
from pilot_perf.measures import Figures
from pilot_perf.open_loop import problem as open_loop_problem
from pilot_perf.overload import MAX_REFUSED_LIGHT, OVERLOAD, TOLERANCE, Protection
from pilot_perf.report.content import Content
from pilot_perf.report.html import note, number, share, table
from pilot_perf.store import Row
from pilot_perf.widths import rate_half_width


def bottleneck(content: Content) -> str:
    found = content.bottleneck
    if found is None:
        return ""
    title = "Nothing bounds it at this load" if found.bound == "nothing" else f"What bounds it: {found.bound}"
    evidence = found.evidence[0].upper() + found.evidence[1:]
    return f"<h2>{title}</h2><p>{escape(evidence)}.</p><p><b>Next:</b> {escape(found.try_next)}.</p>"


def attribution_table(content: Content) -> str:
    if content.attribution is None:
        return ""
    rows, kinds = [], []
    for step in content.attribution.steps:
        kept = step.after.keeps(content.slo)
        rows.append(
            [
                step.change,
                "" if step.ratio is None else f"x {step.ratio}",
                number(step.before.throughput_per_s),
                number(step.after.throughput_per_s),
                step.after.trial.concurrency,
                step.text(content.slo),
            ]
        )
        kinds.append("" if kept else "broken")
    head = ["with", "gain of this step", "requests/s before", "after", "in flight", "result"]
    return table(head, rows, kinds, (2, 3, 4))


def open_loop(content: Content) -> str:
    found = content.open_loop
    if found is None:
        return ""
    rows, kinds = [], []
    for measurement in found.attempts:
        figures = measurement.figures
        trouble = measurement.problem if figures is None else open_loop_problem(figures, content.slo)
        rows.append(
            [
                number(measurement.trial.rate_per_s),
                number(figures.throughput_per_s if figures else None),
                *(budget.text(budget.value(figures)) if figures else "" for budget in content.slo.budgets),
                share(figures.late_sends if figures else None),
                trouble or "holds",
            ]
        )
        kinds.append("chosen" if measurement == found.kept else "broken" if trouble else "")
    budgets = content.slo.budgets
    head = ["arriving/s", "answered/s", *(budget.name for budget in budgets), "sent late", "result"]
    text = found.text(content.slo)
    return (
        f"<h2>When arrivals do not wait</h2><p>{escape(text[0].upper() + text[1:])}.</p>"
        + table(head, rows, kinds, range(3 + len(budgets)))
        + note(
            f"Open loop, {content.conditions.get('arrivals', 'Poisson')} arrivals, highest rate first. Latency counts "
            "from the moment at which a request was due, so a late client or a full server is in it."
        )
    )


def protection(content: Content) -> str:
    found = content.protection
    if found is None:
        return ""
    rows, kinds = [], []
    for attempt in found.attempts:
        figures = attempt.figures
        refused_ms = {} if figures is None or figures.refused_ms is None else figures.refused_ms
        rows.append(
            [
                attempt.name,
                _bound(attempt.trial.knobs.max_queue_size, attempt.trial.knobs.queue_timeout_us),
                number(attempt.trial.rate_per_s),
                number(figures.throughput_per_s if figures else None),
                share(figures.refused_rate if figures else None),
                *(budget.text(budget.value(figures)) if figures else "" for budget in content.slo.latency_budgets),
                number(refused_ms.get("p95"), 1),
                share(figures.late_sends if figures else None),
                attempt.problem or "does what it should",
            ]
        )
        kinds.append("chosen" if attempt.trial.knobs == found.knobs else "broken" if attempt.problem else "")
    budgets = content.slo.latency_budgets
    head = ["", "bound", "arriving/s", "accepted/s", "refused", *(f"{b.name} accepted" for b in budgets)]
    head += ["p95 ms until refused", "sent late", "result"]
    numbers = (2, 3, 4, *range(5, 7 + len(budgets)))
    return (
        f"<h2>At {OVERLOAD:g} times the load</h2><p>{escape(found.text[0].upper() + found.text[1:])}.</p>"
        + table(head, rows, kinds, numbers)
        + note(_protection_note(found))
    )


def _bound(size: int | None, timeout_us: int | None) -> str:
    if size is not None:
        return f"{size} waiting"
    return "" if timeout_us is None else f"{timeout_us / 1000:.0f} ms of waiting"


def _protection_note(found: Protection) -> str:
    room = found.room
    return (
        "Open loop; where requests are refused by our own client, since perf_analyzer ends at the first one. From "
        f"the budget of {room.limit_ms:g} ms and {room.service_ms:.1f} ms that are not spent waiting a request may "
        f"wait {room.wait_ms:.0f} ms; by Little's law {room.size} of them wait that long at {room.rate_per_s:.0f}/s. "
        f"A bound protects where accepted requests keep {TOLERANCE:g} x the budget at {OVERLOAD:g} times the load, "
        "where 95% of the refusals take no longer than that either, and where it refuses at most "
        f"{MAX_REFUSED_LIGHT:.0%} at a tenth of it."
    )


def explored_path(content: Content) -> str:
    """Every measurement of the search that was the best so far."""
    found = content.improvements
    if not found:
        return ""
    rows, has_tokens = [], content.has_tokens
    for count, (row_number, measurement) in enumerate(found):
        figures = measurement.figures
        if figures is None:
            continue
        before = found[count - 1][1].figures if count else None
        gain = "" if before is None else f"+{figures.throughput_per_s / before.throughput_per_s - 1:.0%}"
        rows.append(
            [
                row_number,
                content.name_of(measurement.trial.knobs),
                measurement.trial.concurrency,
                number(figures.stages.mean_batch if figures.stages else None, 1),
                number(figures.throughput_per_s),
                gain,
                number(content.axis.time_ms(figures), 1),
                *([number(figures.output_tokens_per_s)] if has_tokens else []),
                _utilisation(content, figures),
            ]
        )
    head = ["#", "configuration", "in flight", "batch", "requests/s", "gain", f"{content.axis.name} ms"]
    head += [*(["tokens/s"] if has_tokens else []), "CPU"]
    kinds = ["" for _ in rows[:-1]] + ["chosen"]
    return (
        "<h2>The path of the search</h2>"
        + table(head, rows, kinds, (0, *range(2, len(head))))
        + note(
            f"Each measurement that was the best so far within the budget, of {len(content.searched)}. Batch is the "
            "mean that ran; CPU is the share of the machine's cores that the server kept busy."
        )
    )


def _utilisation(content: Content, figures: Figures) -> str:
    cores = figures.usage.server_cpu_cores if figures.usage else None
    return "" if cores is None or not content.cpus else f"{cores / content.cpus:.0%}"


def members(content: Content) -> str:
    """Where the time goes inside an ensemble: each member's own stages, untuned and chosen."""
    rows = []
    for knobs, name in ((UNTUNED, "untuned"), (content.highlighted, "chosen")):
        best = None if knobs is None else content.best_of_each.get(knobs)
        if best is None or best.figures is None or best.figures.members is None:
            continue
        for member, stages in best.figures.members.items():
            times = (stages.queue_ms, stages.compute_input_ms, stages.compute_infer_ms, stages.compute_output_ms)
            rows.append([name, member, *(number(ms, 2) for ms in times), number(stages.mean_batch, 1)])
        if knobs == content.highlighted:
            break
    if not rows:
        return ""
    head = ["", "member", "queue ms", "input ms", "compute ms", "output ms", "batch"]
    return "<h2>The members of the ensemble</h2>" + table(head, rows, numbers=(2, 3, 4, 5, 6))


def config_diff(content: Content) -> str:
    if not content.config_diff:
        return ""
    lines = []
    for line in content.config_diff.splitlines():
        kind = "add" if line.startswith("+") else "remove" if line.startswith("-") else ""
        lines.append(f"<span class='{kind}'>{escape(line)}</span>" if kind else escape(line))
    found = "<h2>The chosen configuration</h2><pre>" + "\n".join(lines) + "</pre>"
    if content.highlighted is None or not content.highlighted.members:
        return found
    return found + note(
        "An ensemble has no queue of its own, and its members get no queue policy from this study: a bound at one of "
        "them would refuse requests that others have worked on already. Bound what comes in before the server."
    )


def measurements(content: Content) -> str:
    names = list(dict.fromkeys([*content.slo.statistics_of("latency_ms"), "avg", "p50", "p99"]))
    extra = [budget for budget in content.slo.budgets if budget.measure != "latency_ms"]
    head = ["#", "phase", "configuration", "load", "requests/s", *(f"{name} ms" for name in names)]
    tokens = ["tokens/s"] if content.has_tokens else []
    head += [
        *(budget.name for budget in extra),
        *tokens,
        "batch",
        "CPU",
        "window s",
        "requests",
        "+-",
        "result",
        "why it was measured",
    ]
    rows, kinds = [], []
    for row_number, row in enumerate(content.rows, start=1):
        trial, figures = row.measurement.trial, row.measurement.figures
        cells: list[Any] = [row_number, row.phase.replace("_", " "), content.name_of(trial.knobs), load_of(row)]
        before = "".join(f" Before: {attempt}." for attempt in row.measurement.earlier)
        if figures is None:
            cells += [""] * (len(names) + len(extra) + len(tokens) + 6)
            cells += [f"{row.measurement.status}: {row.measurement.problem}{before}", trial.reason]
            kinds.append("failed")
        else:
            kept = content.slo.is_kept(figures)
            cells += [number(figures.throughput_per_s), *(number(figures.latency_ms.get(n), 1) for n in names)]
            cells += [budget.text(budget.value(figures)) for budget in extra]
            cells += [number(figures.output_tokens_per_s) for _ in tokens]
            cells += [number(figures.stages.mean_batch if figures.stages else None, 1), _utilisation(content, figures)]
            cells += [number(figures.window_s, 1), figures.num_requests, _intervals(figures)]
            cells += [f"{'keeps' if kept else 'breaks'} the budget{before and f'.{before}'}", trial.reason]
            kinds.append("" if kept else "broken")
        rows.append(cells)
    numbers = (0, *range(4, 9 + len(names) + len(extra) + len(tokens)))
    return (
        f"<details><summary>All {len(rows)} measurements</summary>"
        + table(head, rows, kinds, numbers)
        + note(
            "In the order in which they were made. The window is all windows of the measurement together. What was "
            "measured before, too short or unsteady, stands beside the result and is in none of the numbers. +- is "
            "how far the 95% interval of the one measurement reaches to either side: of the throughput by its windows "
            f"(Student's t), of a percentile where every request was recorded (order statistics).{_repeats(content)}"
        )
        + "</details>"
    )


def _intervals(figures: Figures) -> str:
    """Few letters: the table has many columns, and must fit a sheet of paper."""
    widths = {"": rate_half_width(figures.window_rates_per_s), **(figures.half_widths or {})}
    return ", ".join(f"{name} {width:.0%}".strip() for name, width in widths.items() if width is not None)


def _repeats(content: Content) -> str:
    most = content.conditions.get("windows_half_width")
    if not isinstance(most, float):
        return ""
    return f" In the confirmation and the open loop windows with more than +-{most:.0%} are measured twice."


def load_of(row: Row) -> str:
    trial = row.measurement.trial
    return f"{trial.concurrency} in flight" if trial.rate_per_s is None else f"{trial.rate_per_s:.0f}/s arrive"


def conditions(content: Content) -> str:
    rows = [[name, str(value)] for name, value in sorted(content.conditions.items())]
    return "<h2>Conditions</h2>" + table(["", ""], rows)

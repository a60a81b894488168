"""`tritonpilot compare`: two studies of the same model, for a regression check."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilot_cli.output import json_option, print_json

if TYPE_CHECKING:
    from pilot_perf.compare import Comparison

EXIT_REGRESSION, EXIT_NOT_COMPARABLE = 1, 2


@click.command("compare")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.05,
    show_default=True,
    help="Share by which B may be worse than A.",
)
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="CONDITION",
    help="A condition (or the beginning of its name) that may differ, as software.server or model.; may be repeated.",
)
@json_option
@click.pass_context
def command(
    context: click.Context, a: Path, b: Path, tolerance: float, allowed: tuple[str, ...], as_json: bool
) -> None:
    """Compare study B with study A, of the same model under the same conditions.

    A ratio is a regression where it is worse than the tolerance and its 95% interval excludes 1 (a single measurement
    has no interval: then the value alone decides). So is a budget that A kept and B breaks.

    \b
    exit code 0    no regression
    exit code 1    a regression
    exit code 2    the two cannot be compared: one line says which condition differs

    \b
    Examples:
      tritonpilot compare before.sqlite after.sqlite
      tritonpilot compare before.sqlite after.sqlite --allow software.server --tolerance 0.1
      tritonpilot compare here.sqlite there.sqlite --allow server.address
    """
    from pilot_perf.compare import compare
    from pilot_perf.errors import PerfError
    from pilot_perf.store import Store

    try:
        with Store.open(a) as before, Store.open(b) as after:
            comparison = compare(before, after, tolerance, allowed)
    except PerfError as error:
        # Code 1 would say that B is slower.
        click.echo(f"tritonpilot: error: {error}", err=True)
        context.exit(EXIT_NOT_COMPARABLE)
    if as_json:
        print_json(comparison_json(comparison))
    else:
        click.echo(comparison_table(comparison))
    context.exit(EXIT_REGRESSION if comparison.regressions else 0)


def comparison_table(comparison: "Comparison") -> str:
    head = ("", "", "A", "B", "B / A", "")
    rows = [head]
    for row in comparison.rows:
        verdict = row.not_judged and f"not judged: {row.not_judged}"
        if not verdict and row.ratio is not None:
            verdict = "REGRESSION" if row.is_regression(comparison.tolerance) else _words(row.ratio)
        ratio = "" if row.ratio is None else f"{row.ratio}"
        rows.append((row.configuration, row.measure, _number(row.a), _number(row.b), ratio, verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += [f"REGRESSION  {text}" for text in comparison.broken]
    found = len(comparison.regressions)
    lines.append(
        f"Conclusion: {f'{found} regression(s)' if found else 'no regression'} beyond {comparison.tolerance:.0%}"
    )
    return "\n".join(lines)


def _words(ratio: Any) -> str:
    if ratio.low is None:
        return "one measurement each"
    return "differs, within the tolerance or better" if ratio.is_a_difference else "no difference found"


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4g}"


def comparison_json(comparison: "Comparison") -> dict[str, Any]:
    from pilot_cli.sweep_outcome import ratio_json

    return {
        "slo": str(comparison.slo),
        "tolerance": comparison.tolerance,
        "regressions": comparison.regressions,
        "rows": [
            {
                "configuration": row.configuration,
                "measure": row.measure,
                "a": row.a,
                "b": row.b,
                "ratio": ratio_json(row.ratio),
                "is_regression": row.is_regression(comparison.tolerance),
                "not_judged": row.not_judged or None,
            }
            for row in comparison.rows
        ],
    }

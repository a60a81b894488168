"""The options that `sweep` and `tune` share."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilot_cli.param_types import split_names

if TYPE_CHECKING:
    from pilot_perf.default_space import Levels
    from pilot_perf.slo import Slo

DEFAULT_SLO = "p95:100ms"
# As in pilot_perf.search.strategies, which takes long to import.
STRATEGIES = ("quick", "grid", "optuna")
# Where `tune` puts a spec's sample rows, in the results of the model, and where `sweep` finds them.
INPUT_FILE = "input_data.json"


class IntList(click.ParamType[tuple[int, ...]]):
    """`1,2,4`, none below `least`."""

    name = "int,int,..."

    def __init__(self, least: int) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            levels = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers, such as 1,2,4", param, ctx)
        if min(levels) < self._least:
            self.fail(f"{min(levels)} is below {self._least}, the least that has a meaning", param, ctx)
        return levels


def _read_slo(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> "Slo":
    from pilot_perf.errors import BudgetError
    from pilot_perf.slo import parse_slo

    try:
        return parse_slo(texts or (DEFAULT_SLO,))
    except BudgetError as error:
        raise click.BadParameter(str(error)) from error


def sweep_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; the command gets them as keyword arguments."""
    for option in reversed(
        (
            click.option(
                "--slo",
                "slo",
                multiple=True,
                callback=_read_slo,
                help="What to keep, as in p95:50ms, p99.9:latency_ms:<=:100, p95:ttft:200ms, error_rate:<=:0.01, "
                f"memory:2GiB; may be repeated.  [default: {DEFAULT_SLO}]",
            ),
            click.option(
                "--precision",
                "precisions",
                multiple=True,
                metavar="NAMES",
                callback=lambda _context, _option, value: split_names(value),
                help="Serve 1/model.PRECISION.onnx; with commas or repeated.",
            ),
            click.option(
                "--instances", type=IntList(least=1), help="Instance counts to try.  [default: 1 up to the cores]"
            ),
            click.option(
                "--threads", type=IntList(least=1), help="Intra-op threads to try.  [default: 1 up to the cores]"
            ),
            click.option("--max-batch", type=IntList(least=1), help="Largest batches to try.  [default: 1,4,8,16,32]"),
            click.option("--delay-us", type=IntList(least=0), help="Queue delays to try, us.  [default: 0,1000,5000]"),
            click.option(
                "--preferred-batch",
                type=IntList(least=1),
                help="Preferred batches to try.  [default: none]",
            ),
            click.option(
                "--max-num-seqs",
                type=IntList(least=1),
                help="Of a language model: sequences that run at once.  [default: 4,8,16,32,64]",
            ),
            click.option(
                "--max-num-batched-tokens",
                type=IntList(least=1),
                help="Of a language model: tokens of one step.  [default: 128,256,512,1024]",
            ),
            click.option(
                "--block-size",
                type=IntList(least=1),
                help="Of a language model: tokens of a KV block.  [default: as installed]",
            ),
            click.option(
                "--concurrency-max",
                type=click.IntRange(1),
                default=128,
                show_default=True,
                help="Most requests in flight.",
            ),
            click.option(
                "--strategy",
                type=click.Choice(STRATEGIES),
                default=STRATEGIES[0],
                show_default=True,
                help="quick follows a model of the space, optuna asks Optuna's sampler, grid tries every "
                "configuration.",
            ),
            click.option(
                "--max-measurements",
                type=click.IntRange(1),
                help="End the search here.  [default: 60; with --strategy grid no end]",
            ),
            click.option(
                "--study",
                "study_file",
                type=click.Path(path_type=Path, dir_okay=False),
                help="The study's SQLite file; one that exists is gone on with.  [default: below --out]",
            ),
            click.option(
                "--attribution/--no-attribution",
                default=True,
                show_default=True,
                help="Measure what each knob of the chosen configuration brought.",
            ),
            click.option(
                "--protection/--no-protection",
                default=True,
                show_default=True,
                help="Bound the queue of the chosen configuration, and measure it at twice its load.",
            ),
            click.option(
                "--rate",
                "rate_per_s",
                type=click.FloatRange(0, min_open=True),
                help="Requests/s to serve: say how many replicas that needs.",
            ),
            click.option("--fresh", is_flag=True, help="Measure anew instead of going on with an earlier study."),
        )
    ):
        function = option(function)
    return function


def levels_of(options: dict[str, Any]) -> "Levels":
    """The knob options of `sweep_options`, taken out of `options`; of the ways to pass tensors the first is left."""
    from pilot_perf.default_space import Levels

    options["shared_memory"], *ways = options["shared_memory"]
    return Levels(
        precisions=options.pop("precisions") or None,
        instances=options.pop("instances"),
        intra_op_threads=options.pop("threads"),
        max_batches=options.pop("max_batch"),
        queue_delays_us=options.pop("delay_us"),
        preferred_batches=options.pop("preferred_batch"),
        max_num_seqs=options.pop("max_num_seqs"),
        max_num_batched_tokens=options.pop("max_num_batched_tokens"),
        block_sizes=options.pop("block_size"),
        shared_memories=tuple(ways) or None,
        max_concurrency=options.pop("concurrency_max"),
    )

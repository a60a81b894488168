"""What a sweep sends and how: the options that `sweep` and `tune` share."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pilot_perf.lengths import Lengths
    from pilot_perf.requests import RequestOptions


class LengthsType(click.ParamType["Lengths"]):
    """As lengths.py's grammar."""

    name = "lengths"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> "Lengths":
        from pilot_perf.errors import InputDataError
        from pilot_perf.lengths import Lengths, parse_lengths

        if isinstance(value, Lengths):
            return value
        try:
            return parse_lengths(str(value))
        except InputDataError as error:
            self.fail(str(error), param, ctx)


class SharedMemoryType(click.ParamType[tuple[str, ...]]):
    """`none,system`, each once."""

    name = "way,way,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        ways = tuple(str(value).split(","))
        if unknown := [way for way in ways if way not in ("none", "system", "cuda")]:
            self.fail(f"{unknown[0]!r} is not one of 'none', 'system', 'cuda'", param, ctx)
        if len(set(ways)) < len(ways):
            self.fail(f"{value} names one twice", param, ctx)
        return ways


_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_OPTIONS = (
    click.option(
        "--input-data",
        type=_FILE,
        help="Requests to send: a .npz (one array per input, first axis rows), perf_analyzer's JSON, or for a language "
        'model a .jsonl of {"prompt": ..., "max_tokens": ...}.',
    ),
    click.option(
        "--lengths",
        type=LengthsType(),
        help="Cut or repeat the rows of --input-data to lengths: 128, 32-512, 200~60 (mean and deviation), or a file.",
    ),
    click.option(
        "--prompt-tokens",
        type=LengthsType(),
        help="Of a language model: lengths of the prompts that are made.  [default: 32-256]",
    ),
    click.option(
        "--output-tokens", type=LengthsType(), help="Of a language model: lengths of the answers.  [default: 16-64]"
    ),
    click.option(
        "--tokenizer",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Folder of a tokenizer.json to count tokens with, where the model does not.  [default: the model's own]",
    ),
    click.option(
        "--open-loop/--no-open-loop",
        default=True,
        show_default=True,
        help="Measure the answer with arrivals that do not wait for answers, too.",
    ),
    click.option(
        "--trace",
        type=_FILE,
        help="Intervals of those arrivals, one number of microseconds per line.  [default: a Poisson process]",
    ),
    click.option(
        "--shared-memory",
        type=SharedMemoryType(),
        default="none",
        show_default=True,
        help="Pass tensors through shared memory, with a server on this machine: none, system or cuda. Several: "
        "the others are tried as a knob.",
    ),
    click.option(
        "--output-bytes",
        type=click.IntRange(1),
        help="With --shared-memory: the largest output of text or of a free shape.  [default: 100 KB]",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Of made prompts, drawn lengths and arrivals."),
)


def request_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; the command gets them as keyword arguments."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def check_before_start(requests: "RequestOptions", trace: Path | None, model_dir: Path | None) -> None:
    """Read the files that the options name, so that one that cannot be used costs no start of a server.

    Raises:
        InputDataError: names the file and what is wrong with it.
    """
    from pilot_client import model_config
    from pilot_perf.requests import check_files
    from pilot_perf.schedule import read_trace

    has_config = model_dir is not None and (model_dir / model_config.CONFIG_FILE).is_file()
    check_files(requests, model_config.read(model_dir) if model_dir is not None and has_config else None)
    if trace is not None:
        read_trace(trace)


def requests_of(options: dict[str, Any]) -> "RequestOptions":
    """The options of `request_options`, taken out of `options`."""
    from pilot_perf.requests import RequestOptions

    names = ("input_data", "lengths", "prompt_tokens", "output_tokens", "tokenizer", "seed")
    return RequestOptions(**{name: options.pop(name) for name in names})

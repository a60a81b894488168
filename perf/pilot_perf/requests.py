"""What a load sends: perf_analyzer's random values, the rows of a file, or prompts for a language model."""

import itertools
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_perf import input_data
from pilot_perf.conditions import file_hash
from pilot_perf.errors import InputDataError
from pilot_perf.input_data import Row
from pilot_perf.lengths import Lengths, parse_lengths
from pilot_perf.model_inputs import inputs_of
from pilot_perf.prompts import PromptPlan, is_language_model, read_prompts, streaming
from pilot_perf.tokens import TEXT_INPUT, TOKENIZER_FILE, TokenCounter, tokenizer_count

DEFAULT_PROMPT_TOKENS, DEFAULT_OUTPUT_TOKENS = parse_lengths("32-256"), parse_lengths("16-64")
PROMPTS_FILE, ROWS_FILE = "prompts.json", "rows.json"


class Requests(Protocol):
    """Where the requests of a measurement come from."""

    @property
    def conditions(self) -> Mapping[str, Any]:
        """What must be the same for two measurements to be comparable."""

    @property
    def tokens(self) -> TokenCounter | None:
        """How tokens are counted; None for what is no language model."""

    def file(self) -> Path | None:
        """The next launch's requests in perf_analyzer's form; None: its own random values."""

    def rows(self) -> list[Row]:
        """The same for our own client.

        Raises:
            InputDataError: there are none that can be made.
        """


@dataclass(frozen=True)
class RequestOptions:
    """What the user asked for; None where nothing was said. `tokenizer` is a folder with a tokenizer.json."""

    input_data: Path | None = None
    lengths: Lengths | None = None
    prompt_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    tokenizer: Path | None = None
    seed: int = 0

    @property
    def for_language_models(self) -> list[str]:
        """The options that were given and that mean something to a language model alone."""
        options = {
            "--prompt-tokens": self.prompt_tokens,
            "--output-tokens": self.output_tokens,
            "--tokenizer": self.tokenizer,
        }
        return [name for name, value in options.items() if value is not None]


@dataclass(frozen=True)
class RandomRequests:
    """perf_analyzer's own random values, for a model of fixed shapes."""

    config: ModelConfig
    seed: int
    tokens: TokenCounter | None = None
    conditions: Mapping[str, Any] = field(default_factory=lambda: {"input_data": "random"})

    def file(self) -> None:
        return None

    def rows(self) -> list[Row]:
        return input_data.random_rows(self.config, self.seed)


@dataclass(frozen=True)
class FixedRequests:
    """The same rows in every measurement, in `path` for perf_analyzer."""

    path: Path
    fixed_rows: list[Row]
    conditions: Mapping[str, Any]
    tokens: TokenCounter | None = None

    def file(self) -> Path:
        return self.path

    def rows(self) -> list[Row]:
        return self.fixed_rows


@dataclass(frozen=True)
class PromptRequests:
    """New prompts for every measurement.

    `run` tells runs apart on a server that outlives them: a prefix cache would know the prompts of an earlier run, and
    answer them sooner. A server of our own starts with an empty one, and gets the same prompts for the same seed.
    """

    config: ModelConfig
    plan: PromptPlan
    path: Path
    seed: int
    tokens: TokenCounter
    conditions: Mapping[str, Any]
    run: int = 0
    _launches: "itertools.count[int]" = field(default_factory=itertools.count)

    def file(self) -> Path:
        return input_data.write(self.rows(), self.path)

    def rows(self) -> list[Row]:
        return self.plan.rows(self.config, seed=hash((self.seed, self.run, next(self._launches))))


def check_files(options: RequestOptions, config: ModelConfig | None) -> None:
    """Read what `options` name, before a server is started for it; `config` is what is known of the model by then.

    Raises:
        InputDataError: a file that cannot be used.
    """
    if options.tokenizer is not None:
        tokenizer_count(options.tokenizer)
    if options.input_data is None:
        return
    if options.input_data.suffix == ".jsonl":
        read_prompts(options.input_data, config or ModelConfig(), DEFAULT_OUTPUT_TOKENS, options.seed)
    elif config is not None and config.input:
        input_data.read_rows(options.input_data, config)
    else:
        # The server completes the inputs when it loads the model.
        input_data.read_raw_rows(options.input_data)


def requests_for(config: ModelConfig, options: RequestOptions, folder: Path, model_dir: Path | None) -> Requests:
    """What `options` ask for; files that are made of it go into `folder`. `model_dir` None: the server is not ours.

    Raises:
        InputDataError: the data do not fit the model, or an option has no meaning for it.
    """
    if is_language_model(config):
        return _prompts(config, options, folder, model_dir)
    if options.for_language_models:
        raise InputDataError(
            f"{config.name}: {', '.join(options.for_language_models)} are for a language model (text_input, and "
            "sampling_parameters or max_tokens); this model takes "
            f"{'; '.join(map(str, inputs_of(config).values())) or 'nothing'}"
        )
    if options.input_data is None:
        return _random(config, options)
    rows = input_data.read_rows(options.input_data, config)
    path = options.input_data.absolute()
    if options.lengths is not None:
        rows = input_data.cut(rows, config, options.lengths, options.seed)
    if options.lengths is not None or path.suffix == ".npz":
        path = input_data.write(rows, folder / ROWS_FILE)
    conditions = {"input_data": file_hash(path), "input_lengths": lengths_in(rows, config)}
    return FixedRequests(path, rows, conditions)


def _random(config: ModelConfig, options: RequestOptions) -> Requests:
    if options.lengths is not None:
        raise InputDataError(f"{config.name}: --lengths cuts the rows of --input-data: give some")
    free = [spec for spec in inputs_of(config).values() if spec.free_axes and not spec.is_optional]
    if free:
        raise InputDataError(
            f"{config.name}: {'; '.join(map(str, free))}: a free dimension (-1) that no random values can fill. Give "
            "real rows with --input-data (a .npz file with one array per input, first axis rows)"
        )
    return RandomRequests(config, options.seed)


def _prompts(config: ModelConfig, options: RequestOptions, folder: Path, model_dir: Path | None) -> Requests:
    if options.lengths is not None:
        raise InputDataError(f"{config.name} is a language model: give --prompt-tokens and --output-tokens")
    tokenizer = options.tokenizer or _own_tokenizer(model_dir)
    tokens = TokenCounter(None if tokenizer is None else tokenizer_count(tokenizer))
    known_by = None if tokenizer is None else file_hash(tokenizer / TOKENIZER_FILE)
    output_tokens = options.output_tokens or DEFAULT_OUTPUT_TOKENS
    if options.input_data is None:
        plan = PromptPlan(options.prompt_tokens or DEFAULT_PROMPT_TOKENS, output_tokens, tokens.count)
        made_of = {"input_data": str(plan), "tokenizer": known_by}
        run = 0 if model_dir is not None else secrets.randbits(62)
        return PromptRequests(config, plan, folder / PROMPTS_FILE, options.seed, tokens, made_of, run)
    if options.prompt_tokens is not None:
        raise InputDataError("--prompt-tokens is for prompts that are made; those of --input-data are sent as they are")
    names = inputs_of(config)
    if options.input_data.suffix == ".jsonl":
        rows = read_prompts(options.input_data, config, output_tokens, options.seed)
    else:
        rows = [streaming(row, names) for row in input_data.read_rows(options.input_data, config)]
    path = input_data.write(rows, folder / PROMPTS_FILE)
    lengths = _prompt_lengths(rows, tokens)
    conditions: dict[str, Any] = {"input_data": file_hash(path), "input_lengths": lengths, "tokenizer": known_by}
    return FixedRequests(path, rows, conditions, tokens)


def _own_tokenizer(model_dir: Path | None) -> Path | None:
    """The folder of the model's own tokenizer, where its files can be seen."""
    found = [] if model_dir is None else sorted(model_dir.glob(f"[0-9]*/{TOKENIZER_FILE}"))
    return found[-1].parent if found else None


def _prompt_lengths(rows: list[Row], tokens: TokenCounter) -> dict[str, str]:
    """Of the prompts, in tokens where a tokenizer counts them; their file says how long the answers may be."""
    texts = [str(row[TEXT_INPUT].reshape(-1)[0]) for row in rows if TEXT_INPUT in row]
    unit, count = ("characters", len) if tokens.count is None else ("tokens", tokens.count)
    return {f"prompt {unit}": _spread([count(text) for text in texts])} if texts else {}


def lengths_in(rows: list[Row], config: ModelConfig) -> dict[str, str]:
    """Of each input with one free dimension: the least, middle and largest size of it in `rows`."""
    result = {}
    for name, spec in inputs_of(config).items():
        if len(spec.free_axes) == 1 and (sizes := [row[name].shape[spec.free_axes[0]] for row in rows if name in row]):
            result[name] = _spread(sizes)
    return result


def _spread(sizes: list[int]) -> str:
    return f"{min(sizes)} to {max(sizes)}, median {median(sizes):g}"

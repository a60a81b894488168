"""The engine's configuration: `<model>/<version>/model.json`, read once, checked whole, frozen.

    {
      "model": ".",                   vLLM's engine arguments, by vLLM's names, at the top
      "max_model_len": 2048,
      "max_num_seqs": 64,
      "inflight": {                   what is this backend's alone
        "contract": "vllm",
        "max_queue_size": 1024
      }
    }

So a user who outgrows this backend changes `backend: "inflight"` to `backend: "vllm"`, removes that one object, and
keeps the file. A vLLM argument that means nothing here is logged as ignored; any other name is an error.

`parameters` of config.pbtxt that are named as an argument at the top take its place, so that a load with another
configuration changes it on a live server.
"""

import dataclasses
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from pilot_llm.errors import ConfigError
from pilot_llm.fields import Flag, Integer, Number, Text, checked, checked_values, unknown_name
from pilot_llm.limits import MOST_SEQUENCES
from pilot_llm.speculation import SpeculativeConfig, read_speculative_config
from pilot_llm.vllm_arguments import IGNORED_VLLM_ARGUMENTS, UNSUPPORTED_VLLM_ARGUMENTS

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InflightConfig:
    """The object `"inflight"` of model.json."""

    contract: str = checked("vllm", Text(choices=("vllm", "tensorrtllm")))
    max_queue_size: int = checked(1024, Integer(at_least=1))  # accepted requests that have not run yet
    default_timeout_s: float | None = checked(None, Number(above=0.0))  # for requests that bring none
    kv_exhaustion: str = checked("preempt", Text(choices=("preempt", "reserve")))
    ageing_s: float = checked(10.0, Number(above=0.0))  # waiting so long is worth one level of priority
    stream_interval_ms: float = checked(100.0, Number(at_least=0.0))  # longest that stream_interval may hold a token
    intra_op_threads: int | None = checked(None, Integer(at_least=1, at_most=1024))
    responder_threads: int = checked(1, Integer(at_least=1, at_most=64))
    cancellation_check_period_ms: float = checked(100.0, Number(above=0.0))
    max_failed_steps: int = checked(3, Integer(at_least=1))  # in a row; then the engine gives up
    step_timeout_s: float = checked(60.0, Number(above=0.0))  # a longer step makes the model not ready
    drain_s: float = checked(10.0, Number(at_least=0.0))  # finalize waits so long for running requests


# A CPU takes 0.1 s and more for so many tokens of a small model: a pause that people begin to notice. Larger chunks
# gain it little, since its products are bound by arithmetic from some tens of rows on. A GPU needs more rows for that.
_CPU_STEP_TOKENS = 128
_GPU_STEP_TOKENS = 2048


@dataclass(frozen=True)
class EngineConfig:
    """All that the engine, the runner and the contracts are configured by."""

    model: Path  # folder of the weights, absolute
    tokenizer: Path  # folder of tokenizer.json, absolute
    dtype: str = checked(
        "auto", Text(choices=("auto", "float32", "bfloat16", "float16", "float", "half"))
    )  # auto: the runner chooses for its device
    device: str = checked("auto", Text())  # cpu, cuda, cuda:1; Triton's instance kind and id decide in a server
    quantization: str | None = checked(None, Text(choices=("int8",)))
    kv_cache_dtype: str = checked("auto", Text(choices=("auto", "int8", "fp16", "float16", "bfloat16", "float32")))
    max_model_len: int | None = checked(None, Integer(at_least=2))  # None: what the model was trained for
    max_num_seqs: int = checked(64, Integer(at_least=1, at_most=MOST_SEQUENCES))
    max_num_batched_tokens: int | None = checked(None, Integer(at_least=1))  # None: see `step_tokens`
    block_size: int = checked(16, Integer(at_least=1, at_most=1024))
    kv_cache_memory_bytes: int | None = checked(None, Integer(at_least=1))
    gpu_memory_utilization: float = checked(0.9, Number(above=0.0, up_to=1.0))  # also of a CPU's free memory
    num_gpu_blocks_override: int | None = checked(None, Integer(at_least=1))  # KV blocks (of a CPU too), not by memory
    enable_prefix_caching: bool = checked(True, Flag())
    enable_chunked_prefill: bool = checked(True, Flag())
    async_scheduling: bool | None = checked(None, Flag())  # None: where the device works by itself, as a GPU does
    enforce_eager: bool = checked(False, Flag())  # no CUDA graphs
    scheduling_policy: str = checked("fcfs", Text(choices=("fcfs", "priority")))
    max_logprobs: int = checked(20, Integer(at_least=0))
    stream_interval: int = checked(1, Integer(at_least=1))  # tokens that may share a message; the first never waits
    speculative_config: SpeculativeConfig | None = None
    seed: int = checked(0, Integer(at_least=0))
    inflight: InflightConfig = dataclasses.field(default_factory=InflightConfig)

    @classmethod
    def from_json(cls, path: Path, version_dir: Path, overrides: Mapping[str, Any] = MappingProxyType({})) -> Self:
        """Read and check model.json. A relative `model` or `tokenizer` starts at `version_dir`.

        `overrides` are arguments that take the place of those in the file.

        Raises:
            ConfigError: no or broken file, an unknown name, a wrong type or range, or fields that contradict.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: {error}") from error
        if not isinstance(content, dict):
            raise ConfigError(f"{path} must hold a JSON object")
        try:
            return cls.from_dict({**content, **overrides}, version_dir)
        except ConfigError as error:
            over = f" under the parameters {', '.join(overrides)} of config.pbtxt" if overrides else ""
            raise ConfigError(f"{path}{over}: {error}") from error

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], version_dir: Path) -> Self:
        """As `from_json`, for content that has been read."""
        arguments = dict(content)
        folders: dict[str, Any] = {
            name: _folder(name, arguments.pop(name), version_dir)
            for name in ("model", "tokenizer")
            if arguments.get(name) is not None
        }
        arguments.pop("tokenizer", None)
        if "model" not in folders:
            raise ConfigError('"model" is missing: the folder of the weights, "." for the version folder itself')
        folders.setdefault("tokenizer", folders["model"])
        own = arguments.pop("inflight", {})
        if not isinstance(own, Mapping):
            raise ConfigError(f'"inflight" must be an object, got {own!r}')
        speculation = arguments.pop("speculative_config", None)
        ignored = sorted(IGNORED_VLLM_ARGUMENTS.intersection(arguments))
        for name, usual in UNSUPPORTED_VLLM_ARGUMENTS.items():
            if arguments.get(name) is None or arguments[name] in usual:
                arguments.pop(name, None)
        for name in ignored:
            del arguments[name]
        if ignored:
            _log.warning("model.json: ignored, since they mean nothing to this backend: %s", ", ".join(ignored))
        _refuse_unknown(arguments)
        try:
            inflight = InflightConfig(**_checked(InflightConfig, own, prefix="inflight."))
            config = cls(
                **folders,
                **_checked(cls, arguments),
                speculative_config=read_speculative_config(speculation),
                inflight=inflight,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        config._check_pairs()
        return config

    def step_tokens(self, *, on_gpu: bool) -> int:
        """Tokens of one step, at most: `max_num_batched_tokens`, or a default that lets every sequence decode.

        Between two tokens of a running answer there may be a chunk of another's prompt of this size.
        """
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return max(self.max_num_seqs, _GPU_STEP_TOKENS if on_gpu else _CPU_STEP_TOKENS)

    def _check_pairs(self) -> None:
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): every running sequence decodes one token a step"
            )
        if self.async_scheduling and self.speculative_config is not None:
            raise ConfigError(
                "async_scheduling launches a step before the last one's tokens are known, which speculative_config "
                "guesses from: leave out one of the two"
            )
        if not self.enable_chunked_prefill and (
            self.max_model_len is None or (self.max_num_batched_tokens or 0) < self.max_model_len
        ):
            raise ConfigError(
                "without enable_chunked_prefill a prompt must fit into one step: set max_model_len, "
                "and max_num_batched_tokens to at least as much"
            )


def _folder(name: str, value: object, version_dir: Path) -> Path:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} must be the path of a folder, got {value!r}")
    return (version_dir / Path(value).expanduser()).resolve()


def _checked(cls: type[Any], mapping: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    try:
        return checked_values(cls, mapping)
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from None


def _refuse_unknown(arguments: Mapping[str, object]) -> None:
    own_names = {field.name for field in dataclasses.fields(InflightConfig)}
    known = {field.name for field in dataclasses.fields(EngineConfig)} | IGNORED_VLLM_ARGUMENTS
    for name in arguments:
        if name in own_names and name not in known:
            raise ConfigError(f'{name!r} belongs into the object "inflight"')
        if name in UNSUPPORTED_VLLM_ARGUMENTS:
            raise ConfigError(f"vLLM's {name!r} is not supported by this backend")
        if name not in known:
            raise ConfigError(unknown_name(name, known))

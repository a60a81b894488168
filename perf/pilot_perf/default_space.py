"""The space that a sweep covers where the user names no levels, from what the model is and what the machine has."""

import json
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from pilot_perf.config_override import (
    ENGINE_BACKENDS,
    ENGINE_KNOBS,
    THREADED_BACKENDS,
    apply,
    backend_of,
    model_file,
)
from pilot_perf.errors import KnobError
from pilot_perf.knobs import Knobs, SharedMemory
from pilot_perf.search.space import Space

DEFAULT_BATCHES = (1, 4, 8, 16, 32)
DEFAULT_DELAYS_US = (0, 1000, 5000)
DEFAULT_MAX_CONCURRENCY = 128
GPU_INSTANCES = (1, 2, 4)
DEFAULT_NUM_SEQS = (4, 8, 16, 32, 64)
DEFAULT_BATCHED_TOKENS = (128, 256, 512, 1024)
# What an engine has where neither config.pbtxt nor its own file, in the model's version folder, says anything.
ENGINE_FILE = "model.json"
ENGINE_DEFAULTS = {"max_num_seqs": 64, "block_size": 16}
CPU_STEP_TOKENS = 128


@dataclass(frozen=True)
class Levels:
    """What the user asked for; None where nothing was said."""

    precisions: tuple[str, ...] | None = None
    instances: tuple[int, ...] | None = None
    intra_op_threads: tuple[int, ...] | None = None
    max_batches: tuple[int, ...] | None = None
    queue_delays_us: tuple[int, ...] | None = None
    preferred_batches: tuple[int, ...] | None = None
    max_num_seqs: tuple[int, ...] | None = None
    max_num_batched_tokens: tuple[int, ...] | None = None
    block_sizes: tuple[int, ...] | None = None
    shared_memories: tuple[SharedMemory, ...] | None = None
    max_concurrency: int = DEFAULT_MAX_CONCURRENCY

    @property
    def named(self) -> list[str]:
        """The options that were given and that need a change of configuration."""
        options = {
            "--precision": self.precisions,
            "--instances": self.instances,
            "--threads": self.intra_op_threads,
            "--max-batch": self.max_batches,
            "--delay-us": self.queue_delays_us,
            "--preferred-batch": self.preferred_batches,
            "several of --shared-memory": self.shared_memories,
            **self.of_engine,
        }
        return [name for name, levels in options.items() if levels is not None]

    @property
    def of_engine(self) -> dict[str, tuple[int, ...] | None]:
        """The options about a language model's engine."""
        return {
            "--max-num-seqs": self.max_num_seqs,
            "--max-num-batched-tokens": self.max_num_batched_tokens,
            "--block-size": self.block_sizes,
        }


def space_for(installed: ModelConfig, levels: Levels, cpus: int, version_dir: Path | None) -> Space:
    """The levels of `levels`, defaults where it says nothing. `installed` is the full configuration.

    Raises:
        KnobError: a level was asked for that this model cannot take.
    """
    if backend_of(installed) in ENGINE_BACKENDS:
        return _engine_space(installed, levels)
    if asked := [name for name, values in levels.of_engine.items() if values is not None]:
        raise KnobError(
            f"{installed.name}: {', '.join(asked)} are arguments of a language model's engine, which only the backend "
            f"{', '.join(ENGINE_BACKENDS)} reads from config.pbtxt; this model's is {backend_of(installed)!r}"
        )
    batches = _batches(installed, levels.max_batches)
    if levels.preferred_batches is not None and (not batches or max(batches) < 2):
        raise KnobError(f"{installed.name}: --preferred-batch needs a model that batches, and a --max-batch above 1")
    return Space(
        precisions=_precisions(installed, levels.precisions, version_dir),
        instances=_sorted(levels.instances) or _instances(installed, cpus),
        intra_op_threads=_threads(installed, levels.intra_op_threads, cpus),
        max_batches=batches,
        queue_delays_us=(_sorted(levels.queue_delays_us) or DEFAULT_DELAYS_US) if batches and max(batches) > 1 else (),
        preferred_batches=_sorted(levels.preferred_batches),
        shared_memories=levels.shared_memories or (),
        max_concurrency=levels.max_concurrency,
    )


def _engine_space(installed: ModelConfig, levels: Levels) -> Space:
    """One engine batches all requests, token by token: instances, batches and delays mean nothing to it."""
    own = set(levels.of_engine)
    if asked := [name for name in levels.named if name not in own]:
        raise KnobError(
            f"{installed.name}: {', '.join(asked)} mean nothing to the backend {backend_of(installed)}, which batches "
            f"inside one engine; its knobs are {', '.join(levels.of_engine)}"
        )
    return Space(
        max_num_seqs=_sorted(levels.max_num_seqs) or DEFAULT_NUM_SEQS,
        max_num_batched_tokens=_sorted(levels.max_num_batched_tokens) or DEFAULT_BATCHED_TOKENS,
        # Another size than the kernels are made for is slower: only where it was asked for.
        block_sizes=_sorted(levels.block_sizes),
        max_concurrency=levels.max_concurrency,
    )


def same_as_installed(installed: ModelConfig, space: Space, version_dir: Path | None = None) -> Knobs | None:
    """The configuration of `space` that changes nothing, if there is one."""
    if backend_of(installed) in ENGINE_BACKENDS:
        values = engine_values(installed, version_dir)
        return next((knobs for knobs in space.configurations() if _changes_nothing(knobs, values)), None)
    return next((knobs for knobs in space.configurations() if apply(installed, knobs) == installed), None)


def engine_values(installed: ModelConfig, version_dir: Path | None) -> dict[str, int]:
    """What the engine's knobs are as installed: from config.pbtxt, else model.json, else the engine's defaults.

    What cannot be known from here is left out: all of it without model.json, and the tokens of a step on a device that
    the server chooses.
    """
    named = {name: parameter.string_value for name, parameter in installed.parameters.items() if name in ENGINE_KNOBS}
    if version_dir is None or not (version_dir / ENGINE_FILE).is_file():
        return {name: int(value) for name, value in named.items()}
    written = json.loads((version_dir / ENGINE_FILE).read_text())
    values = {
        **ENGINE_DEFAULTS,
        **{name: written[name] for name in ENGINE_KNOBS if written.get(name) is not None},
        **named,
    }
    values = {name: int(value) for name, value in values.items()}
    is_on_cpu = {group.kind for group in installed.instance_group} == {ModelInstanceGroup.KIND_CPU}
    if is_on_cpu and "max_num_batched_tokens" not in values:
        values["max_num_batched_tokens"] = max(values["max_num_seqs"], CPU_STEP_TOKENS)
    return values


def _changes_nothing(knobs: Knobs, values: dict[str, int]) -> bool:
    asked = {name: getattr(knobs, name) for name in ENGINE_KNOBS if getattr(knobs, name) is not None}
    return all(values.get(name) == value for name, value in asked.items())


def _precisions(installed: ModelConfig, asked: tuple[str, ...] | None, version_dir: Path | None) -> tuple[str, ...]:
    found = precisions_in(version_dir) if version_dir else ()
    if backend_of(installed) != "onnxruntime":
        if asked is not None:
            raise KnobError(
                f"{installed.name}: --precision is for the onnxruntime backend, this is {installed.backend!r}"
            )
        return ()
    if asked is None:
        return found if len(found) > 1 else ()
    if version_dir is not None and (missing := [name for name in asked if name not in found]):
        raise KnobError(
            f"{installed.name}: no {model_file(missing[0])} in {version_dir}; "
            f"there is {', '.join(map(model_file, found)) or 'no precision variant'}"
        )
    return asked


def precisions_in(version_dir: Path) -> tuple[str, ...]:
    """The variants `model.<precision>.onnx`, fp32 first."""
    names = [path.name.removeprefix("model.").removesuffix(".onnx") for path in version_dir.glob("model.*.onnx")]
    return tuple(sorted(names, key=lambda name: (name != "fp32", name)))


def _threads(installed: ModelConfig, asked: tuple[int, ...] | None, cpus: int) -> tuple[int, ...]:
    if backend_of(installed) in THREADED_BACKENDS:
        return _sorted(asked) or _powers_to(cpus)
    if asked is not None:
        raise KnobError(
            f"{installed.name}: --threads is for the backend {', '.join(THREADED_BACKENDS)}, "
            f"this model's is {backend_of(installed)!r}"
        )
    return ()


def _batches(installed: ModelConfig, asked: tuple[int, ...] | None) -> tuple[int, ...]:
    if installed.max_batch_size < 1 or installed.HasField("sequence_batching"):
        if asked is not None:
            raise KnobError(
                f"{installed.name}: --max-batch needs a model that batches (max_batch_size above 0, no sequences)"
            )
        return ()
    if asked is not None:
        return _sorted(asked)
    # A graph or engine built for a largest batch takes no more; an ONNX graph with a free batch axis does.
    most = installed.max_batch_size if backend_of(installed) != "onnxruntime" else max(DEFAULT_BATCHES)
    return tuple(sorted({*(size for size in DEFAULT_BATCHES if size <= most), installed.max_batch_size}))


def _instances(installed: ModelConfig, cpus: int) -> tuple[int, ...]:
    """For each GPU where the model is on GPUs: there a few share it, however many cores the machine has.

    None for several groups, since it is not clear which of them should change.
    """
    if len(installed.instance_group) > 1:
        return ()
    on_gpu = any(group.kind == ModelInstanceGroup.KIND_GPU for group in installed.instance_group)
    return GPU_INSTANCES if on_gpu else _powers_to(cpus)


def _sorted(levels: tuple[int, ...] | None) -> tuple[int, ...]:
    return tuple(sorted(set(levels or ())))


def _powers_to(cpus: int) -> tuple[int, ...]:
    """1, 2, 4, ... and `cpus` itself."""
    return tuple(sorted({*(2**power for power in range(cpus.bit_length()) if 2**power <= cpus), cpus}))

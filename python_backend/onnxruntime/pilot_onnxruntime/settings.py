"""Reads what a config.pbtxt says about the session: threads, execution mode, optimisation level, memory.

Names and values are those of Triton's C++ onnxruntime backend (its README, "Model Config Options"). Two things differ:

- A key that neither backend knows is an error here; the C++ backend ignores it, and a misspelt thread count with it.
- Without `intra_op_thread_count` the CPUs that the process may use are shared among the instances. The C++ backend
  gives every instance all cores of the machine, whatever a container allows. An explicit 0 means all usable CPUs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pilot_onnxruntime.errors import LoadError

# Session options that the C++ backend passes on as they are.
_SESSION_ENTRIES = ("session.use_device_allocator_for_initializers",)
_RUN_ENTRIES = ("memory.enable_memory_arena_shrinkage",)
# Deprecated by `execution_accelerators { gpu_execution_accelerator { name: "cuda" } }`, still read by the C++ backend.
CUDA_PARAMETERS = {
    "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "gpu_mem_limit": None,
    "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
    "do_copy_in_default_stream": None,
}
# Read by Triton's Python backend, in which this one runs.
_HOST_PARAMETERS = ("EXECUTION_ENV_PATH",)
_OWN_PARAMETERS = (
    "intra_op_thread_count",
    "inter_op_thread_count",
    "execution_mode",
    "enable_mem_arena",
    "enable_mem_pattern",
)
KNOWN_PARAMETERS = (*_OWN_PARAMETERS, *_SESSION_ENTRIES, *_RUN_ENTRIES, *CUDA_PARAMETERS, *_HOST_PARAMETERS)

# Triton's `optimization { graph { level } }` -> onnxruntime's GraphOptimizationLevel.
_GRAPH_LEVELS = {-1: "ORT_ENABLE_BASIC", 0: "ORT_ENABLE_ALL", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}
_BOOLEANS = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True)
class SessionSettings:
    """How to open the session, in onnxruntime's words."""

    intra_op_threads: int
    inter_op_threads: int = 0
    is_parallel: bool = False
    graph_level: str = "ORT_ENABLE_ALL"
    uses_memory_arena: bool = True
    uses_memory_pattern: bool = True
    session_entries: Mapping[str, str] = field(default_factory=dict)
    run_entries: Mapping[str, str] = field(default_factory=dict)
    op_libraries: tuple[str, ...] = ()


def session_settings(config: Mapping[str, Any], usable_cpus: int) -> SessionSettings:
    """The settings of one instance.

    Raises:
        LoadError: an unknown parameter, or a value that its parameter does not take.
    """
    parameters = parameter_texts(config)
    if unknown := sorted(set(parameters) - set(KNOWN_PARAMETERS)):
        raise LoadError(
            f"parameters {{ key: {unknown[0]!r} }} is not known to the onnxruntime backend. "
            f"It knows {', '.join(KNOWN_PARAMETERS)}"
        )
    level = int(config.get("optimization", {}).get("graph", {}).get("level", 0))
    if level not in _GRAPH_LEVELS:
        raise LoadError(f"optimization.graph.level is {level}, allowed are -1 (basic), 0 (all), 1 (extended), 2 (none)")
    return SessionSettings(
        intra_op_threads=_intra_op_threads(parameters, config, usable_cpus),
        inter_op_threads=_count(parameters, "inter_op_thread_count"),
        is_parallel=_choice(parameters, "execution_mode", {"0": False, "1": True}, default=False),
        graph_level=_GRAPH_LEVELS[level],
        uses_memory_arena=_choice(parameters, "enable_mem_arena", _BOOLEANS, default=True),
        uses_memory_pattern=_choice(parameters, "enable_mem_pattern", _BOOLEANS, default=True),
        session_entries={key: parameters[key] for key in _SESSION_ENTRIES if key in parameters},
        run_entries={key: parameters[key] for key in _RUN_ENTRIES if key in parameters},
        op_libraries=tuple(config.get("model_operations", {}).get("op_library_filename", ())),
    )


def parameter_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """`parameters` of a model configuration as plain text values."""
    return {key: value.get("string_value", "") for key, value in config.get("parameters", {}).items()}


def num_instances(config: Mapping[str, Any]) -> int:
    """Instances of the model on this machine, each of which is a process with a session of its own."""
    groups = config.get("instance_group", ())
    return max(1, sum(int(group.get("count", 1)) * max(1, len(group.get("gpus", ()))) for group in groups))


def _intra_op_threads(parameters: Mapping[str, str], config: Mapping[str, Any], usable_cpus: int) -> int:
    if "intra_op_thread_count" in parameters:
        return _count(parameters, "intra_op_thread_count") or usable_cpus
    return max(1, usable_cpus // num_instances(config))


def _count(parameters: Mapping[str, str], key: str) -> int:
    text = parameters.get(key, "0").strip()
    if not text.isdecimal():
        raise LoadError(f"parameters {{ key: {key!r} }} is {text!r}: a whole number is needed, 0 for the default")
    return int(text)


def _choice(parameters: Mapping[str, str], key: str, values: Mapping[str, bool], *, default: bool) -> bool:
    if key not in parameters:
        return default
    text = parameters[key].strip().lower()
    if text not in values:
        raise LoadError(f"parameters {{ key: {key!r} }} is {text!r}, allowed are {', '.join(values)}")
    return values[text]

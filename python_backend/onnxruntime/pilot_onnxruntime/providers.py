"""Chooses onnxruntime's execution providers from the kind of the instance and `optimization.execution_accelerators`.

    instance    accelerators asked for     providers, first choice first
    CPU         -                          CPU
    CPU         cpu: openvino              OpenVINO, CPU
    GPU         -                          CUDA, CPU
    GPU         gpu: tensorrt              TensorRT, CUDA, CPU

onnxruntime itself drops a provider that it cannot use and goes on with the CPU: `check_providers` turns that into an
error. GPU accelerators of a CPU instance are left out, so that one KIND_AUTO configuration serves both machines.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pilot_onnxruntime.errors import LoadError
from pilot_onnxruntime.settings import CUDA_PARAMETERS, parameter_texts

Provider = tuple[str, dict[str, str]]

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"

_PACKAGE_OF = {CUDA: "onnxruntime-gpu", TENSORRT: "onnxruntime-gpu and tensorrt", OPENVINO: "onnxruntime-openvino"}

# Triton's names of TensorRT options -> onnxruntime's; all others must be among _TENSORRT_OPTIONS.
_TENSORRT_RENAMED = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_TENSORRT_PRECISIONS = {"FP32": {}, "FP16": {"trt_fp16_enable": "1"}, "INT8": {"trt_int8_enable": "1"}}
_TENSORRT_PRECISIONS["BF16"] = {"trt_bf16_enable": "1"}
_TENSORRT_OPTIONS = (
    "trt_auxiliary_streams",
    "trt_build_heuristics_enable",
    "trt_builder_optimization_level",
    "trt_context_memory_sharing_enable",
    "trt_cuda_graph_enable",
    "trt_detailed_build_log",
    "trt_dla_core",
    "trt_dla_enable",
    "trt_dump_ep_context_model",
    "trt_dump_subgraphs",
    "trt_engine_cache_enable",
    "trt_engine_cache_path",
    "trt_engine_cache_prefix",
    "trt_ep_context_embed_mode",
    "trt_ep_context_file_path",
    "trt_extra_plugin_lib_paths",
    "trt_force_sequential_engine_build",
    "trt_force_timing_cache",
    "trt_layer_norm_fp32_fallback",
    "trt_max_partition_iterations",
    "trt_min_subgraph_size",
    "trt_profile_max_shapes",
    "trt_profile_min_shapes",
    "trt_profile_opt_shapes",
    "trt_sparsity_enable",
    "trt_tactic_sources",
    "trt_timing_cache_enable",
    "trt_timing_cache_path",
)


def choose_providers(
    config: Mapping[str, Any], instance_kind: str, device_id: int, available: Iterable[str]
) -> tuple[list[Provider], list[str]]:
    """The providers with their options, and what the configuration asks for in vain (one sentence each, to be logged).

    Raises:
        LoadError: an accelerator or an option that is not known, or a provider that this onnxruntime does not have.
    """
    accelerators = config.get("optimization", {}).get("execution_accelerators", {})
    on_gpu = instance_kind in ("GPU", "AUTO")
    gpu = _known(accelerators.get("gpu_execution_accelerator", ()), ("tensorrt", "cuda"), "gpu_execution_accelerator")
    cpu = _known(accelerators.get("cpu_execution_accelerator", ()), ("openvino",), "cpu_execution_accelerator")
    providers: list[Provider] = []
    ignored: list[str] = []
    if on_gpu:
        if "tensorrt" in gpu:
            providers.append((TENSORRT, {**_tensorrt_options(gpu["tensorrt"]), "device_id": str(device_id)}))
        providers.append((CUDA, {**_cuda_options(config), **gpu.get("cuda", {}), "device_id": str(device_id)}))
    else:
        ignored += [f"gpu_execution_accelerator {name!r}: this instance runs on the CPU" for name in gpu]
        ignored += [f"parameter {key!r}: it is for CUDA" for key in parameter_texts(config) if key in CUDA_PARAMETERS]
    if "openvino" in cpu:
        providers.append((OPENVINO, {"device_type": "CPU"}))
    have = set(available)
    for name, _ in providers:
        if name not in have:
            raise LoadError(_missing(name, instance_kind, f"this onnxruntime has only {', '.join(sorted(have))}"))
    return [*providers, (CPU, {})], ignored


def check_providers(wanted: Sequence[Provider], opened: Sequence[str], instance_kind: str) -> None:
    """Refuse a session that onnxruntime opened without a provider that was asked for.

    Raises:
        LoadError: names the provider that is missing.
    """
    for name, _ in wanted:
        if name not in opened:
            raise LoadError(
                _missing(name, instance_kind, f"onnxruntime fell back to {', '.join(opened)} when it opened the model")
            )


def _missing(provider: str, instance_kind: str, reason: str) -> str:
    package = _PACKAGE_OF.get(provider, "onnxruntime")
    return (
        f"an instance of KIND_{instance_kind} with this configuration needs {provider}, but {reason}. "
        f"Install {package} (and the driver and libraries it names), or ask for KIND_CPU without that accelerator"
    )


def _known(entries: Iterable[Mapping[str, Any]], names: Sequence[str], where: str) -> dict[str, dict[str, str]]:
    found = {entry["name"]: dict(entry.get("parameters", {})) for entry in entries}
    for name in found:
        if name not in names:
            raise LoadError(
                f"optimization.execution_accelerators.{where} {name!r} is not known. It takes {', '.join(names)}"
            )
    return found


def _tensorrt_options(parameters: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, value in parameters.items():
        if key == "precision_mode":
            if value not in _TENSORRT_PRECISIONS:
                raise LoadError(f"precision_mode is {value!r}, allowed are {', '.join(_TENSORRT_PRECISIONS)}")
            options.update(_TENSORRT_PRECISIONS[value])
        elif key in _TENSORRT_RENAMED:
            options[_TENSORRT_RENAMED[key]] = value
        elif key in _TENSORRT_OPTIONS:
            options[key] = value
        else:
            known = ["precision_mode", *_TENSORRT_RENAMED, *_TENSORRT_OPTIONS]
            raise LoadError(f"parameter {key!r} of the tensorrt accelerator is not known. It takes {', '.join(known)}")
    return options


def _cuda_options(config: Mapping[str, Any]) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, text in parameter_texts(config).items():
        if key not in CUDA_PARAMETERS:
            continue
        values = CUDA_PARAMETERS[key]
        if values is not None and text not in values:
            raise LoadError(f"parameters {{ key: {key!r} }} is {text!r}, allowed are {', '.join(values)}")
        options[key] = text if values is None else values[text]
    return options

"""The execution providers follow the instance's kind and the accelerators asked for, or the load is refused."""

from typing import Any

import pytest
from pilot_onnxruntime.errors import LoadError
from pilot_onnxruntime.providers import CPU, CUDA, OPENVINO, TENSORRT, check_providers, choose_providers

EVERYTHING = [TENSORRT, CUDA, OPENVINO, CPU]


def accelerated(kind: str, name: str, parameters: dict[str, str] | None = None) -> dict[str, Any]:
    entry = {"name": name, "parameters": parameters or {}}
    return {"optimization": {"execution_accelerators": {f"{kind}_execution_accelerator": [entry]}}}


def test_a_cpu_instance_runs_on_the_cpu() -> None:
    assert choose_providers({}, "CPU", 0, [CPU]) == ([(CPU, {})], [])


def test_a_gpu_instance_runs_on_its_own_device() -> None:
    providers, _ = choose_providers({}, "GPU", 1, EVERYTHING)
    assert providers == [(CUDA, {"device_id": "1"}), (CPU, {})]


def test_tensorrt_comes_before_cuda_with_its_options_translated() -> None:
    parameters = {"precision_mode": "FP16", "max_workspace_size_bytes": "1024", "trt_engine_cache_enable": "1"}
    providers, _ = choose_providers(accelerated("gpu", "tensorrt", parameters), "GPU", 0, EVERYTHING)
    options = {
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "1024",
        "trt_engine_cache_enable": "1",
        "device_id": "0",
    }
    assert providers[0] == (TENSORRT, options)
    assert [name for name, _ in providers] == [TENSORRT, CUDA, CPU]


def test_cuda_options_come_from_the_accelerator_and_from_the_deprecated_parameters() -> None:
    config = accelerated("gpu", "cuda", {"cudnn_conv_use_max_workspace": "0"})
    config["parameters"] = {"cudnn_conv_algo_search": {"string_value": "1"}, "gpu_mem_limit": {"string_value": "9"}}
    providers, _ = choose_providers(config, "GPU", 0, EVERYTHING)
    assert providers[0][1] == {
        "cudnn_conv_algo_search": "HEURISTIC",
        "gpu_mem_limit": "9",
        "cudnn_conv_use_max_workspace": "0",
        "device_id": "0",
    }


def test_openvino_serves_a_cpu_instance() -> None:
    providers, _ = choose_providers(accelerated("cpu", "openvino"), "CPU", 0, EVERYTHING)
    assert [name for name, _ in providers] == [OPENVINO, CPU]


def test_gpu_settings_of_a_cpu_instance_are_left_out_and_said() -> None:
    config = accelerated("gpu", "tensorrt") | {"parameters": {"gpu_mem_limit": {"string_value": "9"}}}
    providers, ignored = choose_providers(config, "CPU", 0, [CPU])
    assert providers == [(CPU, {})]
    assert [sentence.split(":")[0] for sentence in ignored] == [
        "gpu_execution_accelerator 'tensorrt'",
        "parameter 'gpu_mem_limit'",
    ]


@pytest.mark.parametrize(
    ("config", "kind", "message"),
    [
        ({}, "GPU", "needs CUDAExecutionProvider, but this onnxruntime has only CPU.*Install onnxruntime-gpu"),
        (accelerated("cpu", "openvino"), "CPU", "needs OpenVINOExecutionProvider.*Install onnxruntime-openvino"),
        (accelerated("gpu", "tensorflow"), "CPU", "'tensorflow' is not known. It takes tensorrt, cuda"),
        (accelerated("cpu", "tensorrt"), "CPU", "cpu_execution_accelerator 'tensorrt' is not known"),
    ],
)
def test_what_cannot_be_honoured_is_refused(config: dict[str, Any], kind: str, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        choose_providers(config, kind, 0, [CPU])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [({"precision_mode": "FP8"}, "precision_mode is 'FP8', allowed are FP32"), ({"workspace": "1"}, "'workspace' of")],
)
def test_a_wrong_tensorrt_option_is_refused(parameters: dict[str, str], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        choose_providers(accelerated("gpu", "tensorrt", parameters), "GPU", 0, EVERYTHING)


def test_a_silent_fall_back_to_the_cpu_is_an_error() -> None:
    with pytest.raises(LoadError, match="needs CUDAExecutionProvider, but onnxruntime fell back to CPUExecution"):
        check_providers([(CUDA, {}), (CPU, {})], [CPU], "GPU")

"""What is known about Triton's backends: their platforms, their files, and the image of NVIDIA that has them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Backend:
    """One backend. `file` is what a version folder must hold, None where the backend does not look for a file."""

    platforms: tuple[str, ...]
    file: str | None
    image: str = "nvcr.io/nvidia/tritonserver:<release>-py3"


ENSEMBLE_PLATFORM = "ensemble"

BACKENDS = {
    "onnxruntime": Backend(("onnxruntime_onnx",), "model.onnx"),
    "tensorrt": Backend(("tensorrt_plan",), "model.plan"),
    "pytorch": Backend(("pytorch_libtorch",), "model.pt"),
    "openvino": Backend((), "model.xml"),
    "python": Backend((), "model.py"),
    "tensorflow": Backend(("tensorflow_savedmodel", "tensorflow_graphdef"), None, "an image up to release 25.02"),
    "dali": Backend((), "model.dali"),
    "fil": Backend((), None),
    "vllm": Backend((), "model.json", "nvcr.io/nvidia/tritonserver:<release>-vllm-python-py3"),
    "tensorrtllm": Backend((), None, "nvcr.io/nvidia/tritonserver:<release>-trtllm-python-py3"),
    "identity": Backend((), None),
    "repeat": Backend((), None),
    "square": Backend((), None),
    # Ours.
    "inflight": Backend((), "model.json"),
    "torch_pipeline": Backend((), None),
}
PLATFORMS = {platform: name for name, backend in BACKENDS.items() for platform in backend.platforms}
# Files by which the server chooses the backend of a configuration that names none, in its order.
TELLTALE_FILES = (
    ("model.plan", "tensorrt"),
    ("model.onnx", "onnxruntime"),
    ("model.xml", "openvino"),
    ("model.pt", "pytorch"),
    ("model.py", "python"),
)
# `parameters` that the onnxruntime backend reads; ours refuses any other, the C++ one drops it silently.
ONNXRUNTIME_PARAMETERS = (
    "intra_op_thread_count",
    "inter_op_thread_count",
    "execution_mode",
    "enable_mem_arena",
    "enable_mem_pattern",
    "session.use_device_allocator_for_initializers",
    "memory.enable_memory_arena_shrinkage",
    "cudnn_conv_algo_search",
    "gpu_mem_limit",
    "arena_extend_strategy",
    "do_copy_in_default_stream",
    "EXECUTION_ENV_PATH",
)
ACCELERATORS = {
    "gpu_execution_accelerator": ("tensorrt", "cuda"),
    "cpu_execution_accelerator": ("openvino",),
}
# Models of this project whose files are made by a command.
EXPORT_COMMANDS = {
    "crepe": "tritonpilot export model crepe",
    "efficientnet": "tritonpilot export model efficientnet",
    "minilm": "tritonpilot export model minilm",
    # The steps of minilm_text open files of minilm.
    "minilm_encoder": "tritonpilot export model minilm",
    "minilm_tokenizer": "tritonpilot export model minilm",
    "smollm2": "tritonpilot export llm smollm2",
}

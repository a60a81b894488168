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
# `parameters` of our torch_pipeline backend, which refuses any other; the last is read by the Python backend around it.
TORCH_PIPELINE_PARAMETERS = (
    "module",
    "weights",
    "preprocess",
    "postprocess",
    "module_outputs",
    "intra_op_thread_count",
    "preprocess_threads",
    "batches_in_flight",
    "timeline_file",
    "EXECUTION_ENV_PATH",
)
TORCH_PIPELINE_COUNTS = ("intra_op_thread_count", "preprocess_threads", "batches_in_flight")
ACCELERATORS = {
    "gpu_execution_accelerator": ("tensorrt", "cuda"),
    "cpu_execution_accelerator": ("openvino",),
}
# `parameters` of the tensorrt accelerator: those with names of Triton's own, then those that onnxruntime reads.
TENSORRT_PRECISION_MODES = ("FP32", "FP16", "INT8", "BF16")
TENSORRT_PARAMETERS = (
    "precision_mode",
    "max_workspace_size_bytes",
    "int8_calibration_table_name",
    "int8_use_native_calibration_table",
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

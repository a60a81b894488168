"""What a GPU box needs, written beside the variant:

    <build>/tensorrt/<precision>/
        build_plan.sh                        graph -> model.plan, by trtexec, here or in NVIDIA's container
        plan/<model>/config.pbtxt            Triton's tensorrt backend; build_plan.sh puts 1/model.plan there
        onnxruntime/<model>/config.pbtxt     the same graph through onnxruntime's TensorRT provider, no plan needed
        onnxruntime/<model>/1/model.onnx

Both folders are model repositories of one model. None of this can run without a GPU; `tritonpilot check` reads both.
"""

import shlex
import shutil
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup

from pilot_client.model_config import CONFIG_FILE, to_text
from pilot_export.config_file import Signature, graph_signature, label_file
from pilot_export.onnx_files import files_of
from pilot_export.spec import ExportSpec
from pilot_export.tensorrt.build import WORKSPACE_BYTES
from pilot_export.tensorrt.profile import Profile, shapes_text

# What onnxruntime's TensorRT provider calls the precision of a graph. It sets builder flags where TensorRT has them.
PRECISION_MODES = {"fp16": "FP16", "bf16": "BF16", "int8-trt": "INT8"}
ENGINE_CACHE = "/tmp/tritonpilot-engines"

_SCRIPT = """\
#!/bin/sh
# Builds the plan of {model} ({precision}) on the GPU that will serve it: a plan fits one TensorRT version and one kind
# of GPU. NVIDIA's tensorrt container of the same release as your Triton has the TensorRT that this Triton loads.
set -eu
RELEASE="${{RELEASE:-{release}}}"
cd "$(dirname "$0")"
mkdir -p plan/{model}/1
run() {{
    if command -v trtexec >/dev/null; then
        trtexec "$@"
    else
        docker run --rm --gpus all -v "$PWD/../..:/build" -w "/build/tensorrt/{precision}" \\
            "nvcr.io/nvidia/tensorrt:$RELEASE-py3" trtexec "$@"
    fi
}}
run {arguments}
mv model.plan.new plan/{model}/1/model.plan
echo "plan/ is a model repository now. Serve it:"
echo "docker run --rm --gpus all --network host -v $PWD/plan:/models" \\
    "nvcr.io/nvidia/tritonserver:$RELEASE-py3 tritonserver --model-repository=/models"
"""


def write_deployment(spec: ExportSpec, precision: str, onnx_path: Path, profile: Profile, release: str) -> Path:
    """Write the folder of `precision` and give its path."""
    folder = onnx_path.parent / "tensorrt" / precision
    shutil.rmtree(folder, ignore_errors=True)
    signature = graph_signature(onnx_path)
    for road, config in (
        ("plan", _plan_config(spec, signature)),
        ("onnxruntime", _onnxruntime_config(spec, signature, precision, profile)),
    ):
        model_dir = folder / road / spec.name
        (model_dir / "1").mkdir(parents=True)
        (model_dir / CONFIG_FILE).write_text(to_text(config))
        for output, names in spec.labels.items():
            (model_dir / label_file(output)).write_text("".join(f"{name}\n" for name in names))
        for name, path in spec.assets.items():
            shutil.copyfile(path, model_dir / "1" / name)
    for file in files_of(onnx_path):
        # Weights beside the graph keep the name that the graph gives them.
        name = "model.onnx" if file == onnx_path else file.name
        shutil.copyfile(file, folder / "onnxruntime" / spec.name / "1" / name)
    script = folder / "build_plan.sh"
    arguments = " ".join(shlex.quote(word) for word in _trtexec(onnx_path, profile))
    script.write_text(
        _SCRIPT.format(model=shlex.quote(spec.name), precision=precision, release=release, arguments=arguments)
    )
    script.chmod(0o755)
    return folder


def _trtexec(onnx_path: Path, profile: Profile) -> list[str]:
    """Paths are those seen from the variant's folder."""
    return [
        f"--onnx=../../{onnx_path.name}",
        "--stronglyTyped",
        f"--minShapes={shapes_text(profile.smallest)}",
        f"--optShapes={shapes_text(profile.usual)}",
        f"--maxShapes={shapes_text(profile.largest)}",
        f"--memPoolSize=workspace:{WORKSPACE_BYTES >> 20}M",
        "--timingCacheFile=timing.cache",
        "--saveEngine=model.plan.new",
        "--skipInference",
    ]


def _plan_config(spec: ExportSpec, signature: Signature) -> ModelConfig:
    config = _config(spec, signature)
    config.backend = "tensorrt"
    return config


def _onnxruntime_config(spec: ExportSpec, signature: Signature, precision: str, profile: Profile) -> ModelConfig:
    config = _config(spec, signature)
    config.backend = "onnxruntime"
    config.optimization.execution_accelerators.gpu_execution_accelerator.add(
        name="tensorrt",
        parameters={
            "precision_mode": PRECISION_MODES[precision],
            "max_workspace_size_bytes": str(WORKSPACE_BYTES),
            # Without a cache every start of the server builds the engine again: minutes.
            "trt_engine_cache_enable": "true",
            "trt_engine_cache_path": ENGINE_CACHE,
            "trt_timing_cache_enable": "true",
            "trt_profile_min_shapes": shapes_text(profile.smallest),
            "trt_profile_opt_shapes": shapes_text(profile.usual),
            "trt_profile_max_shapes": shapes_text(profile.largest),
        },
    )
    return config


def _config(spec: ExportSpec, signature: Signature) -> ModelConfig:
    config = ModelConfig(name=spec.name, max_batch_size=spec.max_batch_size)
    for tensor in signature.inputs:
        config.input.add(name=tensor.name, data_type=DataType.Value(tensor.data_type), dims=tensor.dims)
    for tensor in signature.outputs:
        labels = label_file(tensor.name) if tensor.name in spec.labels else ""
        data_type = DataType.Value(tensor.data_type)
        config.output.add(name=tensor.name, data_type=data_type, dims=tensor.dims, label_filename=labels)
    config.dynamic_batching.SetInParent()
    config.instance_group.add(count=1, kind=ModelInstanceGroup.KIND_GPU)
    return config

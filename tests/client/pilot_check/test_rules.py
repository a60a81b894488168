"""What the lint says beyond errors, and where: warnings, notes, files, lines and mends."""

import importlib
import shutil
from pathlib import Path

import pytest
from onnx import helper, numpy_helper

from pilot_check.backends import (
    ONNXRUNTIME_PARAMETERS,
    TENSORRT_PARAMETERS,
    TENSORRT_PRECISION_MODES,
    TORCH_PIPELINE_COUNTS,
    TORCH_PIPELINE_PARAMETERS,
)
from pilot_check.errors import CheckError
from pilot_check.finding import Finding, Severity
from pilot_check.repository import check_repository
from pilot_testing.onnx_models import graph, identity, install

NATIVE = 'backend: "onnxruntime"'


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_a_finding_reads_as_a_compiler_s_message(tmp_path: Path) -> None:
    install(tmp_path, "m", identity("FP32", ["b", 1]), f'{NATIVE}\nname: "n"\ninstance_group {{ count: 1 }}')
    assert str(only(check_repository(tmp_path))) == (
        "m/config.pbtxt:2: error: name is 'n', but the folder is 'm' (rename one of them, or leave `name` out) "
        "[name-folder: name]"
    )


def test_a_syntax_error_has_its_line(tmp_path: Path) -> None:
    install(tmp_path, "m", identity("FP32", ["b", 1]), f"{NATIVE}\n\nmax_batch_sise: 3")
    finding = only(check_repository(tmp_path))
    assert (finding.line, finding.code) == (3, "config-syntax")
    assert 'no field named "max_batch_sise"' in finding.message


def test_a_model_of_ours_that_is_not_exported_is_a_note_with_its_command(tmp_path: Path) -> None:
    install(
        tmp_path, "minilm", None, f'{NATIVE} default_model_filename: "model.fp32.onnx" instance_group {{ count: 1 }}'
    )
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "config.pbtxt").write_text('backend: "inflight"')
    first, second = check_repository(tmp_path)
    assert (first.severity, first.mend) == (Severity.NOTE, "tritonpilot export model minilm")
    assert (second.severity, second.mend) == (Severity.NOTE, "tritonpilot export llm smollm2")


def test_a_file_of_another_model_s_older_version_is_a_warning_at_its_line(tmp_path: Path) -> None:
    config = f'{NATIVE}\ndefault_model_filename: "../../m/1/model.onnx"\ninstance_group {{ count: 1 }}'
    parameter = '\nparameters { key: "tokenizer" value { string_value: "../../m/1/model.onnx" } }'
    install(tmp_path, "m", identity("FP32", ["b", 1]), f"{NATIVE} instance_group {{ count: 1 }}")
    install(tmp_path, "step", None, config)
    assert check_repository(tmp_path) == []
    (tmp_path / "step" / "config.pbtxt").write_text(config + parameter)
    shutil.copytree(tmp_path / "m" / "1", tmp_path / "m" / "3")
    found = [finding for finding in check_repository(tmp_path) if finding.code == "borrowed-version"]
    assert [(finding.severity, finding.line) for finding in found] == [(Severity.WARNING, 2), (Severity.WARNING, 4)]
    assert found[0].message == "opens a file of version 1 of 'm', whose latest is 3"
    (tmp_path / "step" / "config.pbtxt").write_text(config.replace("m/1/", "m/3/"))
    assert check_repository(tmp_path) == []


@pytest.mark.parametrize(
    ("settings", "code"),
    [(b'{"model": "weights"}', "weights-missing"), (b'{"dtype": "auto"}', "llm-settings"), (b"{", "llm-settings")],
)
def test_an_llm_needs_settings_that_lead_to_weights(tmp_path: Path, settings: bytes, code: str) -> None:
    folder = install(tmp_path, "llm", settings, 'backend: "inflight"', file="model.json")
    finding = only(check_repository(tmp_path))
    assert (finding.severity, finding.code, finding.file) == (Severity.ERROR, code, "llm/1/model.json")
    (folder / "1" / "weights").mkdir()
    (folder / "1" / "weights" / "model.safetensors").touch()
    assert len(check_repository(tmp_path)) == (0 if code == "weights-missing" else 1)


@pytest.mark.parametrize(
    ("config", "num_cpus", "message"),
    [
        ("instance_group { count: 2 kind: KIND_CPU } %2", 2, "2 instances x 2 intra-op threads are more than the 2"),
        ("%2", 2, "2 instances x 2 intra-op threads are more than the 2"),
        ("instance_group { count: 2 kind: KIND_CPU } %0", 4, "2 instances x 4 intra-op threads are more than the 4"),
        ("instance_group { count: 1 } instance_group { count: 1 } %2", 3, "2 instances x 2 intra-op"),
    ],
)
def test_more_threads_than_cpus_are_a_warning(tmp_path: Path, config: str, num_cpus: int, message: str) -> None:
    for count in "02":
        text = f'parameters {{ key: "intra_op_thread_count" value {{ string_value: "{count}" }} }}'
        config = config.replace(f"%{count}", text)
    install(tmp_path, "m", identity("FP32", ["b", 1]), f"{NATIVE} {config}")
    finding = only(check_repository(tmp_path, num_cpus=num_cpus))
    assert (finding.severity, finding.code) == (Severity.WARNING, "oversubscribed")
    assert message in finding.message


def test_threads_that_fit_are_silent(tmp_path: Path) -> None:
    threads = 'parameters { key: "intra_op_thread_count" value { string_value: "2" } }'
    install(tmp_path, "m", identity("FP32", ["b", 1]), f"{NATIVE} instance_group {{ count: 2 }} {threads}")
    assert check_repository(tmp_path, num_cpus=4) == []


def test_unsaid_threads_of_several_instances_are_a_note(tmp_path: Path) -> None:
    install(tmp_path, "m", identity("FP32", ["b", 1]), NATIVE)
    finding = only(check_repository(tmp_path))
    assert (finding.severity, finding.code) == (Severity.NOTE, "threads-default")


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ('dims: [ -1, 3 ]" max_batch_size: 0', "batch-unused"),
        ('dims: [ -1, 3 ]" max_batch_size: 4', "batch-repeated"),
        ('dims: [ 3 ]" dynamic_batching { }', "batching-idle"),
        (
            'dims: [ 3 ]" max_batch_size: 4 dynamic_batching { priority_levels: 1 default_priority_level: 1 '
            "default_queue_policy { max_queue_size: 1 } "
            "priority_queue_policy { key: 1 value { max_queue_size: 2 } } }",
            "queue-default",
        ),
    ],
)
def test_what_is_served_but_hardly_as_meant_is_a_warning(tmp_path: Path, config: str, code: str) -> None:
    dims, rest = config.split('"', 1)
    tensors = f'input {{ name: "X" data_type: TYPE_FP32 {dims} }} output {{ name: "Y" data_type: TYPE_FP32 {dims} }}'
    install(tmp_path, "m", b"", f'backend: "python" {tensors} {rest}', file="model.py")
    finding = only(check_repository(tmp_path))
    assert (finding.severity, finding.code) == (Severity.WARNING, code)


def test_a_backend_of_another_image_is_a_warning_that_names_it(tmp_path: Path) -> None:
    install(tmp_path, "m", b"", 'backend: "tensorrt"', file="model.plan")
    finding = only(check_repository(tmp_path))
    assert (finding.severity, finding.code) == (Severity.WARNING, "backend-absent")
    assert "nvcr.io/nvidia/tritonserver" in finding.mend
    assert check_repository(tmp_path, backends=["tensorrt"]) == []


def test_gpus_are_those_of_the_server(tmp_path: Path) -> None:
    group = "instance_group { kind: KIND_GPU gpus: [ 0, 2 ] }"
    install(tmp_path, "m", identity("FP32", ["b", 1]), f"{NATIVE} {group}")
    assert "there is no GPU" in only(check_repository(tmp_path)).message
    assert "GPU 2 is not there: devices are 0 to 1" in only(check_repository(tmp_path, num_gpus=2)).message
    assert check_repository(tmp_path, num_gpus=3) == []


def test_an_input_with_a_default_in_the_graph_may_be_left_out(tmp_path: Path) -> None:
    scale = helper.make_tensor("scale", 1, [1], [2.0])
    nodes = [helper.make_node("Mul", ["X", "scale"], ["Y"])]
    model = graph(nodes, [("X", "FP32", ["n"]), ("scale", "FP32", [1])], [("Y", "FP32", ["n"])], [scale])
    x, y = ('{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }', '{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }')
    optional = 'input { name: "scale" data_type: TYPE_FP32 dims: [ 1 ] optional: true }'
    install(tmp_path, "m", model, f"{NATIVE} input {x} {optional} output {y} instance_group {{ count: 1 }}")
    install(tmp_path, "n", model, f"{NATIVE} input {x} output {y} instance_group {{ count: 1 }}")
    assert check_repository(tmp_path) == []


def test_large_weights_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = numpy_helper.from_array(numpy_helper.to_array(helper.make_tensor("W", 1, [1], [1.0])), "W")
    weights.ClearField("raw_data")
    weights.data_location = 1
    entry = weights.external_data.add()
    entry.key, entry.value = "location", "weights.bin"
    model = graph(
        [helper.make_node("Add", ["X", "W"], ["Y"])], [("X", "FP32", ["b", 1])], [("Y", "FP32", ["b", 1])], [weights]
    )
    folder = install(tmp_path, "m", model, f"{NATIVE} instance_group {{ count: 1 }}")
    (folder / "1" / "weights.bin").touch()  # too short to be read
    assert check_repository(tmp_path) == []


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=r"There is no folder .*nowhere"):
        check_repository(tmp_path / "nowhere")


def test_the_parameters_are_those_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "python_backend" / "onnxruntime"))
    settings = importlib.import_module("pilot_onnxruntime.settings")
    assert set(ONNXRUNTIME_PARAMETERS) == set(settings.KNOWN_PARAMETERS)


def test_the_parameters_of_torch_pipeline_are_those_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "python_backend" / "torch_pipeline"))
    settings = importlib.import_module("pilot_torch.settings")
    assert set(TORCH_PIPELINE_PARAMETERS) == {*settings.KNOWN_PARAMETERS, "EXECUTION_ENV_PATH"}

    def takes(key: str, value: str) -> bool:
        parameters = {"module": {"string_value": "net.py:Net"}, key: {"string_value": value}}
        try:
            settings.read_settings({"parameters": parameters}, 2)
        except settings.LoadError:
            return False
        return True

    counts = {key for key in TORCH_PIPELINE_PARAMETERS if takes(key, "2") and not takes(key, "0")}
    assert set(TORCH_PIPELINE_COUNTS) == counts


@pytest.mark.parametrize(
    ("parameters", "code", "message"),
    [
        ({"modul": "net.py:Net"}, "parameter-unknown", "'modul' is not known to the torch_pipeline backend"),
        ({"module": "net.py:Net", "batches_in_flight": "0"}, "parameter-value", "batches_in_flight is '0'"),
        ({"module": "net.py:Net", "timeline_file": " "}, "parameter-value", "'timeline_file' is empty"),
        ({"module": "other.py:Net"}, "file-missing", "1/other.py is missing"),
        ({"module": "net.py:Net", "weights": "w.safetensors"}, "file-missing", "1/w.safetensors is missing"),
        ({"weights": "model.safetensors"}, "parameter-value", "no `module` to put them into"),
        ({"module": "json:loads"}, "", ""),
        ({}, "", ""),
    ],
)
def test_a_torch_pipeline_needs_parameters_that_it_knows_and_files_that_are_there(
    tmp_path: Path, parameters: dict[str, str], code: str, message: str
) -> None:
    entries = " ".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in parameters.items())
    folder = install(tmp_path, "m", b"", f'backend: "torch_pipeline" {entries}', file="model.safetensors")
    for file in ("net.py", "model.pt2"):
        (folder / "1" / file).touch()
    findings = [(finding.code, finding.message) for finding in check_repository(tmp_path)]
    if code:
        ((found, text),) = findings
        assert found == code
        assert message in text
    else:
        assert findings == []
    (folder / "1" / "model.pt2").unlink()
    codes = [finding.code for finding in check_repository(tmp_path)]
    assert ("file-missing" in codes) == (code == "file-missing" or "module" not in parameters)


def test_the_options_of_tensorrt_are_those_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "python_backend" / "onnxruntime"))
    providers = importlib.import_module("pilot_onnxruntime.providers")

    def refuses(key: str, value: str) -> bool:
        entry = {"name": "tensorrt", "parameters": {key: value}}
        config = {"optimization": {"execution_accelerators": {"gpu_execution_accelerator": [entry]}}}
        try:
            providers.choose_providers(config, "GPU", 0, [providers.TENSORRT, providers.CUDA])
        except providers.LoadError:
            return True
        return False

    modes = dict.fromkeys(TENSORRT_PRECISION_MODES, "precision_mode")
    assert [key for key in TENSORRT_PARAMETERS if key != "precision_mode" and refuses(key, "1")] == []
    assert [mode for mode in modes if refuses("precision_mode", mode)] == []
    assert refuses("trt_fp16_enable", "1")
    assert refuses("precision_mode", "FP8")


CACHE = {"trt_engine_cache_enable": "true", "trt_engine_cache_path": "/cache"}
PROFILE = {
    "trt_profile_min_shapes": "X:1x1",
    "trt_profile_opt_shapes": "X:4x1",
    "trt_profile_max_shapes": "X:8x1",
}


def accelerated(folder: Path, given: dict[str, str], operator: str = "Identity", domain: str = "") -> list[Finding]:
    """Findings of a model with max_batch_size 8 and the TensorRT accelerator, on a server with a GPU."""
    parameters = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in given.items())
    node = helper.make_node(operator, ["X"], ["Y"], domain=domain)
    model = graph([node], [("X", "FP32", ["b", 1])], [("Y", "FP32", ["b", 1])])
    accelerator = f'gpu_execution_accelerator {{ name: "tensorrt" {parameters} }}'
    install(
        folder,
        "m",
        model,
        f"{NATIVE} max_batch_size: 8 dynamic_batching {{}} instance_group {{ kind: KIND_GPU count: 1 }} "
        f"optimization {{ execution_accelerators {{ {accelerator} }} }}",
    )
    return check_repository(folder, num_gpus=1)


def test_a_right_accelerator_is_not_mentioned(tmp_path: Path) -> None:
    assert accelerated(tmp_path, {"precision_mode": "FP16", **CACHE, **PROFILE}) == []


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ({"precison_mode": "FP16", **CACHE}, "accelerator-parameter", "parameter 'precison_mode' of the tensorrt"),
        ({"precision_mode": "fp16", **CACHE}, "accelerator-value", "precision_mode is 'fp16'"),
        ({"max_workspace_size_bytes": "1G", **CACHE}, "accelerator-value", "max_workspace_size_bytes is '1G'"),
        ({**CACHE, "trt_engine_cache_enable": "yes"}, "accelerator-value", "trt_engine_cache_enable is 'yes'"),
        ({**CACHE, "trt_profile_min_shapes": "X:1x1"}, "accelerator-profile", "all three or none"),
        ({**CACHE, **PROFILE, "trt_profile_opt_shapes": "X:4,1"}, "accelerator-profile", "trt_profile_opt_shapes is"),
        ({**CACHE, **PROFILE, "trt_profile_opt_shapes": "X:9x1"}, "accelerator-profile", "not min <= opt <= max"),
        ({**CACHE, **PROFILE, "trt_profile_max_shapes": "X:8"}, "accelerator-profile", "same number of axes"),
        ({**CACHE, **PROFILE, "trt_profile_max_shapes": "X:4x1"}, "accelerator-profile", "ends at 4 rows, max_batch"),
        ({**CACHE, **dict.fromkeys(PROFILE, "Z:8x1")}, "accelerator-profile", "names 'Z', which is no input"),
        ({}, "accelerator-cache", "every start of the server builds the engine anew"),
        ({"trt_engine_cache_enable": "1"}, "accelerator-cache", "where the server was started"),
        ({"precision_mode": "INT8", **CACHE}, "accelerator-graph", "the graph has no QuantizeLinear"),
    ],
)
def test_what_is_wrong_with_an_accelerator_is_named(
    tmp_path: Path, given: dict[str, str], code: str, message: str
) -> None:
    found = accelerated(tmp_path, given)
    assert code in {finding.code for finding in found}
    assert any(message in finding.message for finding in found)


def test_a_graph_that_was_optimised_for_a_cpu_is_a_warning_with_tensorrt(tmp_path: Path) -> None:
    finding = only(accelerated(tmp_path, CACHE, "FusedGemm", "com.microsoft"))
    assert (finding.severity, finding.code) == (Severity.WARNING, "accelerator-graph")
    assert "com.microsoft.FusedGemm" in finding.message

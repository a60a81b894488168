"""The table of model folders that the lint and the real server are held against.

A case is one model; `models` beside it are those that an ensemble uses. Loads are cheap where Triton's core refuses the
configuration, so most cases are those; a case that loads starts a Python process.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from onnx import helper, numpy_helper

from pilot_testing.onnx_models import graph, identity


class Outcome(Enum):
    """What the real server does with the model."""

    LOADS = "loads"
    REFUSED = "refused"
    MISSERVED = "loads, but does not do what the configuration says"
    HANGS = "the load never returns, so the tests do not try it; seen with tritonserver 2.51"


LOADS, REFUSED, MISSERVED, HANGS = Outcome.LOADS, Outcome.REFUSED, Outcome.MISSERVED, Outcome.HANGS

# Answers Y = X; `pause` in the request's parameters makes it wait, to fill the queue.
PYTHON_MODEL = b"""
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            time.sleep(float(x.flat[0]))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
        return responses
"""


@dataclass(frozen=True)
class Case:
    """One model folder, what the server does with it, and the codes of the lint's errors (none where it loads)."""

    name: str
    config: str | None
    outcome: Outcome
    codes: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=lambda: {"1/model.py": PYTHON_MODEL})


ONE = " instance_group { kind: KIND_CPU count: 1 }"
X = ' input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }'
Y = ' output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }'


def python(rest: str = "", tensors: str = X + Y) -> str:
    return f'backend: "python"{ONE}{tensors} {rest}'


def onnx(rest: str = "", tensors: str = "") -> str:
    return f'backend: "onnxruntime"{ONE}{tensors} {rest}'


def onnx_file(shape: list[int | str], kind: str = "FP32") -> dict[str, bytes]:
    return {"1/model.onnx": identity(kind, shape).SerializeToString()}


def onnx_with_missing_weights() -> dict[str, bytes]:
    weights = numpy_helper.from_array(numpy_helper.to_array(helper.make_tensor("W", 1, [1], [1.0])), "W")
    model = graph([helper.make_node("Add", ["X", "W"], ["Y"])], [("X", "FP32", ["b", 1])], [("Y", "FP32", ["b", 1])])
    weights.ClearField("raw_data")
    weights.data_location = 1
    entry = weights.external_data.add()
    entry.key, entry.value = "location", "weights.bin"
    model.graph.initializer.append(weights)
    return {"1/model.onnx": model.SerializeToString()}


def ensemble(steps: str, tensors: str = X + Y, rest: str = "") -> str:
    return f'platform: "ensemble" max_batch_size: 4 {tensors} {rest} ensemble_scheduling {{ {steps} }}'


def step(model: str, source: str, target: str, inside: tuple[str, str] = ("X", "Y")) -> str:
    return (
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "{inside[0]}" value: "{source}" }} '
        f'output_map {{ key: "{inside[1]}" value: "{target}" }} }}'
    )


def batched(rest: str) -> str:
    return python(f"max_batch_size: 4 dynamic_batching {{ {rest} }}")


NO_FILE: dict[str, bytes] = {"1/.keep": b""}
B1, BN = onnx_file(["b", 1]), onnx_file(["b", "n"])
DIMS_N = ' input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }'
CONTROL = 'sequence_batching {{ control_input [ {{ name: "START" control [ {{ kind: {} {} }} ] }} ] }}'

FOLDERS = (
    Case("python_right", python("max_batch_size: 4 dynamic_batching { }"), LOADS),
    Case("same_name", 'name: "same_name" ' + python(), LOADS),
    Case("other_name", 'name: "another" ' + python(), REFUSED, ("name-folder",)),
    Case("no_version", python(), REFUSED, ("version-missing",), {"README": b""}),
    Case("leading_zero", python(), REFUSED, ("version-missing",), {"01/model.py": PYTHON_MODEL}),
    Case("no_python_file", python(), HANGS, ("file-missing",), NO_FILE),
    Case("no_onnx_file", onnx(), REFUSED, ("file-missing",), NO_FILE),
    Case("other_file", python('default_model_filename: "other.py"'), HANGS, ("file-missing",)),
    Case("older_version_bare", python(), LOADS, (), {"1/.keep": b"", "2/model.py": PYTHON_MODEL}),
    Case("absent_version", python("version_policy { specific { versions: [ 3 ] } }"), REFUSED, ("version-policy",)),
    Case("label_missing", python(tensors=X + Y[:-1] + 'label_filename: "labels.txt" }'), REFUSED, ("label-file",)),
    Case("syntax", "backend: python max_batch_sise: 3", REFUSED, ("config-syntax",)),
    Case("two_schedulers", python("dynamic_batching { } sequence_batching { }"), REFUSED, ("config-syntax",)),
)

BACKENDS = (
    Case("backend_unknown", f'backend: "onxruntime"{X}{Y}', REFUSED, ("backend-unknown",)),
    Case("platform_unknown", f'platform: "onnx"{X}{Y}', REFUSED, ("platform-unknown",)),
    Case("platform_mixed", onnx('platform: "tensorrt_plan"'), REFUSED, ("platform-backend",), B1),
    Case("platform_alone", f'platform: "onnxruntime_onnx"{ONE}', LOADS, (), B1),
    Case("backend_by_file", f"max_batch_size: 2{ONE}{X}{Y}", LOADS),
    Case("backend_nowhere", f"max_batch_size: 2{X}{Y}", REFUSED, ("backend-missing",), {"1/model.bin": b""}),
    Case("config_nowhere", None, REFUSED, ("backend-missing",), {"1/model.bin": b""}),
    Case(
        "parameter_unknown",
        onnx('parameters { key: "intra_op_threads" value { string_value: "1" } }'),
        REFUSED,
        ("parameter-unknown",),
        B1,
    ),
    Case(
        "parameter_value",
        onnx('parameters { key: "intra_op_thread_count" value { string_value: "two" } }'),
        REFUSED,
        ("parameter-value",),
        B1,
    ),
    Case(
        "pipeline_unknown",
        f'backend: "torch_pipeline"{ONE}{X}{Y} parameters {{ key: "modul" value {{ string_value: "net.py:Net" }} }}',
        REFUSED,
        ("parameter-unknown",),
        {"1/model.pt2": b""},
    ),
    Case(
        "accelerator_unknown",
        onnx('optimization { execution_accelerators { gpu_execution_accelerator { name: "trt" } } }'),
        REFUSED,
        ("accelerator-unknown",),
        B1,
    ),
    Case(
        "accelerator_idle",
        onnx('optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }'),
        LOADS,
        (),
        B1,
    ),
)

TENSORS = (
    Case("no_dims", python(tensors=' input { name: "X" data_type: TYPE_FP32 }' + Y), REFUSED, ("tensor-dims",)),
    Case("zero_dim", python(tensors=X.replace("1 ]", "0 ]") + Y), REFUSED, ("tensor-dims",)),
    Case("no_type", python(tensors=' input { name: "X" dims: [ 1 ] }' + Y), REFUSED, ("tensor-type",)),
    Case(
        "no_tensor_name", python(tensors=" input { data_type: TYPE_FP32 dims: [ 1 ] }" + Y), REFUSED, ("tensor-name",)
    ),
    Case("format_dims", python(tensors=X[:-1] + "format: FORMAT_NCHW }" + Y), REFUSED, ("tensor-format",)),
    Case("reshape_size", python(tensors=X[:-1] + "reshape { shape: [ 2 ] } }" + Y), REFUSED, ("reshape",)),
    Case("reshape_scalar", python(tensors=X[:-1] + "reshape { } }" + Y), REFUSED, ("reshape",)),
    Case("reshape_batched", python("max_batch_size: 2", X[:-1] + "reshape { } }" + Y), LOADS),
    Case("negative_batch", python("max_batch_size: -1"), REFUSED, ("batch-size",)),
)

GRAPHS = (
    Case("graph_right", onnx("max_batch_size: 8", X + Y), LOADS, (), B1),
    Case("graph_narrow", onnx("max_batch_size: 8", X + DIMS_N[DIMS_N.index(" output") :]), LOADS, (), BN),
    Case("graph_corrupt", onnx(), REFUSED, ("graph-unreadable",), {"1/model.onnx": b"no model"}),
    Case("graph_empty", onnx(), REFUSED, ("graph-unreadable",), {"1/model.onnx": b""}),
    Case("graph_weights", onnx(), REFUSED, ("graph-unreadable",), onnx_with_missing_weights()),
    Case("graph_dims", onnx("max_batch_size: 8", X + Y.replace("1 ]", "2 ]")), REFUSED, ("graph-dims",), B1),
    Case("graph_output_exact", onnx("max_batch_size: 8", X + Y), REFUSED, ("graph-dims",), BN),
    Case("graph_type", onnx("max_batch_size: 8", X + Y.replace("FP32", "FP16")), REFUSED, ("graph-type",), B1),
    Case("graph_input", onnx("max_batch_size: 8", X.replace('"X"', '"Z"') + Y), REFUSED, ("graph-input",) * 2, B1),
    Case("graph_output", onnx("max_batch_size: 8", X + Y.replace('"Y"', '"Z"')), REFUSED, ("graph-output",), B1),
    Case("graph_fixed", onnx("max_batch_size: 8"), REFUSED, ("graph-batch",), onnx_file([1, 3])),
    Case(
        "graph_repeated",
        onnx("max_batch_size: 8", (X + Y).replace("[ 1 ]", "[ -1, 1 ]")),
        REFUSED,
        ("batch-repeated",) * 2,
        B1,
    ),
    Case("graph_bf16", onnx(), REFUSED, ("graph-type",) * 2, onnx_file(["b", 1], "BF16")),
    Case("ragged", onnx("max_batch_size: 8", X[:-1] + "allow_ragged_batch: true }" + Y), REFUSED, ("native-only",), B1),
    Case(
        "optional",
        onnx("", X.replace("[ 1 ]", "[ -1, 1 ] optional: true") + Y),
        REFUSED,
        ("graph-optional", "graph-dims"),
        B1,
    ),
    Case("decoupled_graph", onnx("model_transaction_policy { decoupled: true }"), REFUSED, ("graph-decoupled",), B1),
)

SCHEDULING = (
    Case("preferred_above", batched("preferred_batch_size: [ 2, 8 ]"), REFUSED, ("preferred-batch",)),
    Case("preferred_zero", batched("preferred_batch_size: [ 0 ]"), REFUSED, ("preferred-batch",)),
    Case(
        "oldest_above",
        python("max_batch_size: 4 sequence_batching { oldest { preferred_batch_size: 8 } }"),
        REFUSED,
        ("preferred-batch",),
    ),
    Case("level_default", batched("priority_levels: 2"), REFUSED, ("queue-priority",)),
    Case(
        "level_above",
        batched(
            "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { max_queue_size: 1 } }"
        ),
        REFUSED,
        ("queue-priority",),
    ),
    Case(
        "level_order",
        batched("priority_levels: 2 default_priority_level: 1 preserve_ordering: true"),
        REFUSED,
        ("queue-order",),
    ),
    Case(
        "delay_order",
        batched(
            "preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 }"
        ),
        REFUSED,
        ("queue-order",),
    ),
    Case(
        "queue_right",
        batched("default_queue_policy { default_timeout_microseconds: 60000000 allow_timeout_override: true }"),
        LOADS,
    ),
    Case(
        "queue_override",
        batched("default_queue_policy { allow_timeout_override: true }"),
        MISSERVED,
        ("queue-override",),
    ),
    Case("queue_action", batched("default_queue_policy { timeout_action: REJECT }"), MISSERVED, ("queue-action",)),
    Case(
        "queue_levels",
        batched("priority_queue_policy { key: 1 value { default_timeout_microseconds: 50000 } }"),
        MISSERVED,
        ("queue-priority",),
    ),
    Case(
        "cache_sequence",
        python("max_batch_size: 4 sequence_batching { } response_cache { enable: true }"),
        REFUSED,
        ("cache",),
    ),
    Case(
        "cache_decoupled",
        python("model_transaction_policy { decoupled: true } response_cache { enable: true }"),
        REFUSED,
        ("cache",),
    ),
    Case(
        "control_right",
        python("max_batch_size: 4 " + CONTROL.format("CONTROL_SEQUENCE_START", "fp32_false_true: [ 0, 1 ]")),
        LOADS,
    ),
    Case(
        "control_bare",
        python("max_batch_size: 4 " + CONTROL.format("CONTROL_SEQUENCE_START", "")),
        REFUSED,
        ("sequence-control",),
    ),
    Case(
        "control_type",
        python("max_batch_size: 4 " + CONTROL.format("CONTROL_SEQUENCE_CORRID", "data_type: TYPE_FP32")),
        REFUSED,
        ("sequence-control",),
    ),
    Case("gpu_instance", f'backend: "python"{X}{Y} instance_group {{ kind: KIND_GPU }}', REFUSED, ("instance-gpu",)),
    Case(
        "cpu_with_gpus",
        f'backend: "python"{X}{Y} instance_group {{ kind: KIND_CPU gpus: [ 0 ] }}',
        REFUSED,
        ("instance-gpu",),
    ),
    Case("auto_instance", f'backend: "python"{X}{Y} instance_group {{ kind: KIND_AUTO }}', LOADS),
)

STEP_A = step("python_right", "X", "Y")
ENSEMBLES = (
    Case("chain", ensemble(step("python_right", "X", "a") + step("python_right", "a", "Y")), LOADS, (), NO_FILE),
    Case("no_step", ensemble(""), REFUSED, ("ensemble-steps",), NO_FILE),
    Case(
        "empty_map",
        ensemble('step { model_name: "python_right" model_version: -1 }'),
        REFUSED,
        ("ensemble-step",) * 2,
        NO_FILE,
    ),
    Case("unknown_model", ensemble(step("nobody", "X", "Y")), REFUSED, ("ensemble-model",), NO_FILE),
    Case("unused_input", ensemble(STEP_A, X + X.replace('"X"', '"Z"') + Y), REFUSED, ("ensemble-unused",), NO_FILE),
    Case("unwritten_output", ensemble(STEP_A, X + Y + Y.replace('"Y"', '"Z"')), REFUSED, ("ensemble-output",), NO_FILE),
    Case("unread_tensor", ensemble(STEP_A + step("python_right", "X", "a")), REFUSED, ("ensemble-unused",), NO_FILE),
    Case("written_twice", ensemble(STEP_A + STEP_A), REFUSED, ("ensemble-twice",), NO_FILE),
    Case(
        "no_source",
        ensemble(step("python_right", "X", "Y") + step("python_right", "a", "b"), X + Y + Y.replace('"Y"', '"b"')),
        REFUSED,
        ("ensemble-source",),
        NO_FILE,
    ),
    Case(
        "cycle",
        ensemble(step("python_right", "X", "Y") + step("python_right", "a", "b") + step("python_right", "b", "a")),
        REFUSED,
        ("ensemble-cycle",),
        NO_FILE,
    ),
    Case("wrong_map", ensemble(step("python_right", "X", "Y", ("Q", "Y"))), REFUSED, ("ensemble-map",) * 2, NO_FILE),
    Case("wrong_type", ensemble(STEP_A, X.replace("FP32", "INT32") + Y), REFUSED, ("ensemble-type",), NO_FILE),
    Case("wrong_dims", ensemble(STEP_A, X.replace("1 ]", "2 ]") + Y), REFUSED, ("ensemble-dims",), NO_FILE),
    Case(
        "big_batch",
        ensemble(STEP_A).replace("max_batch_size: 4", "max_batch_size: 9"),
        REFUSED,
        ("ensemble-batch",),
        NO_FILE,
    ),
    Case("with_instances", ensemble(STEP_A, rest=ONE), REFUSED, ("ensemble-field",), NO_FILE),
    Case("with_backend", ensemble(STEP_A, rest='backend: "python"'), REFUSED, ("ensemble-platform",), NO_FILE),
    Case("circle_a", ensemble(step("circle_b", "X", "Y")), REFUSED, ("ensemble-circle",), NO_FILE),
    Case("circle_b", ensemble(step("circle_a", "X", "Y")), REFUSED, ("ensemble-circle",), NO_FILE),
)

CASES = (*FOLDERS, *BACKENDS, *TENSORS, *GRAPHS, *SCHEDULING, *ENSEMBLES)

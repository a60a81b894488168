from pathlib import Path

import pytest

from pilot_client.model_config import parse
from pilot_llm.config import EngineConfig
from pilot_perf.default_space import CPU_STEP_TOKENS, ENGINE_DEFAULTS, Levels, same_as_installed, space_for
from pilot_perf.errors import BudgetError, KnobError
from pilot_perf.knobs import Knobs
from pilot_perf.search.space import Space
from pilot_perf.slo import parse_slo
from pilot_perf.sweep_request import Request

ONNX = parse('name: "m" backend: "onnxruntime" max_batch_size: 16 instance_group { count: 1 }')


def version_dir(tmp_path: Path, *precisions: str) -> Path:
    for precision in precisions:
        (tmp_path / f"model.{precision}.onnx").touch()
    return tmp_path


def test_defaults_come_from_the_model_and_the_machine(tmp_path: Path) -> None:
    space = space_for(ONNX, Levels(), 6, version_dir(tmp_path, "int8", "fp32"))
    assert space == Space(("fp32", "int8"), (1, 2, 4, 6), (1, 2, 4, 6), (1, 4, 8, 16, 32), (0, 1000, 5000))


def test_one_precision_is_no_choice(tmp_path: Path) -> None:
    assert space_for(ONNX, Levels(), 2, version_dir(tmp_path, "fp32")).precisions == ()


def test_another_backend_has_no_threads_and_no_batch_above_its_maximum() -> None:
    space = space_for(parse('name: "m" backend: "tensorrt" max_batch_size: 6'), Levels(), 2, None)
    assert (space.intra_op_threads, space.max_batches) == ((), (1, 4, 6))


def test_a_model_without_a_batch_dimension_has_no_batch_and_no_delay() -> None:
    space = space_for(parse('name: "m" backend: "python"'), Levels(), 2, None)
    assert (space.max_batches, space.queue_delays_us) == ((), ())
    assert len(space.configurations()) == 2


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (Levels(intra_op_threads=(1,)), "--threads is for the backend onnxruntime"),
        (Levels(precisions=("int8",)), "--precision is for the onnxruntime backend"),
        (Levels(max_batches=(4,)), "--max-batch needs a model that batches"),
        (Levels(instances=(0, 1)), "instances must be at least 1, not 0"),
        (Levels(max_concurrency=0), "concurrency-max must be at least 1"),
    ],
)
def test_levels_that_the_model_cannot_take_are_refused(levels: Levels, message: str) -> None:
    with pytest.raises(KnobError, match=message):
        space_for(parse('name: "m" backend: "python"'), levels, 2, None)


LLM = parse('name: "llm" backend: "inflight" model_transaction_policy { decoupled: true }')


def test_a_language_model_has_the_knobs_of_its_engine_and_no_others() -> None:
    space = space_for(LLM, Levels(max_num_seqs=(8, 64), max_num_batched_tokens=(32, 256)), 2, None)
    assert space.configurations() == [
        Knobs(max_num_seqs=8, max_num_batched_tokens=32),
        Knobs(max_num_seqs=8, max_num_batched_tokens=256),
        # 64 sequences decode 64 tokens a step: the engine would refuse 32.
        Knobs(max_num_seqs=64, max_num_batched_tokens=256),
    ]
    assert space_for(LLM, Levels(), 2, None).block_sizes == ()
    with pytest.raises(KnobError, match="--instances, --max-batch mean nothing to the backend inflight"):
        space_for(LLM, Levels(instances=(1,), max_batches=(4,)), 2, None)
    with pytest.raises(KnobError, match="--block-size are arguments of a language model's engine"):
        space_for(ONNX, Levels(block_sizes=(16,)), 2, None)


def test_a_preferred_batch_is_tried_beside_none_and_only_below_the_largest() -> None:
    space = space_for(ONNX, Levels((), (1,), (1,), (1, 4, 8), (0,), preferred_batches=(4,)), 2, None)
    assert space.configurations() == [
        Knobs(None, 1, 1, 1, 0),
        Knobs(None, 1, 1, 4, 0),
        Knobs(None, 1, 1, 8, 0),
        Knobs(None, 1, 1, 8, 0, 4),
    ]
    with pytest.raises(KnobError, match="--preferred-batch needs a model that batches"):
        space_for(ONNX, Levels(max_batches=(1,), preferred_batches=(4,)), 2, None)


def test_shared_memory_is_tried_where_it_is_asked_for_and_not_where_failures_are_counted(tmp_path: Path) -> None:
    levels = Levels(shared_memories=("system",))
    assert space_for(parse('name: "m"\nbackend: "python"'), levels, 2, None).shared_memories == ("system",)
    with pytest.raises(KnobError, match="several of --shared-memory mean nothing to the backend inflight"):
        space_for(parse('name: "m"\nbackend: "inflight"'), levels, 2, None)
    with pytest.raises(BudgetError, match="leave --shared-memory or the budget on error_rate out"):
        Request("m", parse_slo(["error_rate:0.01"]), levels, tmp_path)


def test_a_model_on_gpus_has_a_few_instances_on_each() -> None:
    on_gpu = parse('name: "m" backend: "tensorrt" max_batch_size: 4 instance_group { count: 1 kind: KIND_GPU gpus: 0 }')
    assert space_for(on_gpu, Levels(), 16, None).instances == (1, 2, 4)


def test_a_precision_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KnobError, match=r"no model.fp16.onnx in .*; there is model.fp32.onnx"):
        space_for(ONNX, Levels(precisions=("fp16",)), 2, version_dir(tmp_path, "fp32"))


def test_the_configuration_that_changes_nothing_is_found() -> None:
    space = Space(instances=(1, 2), max_batches=(1, 8), queue_delays_us=(0, 1000))
    installed = parse('name: "m" max_batch_size: 8 instance_group { count: 2 } dynamic_batching { }')
    assert same_as_installed(installed, space) == Knobs(None, 2, None, 8, 0)
    assert same_as_installed(ONNX, space) is None


def test_the_configuration_that_an_engine_has_already_is_found(tmp_path: Path) -> None:
    """Its knobs stand in model.json, which config.pbtxt goes over, or nowhere."""
    on_cpu = parse('name: "m" backend: "inflight" instance_group { kind: KIND_CPU }')
    space = space_for(on_cpu, Levels(), 2, tmp_path)
    assert same_as_installed(on_cpu, space, tmp_path) is None, "without its file nothing is known"
    (tmp_path / "model.json").write_text('{"model": ".", "max_num_seqs": 16}')
    assert same_as_installed(on_cpu, space, tmp_path) == Knobs(max_num_seqs=16, max_num_batched_tokens=128)
    over = parse(
        'name: "m" backend: "inflight" instance_group { kind: KIND_CPU } '
        'parameters { key: "max_num_seqs" value { string_value: "32" } }'
    )
    assert same_as_installed(over, space, tmp_path) == Knobs(max_num_seqs=32, max_num_batched_tokens=128)
    anywhere = parse('name: "m" backend: "inflight" instance_group { kind: KIND_AUTO }')
    assert same_as_installed(anywhere, space, tmp_path) is None, "a GPU takes more tokens a step"


def test_the_defaults_of_the_engine_are_the_engines_own(tmp_path: Path) -> None:
    own = EngineConfig(tmp_path, tmp_path)
    assert {name: getattr(own, name) for name in ENGINE_DEFAULTS} == ENGINE_DEFAULTS
    assert EngineConfig(tmp_path, tmp_path, max_num_seqs=1).step_tokens(on_gpu=False) == CPU_STEP_TOKENS


def test_a_model_of_several_instance_groups_is_swept_over_its_other_knobs() -> None:
    grouped = parse('name: "m" backend: "onnxruntime" max_batch_size: 8 instance_group [{ count: 1 }, { count: 2 }]')
    space = space_for(grouped, Levels(), 2, None)
    assert space.instances == ()
    assert same_as_installed(grouped, space) is None
    assert any(knobs.max_batch == 32 for knobs in space.configurations())
    with pytest.raises(KnobError, match="several instance groups"):
        same_as_installed(grouped, space_for(grouped, Levels(instances=(1, 2)), 2, None))

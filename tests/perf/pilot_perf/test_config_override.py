import pytest
from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from pilot_client.model_config import parse
from pilot_perf.config_override import apply, with_backend
from pilot_perf.errors import KnobError
from pilot_perf.knobs import UNTUNED, Knobs

INSTALLED = parse(
    """
    name: "m" backend: "onnxruntime" max_batch_size: 8 default_model_filename: "model.fp32.onnx"
    instance_group { count: 1 kind: KIND_CPU }
    dynamic_batching { preferred_batch_size: 8 default_queue_policy { max_queue_size: 100 } priority_levels: 2 }
    parameters { key: "execution_mode" value { string_value: "0" } }
    """
)


def test_the_untuned_knobs_change_nothing() -> None:
    assert apply(INSTALLED, UNTUNED) == INSTALLED


def test_every_knob_lands_in_its_field_and_the_rest_stays() -> None:
    before = INSTALLED.SerializeToString()
    tuned = apply(INSTALLED, Knobs("int8", 2, 1, 32, 500))
    assert tuned == parse(
        """
        name: "m" backend: "onnxruntime" max_batch_size: 32 default_model_filename: "model.int8.onnx"
        instance_group { count: 2 kind: KIND_CPU }
        dynamic_batching {
          max_queue_delay_microseconds: 500 default_queue_policy { max_queue_size: 100 } priority_levels: 2
        }
        parameters { key: "execution_mode" value { string_value: "0" } }
        parameters { key: "intra_op_thread_count" value { string_value: "1" } }
        """
    )
    assert INSTALLED.SerializeToString() == before


def test_a_batch_of_one_switches_dynamic_batching_off_and_leaves_no_delay() -> None:
    tuned = apply(INSTALLED, Knobs(max_batch=1, queue_delay_us=500))
    assert tuned.max_batch_size == 1
    assert not tuned.HasField("dynamic_batching")


def test_a_batch_switches_dynamic_batching_on() -> None:
    assert apply(parse('name: "m" max_batch_size: 8'), Knobs(max_batch=4)).HasField("dynamic_batching")


def test_a_model_without_an_instance_group_gets_one() -> None:
    (group,) = apply(parse('name: "m"'), Knobs(instances=3)).instance_group
    # On a machine without a GPU, a kind of GPU would only be refused.
    assert (group.count, group.kind) == (3, ModelInstanceGroup.KIND_AUTO)


def test_instances_are_for_each_gpu_that_the_model_is_on() -> None:
    on_two = parse('name: "m" instance_group { count: 1 kind: KIND_GPU gpus: [ 0, 1 ] }')
    (group,) = apply(on_two, Knobs(instances=2)).instance_group
    assert (group.count, group.kind, list(group.gpus)) == (2, ModelInstanceGroup.KIND_GPU, [0, 1])


def test_a_preferred_batch_replaces_the_installed_ones_and_must_fit() -> None:
    tuned = apply(INSTALLED, Knobs(max_batch=16, preferred_batch=4))
    assert list(tuned.dynamic_batching.preferred_batch_size) == [4]
    assert not apply(INSTALLED, Knobs(max_batch=1, preferred_batch=4)).HasField("dynamic_batching")
    with pytest.raises(KnobError, match="a preferred batch of 16 is above the largest, 8"):
        apply(INSTALLED, Knobs(max_batch=8, preferred_batch=16))


def test_arguments_of_an_engine_become_parameters_that_it_reads() -> None:
    tuned = apply(parse('name: "llm" backend: "inflight"'), Knobs(max_num_seqs=8, max_num_batched_tokens=256))
    read = {name: value.string_value for name, value in tuned.parameters.items()}
    assert read == {"max_num_seqs": "8", "max_num_batched_tokens": "256"}
    with pytest.raises(KnobError, match=r"only the backend inflight reads .*; this .* Leave --block-size out"):
        apply(parse('name: "llm" backend: "vllm"'), Knobs(block_size=16))
    with pytest.raises(KnobError, match="a second would only hold the weights again"):
        apply(parse('name: "llm" backend: "inflight"'), Knobs(instances=2))


def test_knobs_without_a_meaning_are_refused() -> None:
    with pytest.raises(KnobError, match="backend 'python' has no intra_op_thread_count"):
        apply(parse('name: "m" backend: "python"'), Knobs(intra_op_threads=2))
    with pytest.raises(KnobError, match=r"model.int8.onnx, which only the onnxruntime backend serves"):
        apply(parse('name: "m" backend: "python"'), Knobs(precision="int8"))
    with pytest.raises(KnobError, match="several instance groups"):
        apply(parse('name: "m" instance_group { count: 1 } instance_group { count: 2 }'), Knobs(instances=2))
    with pytest.raises(KnobError, match="sequence batching"):
        apply(parse('name: "m" max_batch_size: 4 sequence_batching { }'), Knobs(max_batch=2))


def test_knobs_are_named_for_a_person() -> None:
    assert str(UNTUNED) == "untuned"
    assert str(Knobs("int8", 2, 1, 8, 1000)) == "int8, instances 2, threads 1, max batch 8, delay us 1000"
    assert str(Knobs("int8", 2, 1, 1, 0)) == "int8, instances 2, threads 1, max batch 1"


def test_a_minimal_file_takes_its_backend_from_the_server_and_every_knob_after_that() -> None:
    """Legal, and what many people write: the server sees model.onnx and completes the rest."""
    minimal = parse("max_batch_size: 8")
    with pytest.raises(KnobError, match="backend ''"):
        apply(minimal, Knobs(intra_op_threads=2))
    source = with_backend(minimal, INSTALLED)
    tuned = apply(source, Knobs("int8", 2, 1, 32, 500))
    assert (tuned.backend, tuned.max_batch_size, tuned.instance_group[0].count) == ("onnxruntime", 32, 2)
    assert minimal == parse("max_batch_size: 8")
    older = parse('platform: "onnxruntime_onnx"')
    assert with_backend(older, INSTALLED) == older

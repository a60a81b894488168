"""config.pbtxt's parameters become session settings."""

from typing import Any

import pytest
from pilot_onnxruntime.errors import LoadError
from pilot_onnxruntime.settings import num_instances, session_settings


def config(parameters: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    texts = {key: {"string_value": value} for key, value in (parameters or {}).items()}
    return {"parameters": texts, **fields}


def test_cpus_are_shared_among_the_instances_unless_the_config_says_a_count() -> None:
    groups = {"instance_group": [{"count": 2, "kind": "KIND_CPU"}, {"count": 1, "kind": "KIND_CPU"}]}
    assert session_settings(config(**groups), usable_cpus=8).intra_op_threads == 2
    assert session_settings(config(**groups), usable_cpus=2).intra_op_threads == 1
    assert session_settings(config({"intra_op_thread_count": "5"}, **groups), usable_cpus=2).intra_op_threads == 5


def test_an_explicit_zero_means_all_usable_cpus() -> None:
    groups = {"instance_group": [{"count": 4, "kind": "KIND_CPU"}]}
    assert session_settings(config({"intra_op_thread_count": "0"}, **groups), usable_cpus=6).intra_op_threads == 6


def test_a_gpu_group_counts_once_per_device() -> None:
    assert num_instances(config(instance_group=[{"count": 2, "gpus": [0, 1, 2]}])) == 6


@pytest.mark.parametrize(
    ("level", "name"),
    [(-1, "ORT_ENABLE_BASIC"), (0, "ORT_ENABLE_ALL"), (1, "ORT_ENABLE_EXTENDED"), (2, "ORT_DISABLE_ALL")],
)
def test_graph_level_is_numbered_as_triton_does(level: int, name: str) -> None:
    assert session_settings(config(optimization={"graph": {"level": level}}), 1).graph_level == name


def test_every_documented_key_reaches_the_settings() -> None:
    settings = session_settings(
        config(
            {
                "execution_mode": "1",
                "inter_op_thread_count": "3",
                "enable_mem_arena": "0",
                "enable_mem_pattern": "false",
                "memory.enable_memory_arena_shrinkage": "cpu:0",
                "session.use_device_allocator_for_initializers": "1",
            },
            model_operations={"op_library_filename": ["ops.so"]},
        ),
        1,
    )
    assert settings.is_parallel
    assert settings.inter_op_threads == 3
    assert not settings.uses_memory_arena
    assert not settings.uses_memory_pattern
    assert settings.run_entries == {"memory.enable_memory_arena_shrinkage": "cpu:0"}
    assert settings.session_entries == {"session.use_device_allocator_for_initializers": "1"}
    assert settings.op_libraries == ("ops.so",)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"intra_op_threads": "2"}, "'intra_op_threads'.* is not known .*intra_op_thread_count"),
        ({"intra_op_thread_count": "two"}, "'two': a whole number"),
        ({"intra_op_thread_count": "-1"}, "'-1': a whole number"),
        ({"execution_mode": "2"}, "execution_mode.* '2', allowed are 0, 1"),
        ({"enable_mem_arena": "yes"}, "enable_mem_arena.* 'yes', allowed are"),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(parameters: dict[str, str], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        session_settings(config(parameters), 1)


def test_an_unknown_graph_level_is_refused() -> None:
    with pytest.raises(LoadError, match="level is 3, allowed are -1"):
        session_settings(config(optimization={"graph": {"level": 3}}), 1)

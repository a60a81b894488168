"""What is written into a model's configuration, and which lines of config.pbtxt fail a load."""

import copy
from typing import Any

import pytest

from pilot_llm.contracts import contract_named
from pilot_llm.contracts.model_config import check, complete, engine_arguments, with_device
from pilot_llm.errors import ConfigError
from pilot_testing.fake_llm import make_config

MINIMAL: dict[str, Any] = {
    "name": "m",
    "max_batch_size": 0,
    "input": [],
    "output": [],
    "instance_group": [{"kind": "KIND_CPU", "count": 1, "gpus": []}],
}


class Configuration:
    """The few methods of Triton's object, on a dictionary."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = copy.deepcopy(content)

    def as_dict(self) -> dict[str, Any]:
        return self.content

    def add_input(self, tensor: dict[str, Any]) -> None:
        self.content["input"].append(tensor)

    def add_output(self, tensor: dict[str, Any]) -> None:
        self.content["output"].append(tensor)

    def set_max_batch_size(self, size: int) -> None:
        self.content["max_batch_size"] = size

    def set_model_transaction_policy(self, policy: dict[str, bool]) -> None:
        self.content["model_transaction_policy"] = policy


@pytest.mark.parametrize("name", ["vllm", "tensorrtllm"])
def test_a_minimal_configuration_is_completed_to_one_that_passes(name: str) -> None:
    contract, configuration = contract_named(name), Configuration(MINIMAL)
    with pytest.raises(ConfigError, match="'text_input' is missing"):
        check(configuration.content, contract, is_complete=True)
    complete(configuration, contract)
    check(configuration.content, contract, is_complete=True)
    assert configuration.content["model_transaction_policy"] == {"decoupled": True}


def test_what_config_pbtxt_says_already_may_stand() -> None:
    text_input = {"name": "text_input", "data_type": "TYPE_STRING", "dims": ["1"], "optional": False}
    check({**MINIMAL, "input": [text_input], "model_transaction_policy": {"decoupled": True}}, contract_named("vllm"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_batch_size": 8}, r"max_batch_size is 0 .* not 8"),
        ({"model_transaction_policy": {"decoupled": False}}, "decoupled: true . is needed"),
        ({"input": [{"name": "prompt", "data_type": "TYPE_STRING", "dims": [1]}]}, "input 'prompt' is unknown"),
        (
            {"input": [{"name": "text_input", "data_type": "TYPE_INT32", "dims": [1]}]},
            "'text_input' is TYPE_STRING, not TYPE_INT32",
        ),
        (
            {"output": [{"name": "text_output", "data_type": "TYPE_STRING", "dims": [1]}]},
            r"'text_output' has dims \[-1\], not \[1\]",
        ),
        (
            {"input": [{"name": "stream", "data_type": "TYPE_BOOL", "dims": [1], "optional": False}]},
            "'stream' has optional: true",
        ),
        ({"dynamic_batching": {}}, "dynamic_batching would only delay"),
        ({"instance_group": [{"kind": "KIND_CPU", "count": 2}]}, "count 2: each instance would hold its own copy"),
        (
            {"instance_group": [{"kind": "KIND_GPU", "count": 1, "gpus": [0, 1]}, {"kind": "KIND_GPU", "gpus": [1]}]},
            "two groups of instance_group place an instance on GPU 1",
        ),
    ],
)
def test_a_line_that_contradicts_the_contract_fails_the_load(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check({**MINIMAL, **changes}, contract_named("vllm"))


def test_one_instance_on_each_of_several_gpus_is_fine() -> None:
    check({**MINIMAL, "instance_group": [{"kind": "KIND_GPU", "count": 1, "gpus": [0, 1]}]}, contract_named("vllm"))


def test_every_contradiction_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"max_batch_size.*count 3"):
        check(
            {**MINIMAL, "max_batch_size": 4, "instance_group": [{"kind": "KIND_CPU", "count": 3}]},
            contract_named("vllm"),
        )


def test_a_batch_size_of_ones_own_stands_in_the_contract_with_a_batch_axis() -> None:
    check({**MINIMAL, "max_batch_size": 8}, contract_named("tensorrtllm"))


def test_an_unknown_contract_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of vllm, tensorrtllm, not 'openai'"):
        contract_named("openai")


def test_parameters_named_as_an_engine_argument_are_read_and_the_others_left_alone() -> None:
    parameters = {
        name: {"string_value": text}
        for name, text in {
            "max_num_seqs": "32",
            "quantization": "int8",
            "enable_prefix_caching": "false",
            "model": "/elsewhere",
            "device": "cuda",
            "EXECUTION_ENV_PATH": "env.tar.gz",
        }.items()
    }
    assert engine_arguments({**MINIMAL, "parameters": parameters}) == {
        "max_num_seqs": 32,
        "quantization": "int8",
        "enable_prefix_caching": False,
    }
    assert engine_arguments(MINIMAL) == {}


@pytest.mark.parametrize(
    ("kind", "device_id", "wished", "device"),
    [
        ("CPU", 0, "auto", "cpu"),
        ("GPU", 1, "auto", "cuda:1"),
        ("GPU", 1, "cuda", "cuda:1"),
        ("GPU", 0, "cuda:0", "cuda:0"),
        ("MODEL", 0, "auto", "auto"),
        ("MODEL", 0, "cuda:3", "cuda:3"),
    ],
)
def test_an_instance_runs_on_the_device_that_triton_gives_it(
    kind: str, device_id: int, wished: str, device: str
) -> None:
    assert with_device(make_config(device=wished), kind, device_id).device == device


@pytest.mark.parametrize(("kind", "wished"), [("CPU", "cuda"), ("GPU", "cpu"), ("GPU", "cuda:0")])
def test_another_device_than_tritons_is_refused(kind: str, wished: str) -> None:
    with pytest.raises(ConfigError, match=f"asks for device '{wished}', but Triton places this instance on"):
        with_device(make_config(device=wished), kind, 1)

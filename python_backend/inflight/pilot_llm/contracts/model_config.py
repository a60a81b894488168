"""config.pbtxt and model.json together: the contract completes the one, and each line that contradicts is named."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Protocol

from pilot_llm.config import EngineConfig
from pilot_llm.contracts.contract import Contract
from pilot_llm.contracts.tensors import TensorSpec
from pilot_llm.errors import ConfigError


class AutoCompleteConfig(Protocol):
    """The part of Triton's own ModelConfig object that is used here."""

    def as_dict(self) -> dict[str, Any]: ...
    def add_input(self, tensor: dict[str, Any]) -> None: ...
    def add_output(self, tensor: dict[str, Any]) -> None: ...
    def set_max_batch_size(self, size: int) -> None: ...
    def set_model_transaction_policy(self, policy: dict[str, bool]) -> None: ...


def complete(config: AutoCompleteConfig, contract: Contract) -> None:
    """Write the contract's tensors, batch size and the decoupled policy into `config`.

    Raises:
        ConfigError: a line of config.pbtxt contradicts the contract; names all such lines.
    """
    check(config.as_dict(), contract)
    for spec in contract.inputs:
        config.add_input(spec.as_input())
    for spec in contract.outputs:
        config.add_output(spec.as_output())
    config.set_max_batch_size(contract.max_batch_size or 0)
    config.set_model_transaction_policy({"decoupled": True})


def check(config: Mapping[str, Any], contract: Contract, *, is_complete: bool = False) -> None:
    """Compare a model configuration with its contract; `is_complete` also wants every required line to be there.

    Raises:
        ConfigError: names every contradiction.
    """
    faults = [
        *_tensor_faults("input", config.get("input", []), contract.inputs, is_complete),
        *_tensor_faults("output", config.get("output", []), contract.outputs, is_complete),
        *_policy_faults(config, contract, is_complete),
        *_instance_faults(config.get("instance_group", [])),
    ]
    if faults:
        raise ConfigError(
            f"config.pbtxt of {config.get('name')!r} does not fit contract {contract.name!r}: {'; '.join(faults)}. "
            'A config.pbtxt of one line, backend: "inflight", is enough; the rest is completed'
        )


def engine_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """The `parameters` of a model configuration that are named as an argument of the engine, read as JSON where they
    are JSON; the other ones are Triton's or the user's."""
    known = {field.name for field in fields(EngineConfig) if "rule" in field.metadata} - {"device"}
    found = {}
    for name, parameter in config.get("parameters", {}).items():
        if name in known:
            text = parameter["string_value"]
            try:
                found[name] = json.loads(text)
            except ValueError:
                found[name] = text
    return found


def with_device(config: EngineConfig, instance_kind: str, device_id: int) -> EngineConfig:
    """`config` on the device that Triton gives an instance of this kind: CPU, GPU, or MODEL (the model decides).

    Raises:
        ConfigError: model.json wants another device than config.pbtxt.
    """
    if instance_kind not in ("CPU", "GPU"):
        return config
    device = "cpu" if instance_kind == "CPU" else f"cuda:{device_id}"
    if config.device not in ("auto", device, device.partition(":")[0]):
        raise ConfigError(
            f"model.json asks for device {config.device!r}, but Triton places this instance on {device!r}: leave "
            "`device` out of model.json, or write instance_group [{ kind: KIND_MODEL }] into config.pbtxt"
        )
    return replace(config, device=device)


def _tensor_faults(
    kind: str, tensors: list[dict[str, Any]], specs: tuple[TensorSpec, ...], is_complete: bool
) -> Iterator[str]:
    spec_by_name = {spec.name: spec for spec in specs}
    for tensor in tensors:
        name, spec = tensor["name"], spec_by_name.get(tensor["name"])
        if spec is None:
            yield f"{kind} {name!r} is unknown"
            continue
        if tensor.get("data_type") not in (None, "TYPE_INVALID", spec.data_type):
            yield f"{kind} {name!r} is {spec.data_type}, not {tensor['data_type']}"
        # The JSON of Triton writes 64-bit integers as text.
        dims = [int(dim) for dim in tensor.get("dims") or []]
        if dims and dims != list(spec.dims):
            yield f"{kind} {name!r} has dims {list(spec.dims)}, not {dims}"
        if kind == "input" and bool(tensor.get("optional", False)) != spec.optional:
            yield f"{kind} {name!r} has optional: {str(spec.optional).lower()}"
    if is_complete:
        for name in sorted(spec_by_name.keys() - {tensor["name"] for tensor in tensors}):
            yield f"{kind} {name!r} is missing"


def _policy_faults(config: Mapping[str, Any], contract: Contract, is_complete: bool) -> Iterator[str]:
    decoupled = config.get("model_transaction_policy", {}).get("decoupled")
    if decoupled is False or (is_complete and not decoupled):
        yield "model_transaction_policy { decoupled: true } is needed, since an answer streams"
    size = int(config.get("max_batch_size", 0))
    if contract.max_batch_size is None and size != 0:
        yield f"max_batch_size is 0 (requests are batched inside, token by token), not {size}"
    if contract.max_batch_size is not None and (size > contract.max_batch_size or (is_complete and size == 0)):
        yield f"max_batch_size is 1 to {contract.max_batch_size}, not {size}"
    for scheduler in ("sequence_batching", "dynamic_batching"):
        if scheduler in config:
            yield f"{scheduler} would only delay requests, since they are batched inside, token by token"


def _instance_faults(groups: list[dict[str, Any]]) -> Iterator[str]:
    """Each instance is a process with an engine, weights and KV cache of its own: one per device is the sense of it."""
    placed: list[str] = []
    for group in groups:
        kind, count = group.get("kind", "KIND_AUTO"), int(group.get("count", 1))
        devices = [f"GPU {gpu}" for gpu in group.get("gpus") or [0]] if kind == "KIND_GPU" else [str(kind)]
        if count > 1:
            yield (
                f"instance_group has count {count}: each instance would hold its own copy of the weights and its own "
                "KV cache, while one engine batches all requests; write count: 1"
            )
        placed += devices
    for device in sorted({device for device in placed if placed.count(device) > 1}):
        yield f"two groups of instance_group place an instance on {device}; write one"

"""Contracts: the tensor names that client families already speak, one file each, chosen in model.json."""

from pilot_llm.contracts.contract import Contract, ParsedRequest, Response, ResponseFormat
from pilot_llm.contracts.tensorrtllm import TensorRtLlmContract
from pilot_llm.contracts.vllm import VllmContract
from pilot_llm.errors import ConfigError

_CONTRACTS: dict[str, Contract] = {contract.name: contract for contract in (VllmContract(), TensorRtLlmContract())}


def contract_named(name: str) -> Contract:
    """The contract that model.json's `"inflight": {"contract": name}` asks for.

    Raises:
        ConfigError: no such contract.
    """
    if name not in _CONTRACTS:
        raise ConfigError(f"inflight.contract is one of {', '.join(_CONTRACTS)}, not {name!r}")
    return _CONTRACTS[name]


__all__ = ["Contract", "ParsedRequest", "Response", "ResponseFormat", "contract_named"]

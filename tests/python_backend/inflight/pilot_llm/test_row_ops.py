"""The fused steps between products against torch's, in Triton's interpreter."""

import pytest
import torch

from pilot_llm.row_ops import TorchRowOps, choose_row_ops, why_wrong
from pilot_testing.triton_language import needs_interpreter

CPU = torch.device("cpu")


@needs_interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("head_dim", [2, 16, 96])
def test_fused_operations_agree_with_those_of_torch(head_dim: int, dtype: torch.dtype) -> None:
    from pilot_llm.triton_rows import TritonRowOps

    assert why_wrong(TritonRowOps(), CPU, dtype, head_dim) is None


class Wrong(TorchRowOps):
    def __init__(self, fault: str) -> None:
        self._fault = fault

    def rotate(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return super().rotate(heads, cos, -sin if self._fault == "rotate" else sin)

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        return super().gated(gate_up.flip(-1) if self._fault == "gated" else gate_up)


@pytest.mark.parametrize("fault", ["rotate", "gated"])
def test_wrong_operations_do_not_pass_the_probe(fault: str) -> None:
    reason = why_wrong(Wrong(fault), CPU, torch.float32, 16)
    assert reason is not None
    assert "differ from torch's by" in reason


def test_on_a_cpu_torchs_are_used() -> None:
    assert isinstance(choose_row_ops(CPU, torch.float32, 64), TorchRowOps)

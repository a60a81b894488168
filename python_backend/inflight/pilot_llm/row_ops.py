"""The small steps between a decoder's products, behind one seam: torch's, or fused ones on a GPU.

Between two products torch launches up to ten kernels that each read and write a few rows; on a GPU, where a decode
step is bound by memory and by launches, one each does.
"""

import importlib.util
import logging
from typing import Protocol

import torch
from torch.nn.functional import silu

from pilot_llm.models.rope import rotate

_log = logging.getLogger(__name__)

_TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


class RowOps(Protocol):
    """Rows are tokens."""

    name: str  # for the log

    def rotate(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[T, heads, head_dim] by its positions' angles, [T, 1, head_dim // 2] each; see `rope.rotate`."""

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 * inner], gates then values, to silu(gate) * value, [T, inner]."""


class TorchRowOps:
    """The reference, right everywhere."""

    name = "torch row operations"

    def rotate(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return rotate(heads, cos, sin)

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate) * up


def choose_row_ops(device: torch.device, dtype: torch.dtype, head_dim: int) -> RowOps:
    """Fused ones where they run and agree with torch's; the log says why not."""
    if device.type != "cuda":
        return TorchRowOps()
    reason: str | None = "the package triton is not installed"
    if importlib.util.find_spec("triton") is not None:
        try:
            from pilot_llm.triton_rows import TritonRowOps

            reason = why_wrong(TritonRowOps(), device, dtype, head_dim)
        except Exception as error:  # noqa: BLE001 compilers and drivers raise all there is
            reason = f"{type(error).__name__}: {error}"
    if reason is None:
        return TritonRowOps()
    _log.info("no fused row operations: %s", reason)
    return TorchRowOps()


@torch.inference_mode()
def why_wrong(ops: RowOps, device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """None: they agree with torch's, on rows of which only a part is used, as the decoder's are."""
    torch_ops, random = TorchRowOps(), torch.Generator().manual_seed(0)

    def rows(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random).to(device, dtype)

    heads, angles = rows(3, 5, head_dim)[:, 1:4], rows(3, 2, head_dim // 2).unsqueeze(2).unbind(1)
    gate_up = rows(3, 2 * 1100)
    for ours, expected in (
        (ops.rotate(heads, *angles), torch_ops.rotate(heads, *angles)),
        (ops.gated(gate_up), torch_ops.gated(gate_up)),
    ):
        difference = float((ours.float() - expected.float()).abs().max())
        # Negated, so that a NaN fails too.
        if not difference <= _TOLERANCE[dtype]:
            return f"on a probe they differ from torch's by {difference:.2g}"
    return None

"""The small steps between a decoder's products, in the Triton language: each one launch, where torch takes up to seven.

They read and write each number once and compute in float32. `row_ops.py` says what each does, in torch.
"""
# ruff: noqa: N803  constants of a kernel, as Triton writes them

import torch
import triton
import triton.language as tl

_GATE_COLUMNS = 1024


class TritonRowOps:
    """`RowOps` on a GPU."""

    name = "fused row operations in the Triton language"

    def rotate(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        num_tokens, num_heads, head_dim = heads.shape
        output = torch.empty(heads.shape, dtype=heads.dtype, device=heads.device)
        half = head_dim // 2
        _rotate[(num_tokens, num_heads)](
            output,
            heads,
            cos,
            sin,
            heads.stride(0),
            heads.stride(1),
            cos.stride(0),
            sin.stride(0),
            NUM_HEADS=num_heads,
            HALF=half,
            PADDED_HALF=triton.next_power_of_2(half),
        )
        return output

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        num_tokens, inner = gate_up.shape[0], gate_up.shape[1] // 2
        output = torch.empty((num_tokens, inner), dtype=gate_up.dtype, device=gate_up.device)
        if num_tokens:
            _gated[(num_tokens, triton.cdiv(inner, _GATE_COLUMNS))](
                output, gate_up, gate_up.stride(0), INNER=inner, COLUMNS=_GATE_COLUMNS
            )
        return output


@triton.jit
def _rotate(
    output_ptr,
    heads_ptr,
    cos_ptr,  # [T, 1, half]
    sin_ptr,
    token_stride,
    head_stride,
    cos_stride,
    sin_stride,
    NUM_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PADDED_HALF: tl.constexpr,
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    element = tl.arange(0, PADDED_HALF)
    inside = element < HALF
    source = heads_ptr + token * token_stride + head * head_stride + element
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + token * cos_stride + element, mask=inside, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * sin_stride + element, mask=inside, other=0.0).to(tl.float32)
    target = output_ptr + (token * NUM_HEADS + head) * (2 * HALF) + element
    kind = output_ptr.dtype.element_ty
    tl.store(target, (first * cos - second * sin).to(kind), mask=inside)
    tl.store(target + HALF, (second * cos + first * sin).to(kind), mask=inside)


@triton.jit
def _gated(output_ptr, gate_up_ptr, token_stride, INNER: tl.constexpr, COLUMNS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < INNER
    source = gate_up_ptr + token * token_stride + column
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + INNER, mask=inside, other=0.0).to(tl.float32)
    product = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(output_ptr + token * INNER + column, product.to(output_ptr.dtype.element_ty), mask=inside)

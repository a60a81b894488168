"""Paged attention by `torch.nn.attention.varlen` with its block table: FlashAttention, as it comes with torch.

It takes 16 bit only, and FlashAttention 2, the one inside torch, blocks of a multiple of 256 tokens: set `block_size`
in model.json to 256 to use it. (Source: torch's flash_attn/flash_api.cpp, mha_varlen_fwd.)
"""

import importlib
import inspect
from collections.abc import Callable

import torch

from pilot_llm.attention.torch_paged import CacheShape
from pilot_llm.step_inputs import StepInputs

VarlenAttention = Callable[..., torch.Tensor]

_MODULE = "torch.nn.attention.varlen"
_BLOCK_TOKENS = 256
_LARGEST_HEAD_DIM = 256
_OLDEST_CAPABILITY = (8, 0)


class VarlenKernel:
    """A `FlatKernel`. `attend` is torch's `varlen_attn`, or in tests what does the same on a CPU."""

    def __init__(self, attend: VarlenAttention) -> None:
        self._attend = attend

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, inputs: StepInputs, window: int | None
    ) -> torch.Tensor:
        # Its window counts the tokens to the left of the query's own.
        left = -1 if window is None else window - 1
        return self._attend(
            query.contiguous(),
            keys,
            values,
            inputs.query_start,
            inputs.key_start,
            inputs.max_query_len,
            inputs.max_context_len,
            window_size=(left, 0),
            enable_gqa=query.shape[1] != keys.shape[2],
            seqused_k=inputs.context_lens,
            block_table=inputs.block_table,
        )


def load_varlen() -> VarlenAttention | str:
    """torch's function, or why this torch has none that can do it."""
    try:
        attend: VarlenAttention = importlib.import_module(_MODULE).varlen_attn
    except (ImportError, AttributeError):
        return f"torch {torch.__version__} has no {_MODULE}"
    if (
        missing := {"block_table", "seqused_k", "enable_gqa", "window_size"}
        - inspect.signature(attend).parameters.keys()
    ):
        return f"that of torch {torch.__version__} knows no {', '.join(sorted(missing))}"
    return attend


def why_not_varlen(
    shape: CacheShape, *, compute_dtype: torch.dtype, cache_dtype: torch.dtype, capability: tuple[int, int]
) -> str | None:
    """None: it can serve this."""
    if compute_dtype not in (torch.bfloat16, torch.float16):
        return f"it takes 16 bit, not {compute_dtype}"
    if cache_dtype != compute_dtype:
        return f"the KV cache is {cache_dtype}, the model {compute_dtype}"
    if shape.block_size % _BLOCK_TOKENS:
        return f"it takes blocks of a multiple of {_BLOCK_TOKENS} tokens, block_size is {shape.block_size}"
    if shape.head_dim % 8 or shape.head_dim > _LARGEST_HEAD_DIM:
        return f"head_dim {shape.head_dim} is no multiple of 8 up to {_LARGEST_HEAD_DIM}"
    if capability < _OLDEST_CAPABILITY:
        return f"it needs compute capability 8.0, this device has {capability[0]}.{capability[1]}"
    return None

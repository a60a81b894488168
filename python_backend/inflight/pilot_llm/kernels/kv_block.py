"""A block of the KV cache: 16 tokens of one kv head. `attention_floats` and `attention_int8` draw the layouts."""

from pilot_llm.kernels.machine_code import LANES

BLOCK_SIZE = LANES
FLOAT32, FLOAT16, INT8 = 0, 1, 2
"""How elements are stored. The cache itself is an array of bytes."""

ELEMENT_BYTES = 4, 2, 1
"""By the element's number."""


def key_bytes(element: int, head_dim: int) -> int:
    """Of a block; int8: with a scale and a correction for each token."""
    return BLOCK_SIZE * (head_dim * ELEMENT_BYTES[element] + (8 if element == INT8 else 0))


def value_bytes(element: int, head_dim: int) -> int:
    """Of a block; int8: with a scale for each token."""
    return BLOCK_SIZE * (head_dim * ELEMENT_BYTES[element] + (4 if element == INT8 else 0))


def block_bytes(element: int, head_dim: int) -> int:
    return key_bytes(element, head_dim) + value_bytes(element, head_dim)

"""For tests of the GPU path on a CPU: what torch's `varlen_attn` promises, and random steps."""

import numpy as np
import torch

from pilot_llm.attention.flat_paged import FlatKernel, FlatPagedAttention
from pilot_llm.attention.torch_paged import CacheShape, TorchPagedAttention
from pilot_llm.batch import Batch, SequenceStep, build_batch

CPU = torch.device("cpu")


def varlen_by_the_book(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
) -> torch.Tensor:
    """As torch documents it: causal from the end of the keys, a window of `left` keys beside the query's own."""
    assert window_size[1] == 0
    assert enable_gqa == (query.shape[1] != key.shape[2])
    assert all(tensor.dtype == torch.int32 for tensor in (cu_seq_q, cu_seq_k, seqused_k, block_table))
    assert torch.equal(torch.diff(cu_seq_k), seqused_k)
    group = query.shape[1] // key.shape[2]
    output = torch.empty_like(query)
    for sequence, (first, end) in enumerate(zip(cu_seq_q.tolist(), cu_seq_q.tolist()[1:], strict=False)):
        num_keys = int(seqused_k[sequence])
        assert end - first <= max_q
        assert num_keys <= max_k
        pages = block_table[sequence].long()[: -(-num_keys // key.shape[1])]
        keys, values = (
            side[pages].flatten(0, 1)[:num_keys].repeat_interleave(group, dim=1).float() for side in (key, value)
        )
        positions = torch.arange(num_keys - (end - first), num_keys).unsqueeze(1)
        left = num_keys if window_size[0] < 0 else window_size[0]
        seen = (torch.arange(num_keys) <= positions) & (torch.arange(num_keys) >= positions - left)
        scores = torch.einsum("qhd,khd->hqk", query[first:end].float(), keys) * query.shape[2] ** -0.5
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        output[first:end] = torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)
    return output


class RandomSteps:
    """Sequences that grow by random steps, on two implementations; `step` gives what each of them says."""

    def __init__(self, shape: CacheShape, num_heads: int, *, num_sequences: int, seed: int = 0, scale: float = 1.0):
        self._random = np.random.default_rng(seed)
        self._shape, self._num_heads, self._scale = shape, num_heads, scale
        each = shape.num_blocks // num_sequences
        self._blocks = self._random.permutation(num_sequences * each).reshape(num_sequences, each).tolist()
        self._lengths = [0] * num_sequences
        self._room = each * shape.block_size

    def batch(self, counts: list[int]) -> Batch:
        """Each sequence brings so many tokens; those with one come first, as the scheduler has it."""
        order = sorted((index for index, count in enumerate(counts) if count), key=lambda index: counts[index] > 1)
        steps = [
            SequenceStep([0] * counts[index], self._lengths[index], self._blocks[index], [counts[index] - 1])
            for index in order
        ]
        for index in order:
            self._lengths[index] += counts[index]
            if self._lengths[index] > self._room:
                raise ValueError("the test's sequences are too long for its cache")
        return build_batch(steps, self._shape.block_size)

    def skip(self, counts: list[int]) -> None:
        """Each sequence has so many tokens more, of which the caches know already."""
        self._lengths = [length + count for length, count in zip(self._lengths, counts, strict=True)]

    def heads(self, num_tokens: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        """Query, key and value."""
        return [
            torch.from_numpy(self._random.standard_normal((num_tokens, heads, self._shape.head_dim)))
            .mul_(self._scale)
            .to(dtype)
            for heads in (self._num_heads, self._shape.num_kv_heads, self._shape.num_kv_heads)
        ]


def reference_attention(
    shape: CacheShape, dtype: torch.dtype = torch.float32, device: torch.device = CPU
) -> TorchPagedAttention:
    return TorchPagedAttention(shape, compute_dtype=dtype, cache_dtype=dtype, device=device)


def compare(
    kernel: FlatKernel,
    shape: CacheShape,
    num_heads: int,
    steps: list[list[int]],
    *,
    computed: list[int] | None = None,
    scale: float = 1.0,
    atol: float = 3e-6,
    rtol: float = 1e-5,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
) -> None:
    """Against the reference, step by step; of `computed` tokens of each sequence the cache is full before the first."""
    flat = FlatPagedAttention(shape, kernel, cache_dtype=dtype, device=device)
    flat.fill(torch.nan)  # what was never written must not count
    reference = reference_attention(shape, dtype, device)
    source = RandomSteps(shape, num_heads, num_sequences=len(steps[0]), scale=scale)
    if computed is not None:
        source.skip(computed)
        for ours, theirs in zip(flat._layers, reference._layers, strict=True):
            ours[:, :-1] = theirs[:, :-1] = torch.randn(ours[:, :-1].shape).mul_(scale).to(device, dtype)
    for counts in steps:
        batch = source.batch(counts)
        heads = [each.to(device) for each in source.heads(batch.num_tokens, dtype)]
        for attention in (flat, reference):
            attention.begin_step(batch)
        for layer in range(len(shape.windows)):
            output, expected = (attention.attend(layer, *heads) for attention in (flat, reference))
            torch.testing.assert_close(output, expected, atol=atol, rtol=rtol)

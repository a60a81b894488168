"""The attentions of the GPU path against the reference: torch's varlen as documented, and the Triton-language kernel
itself, in Triton's interpreter (the wheel comes with the extra `dev`)."""

import pytest
import torch

from pilot_llm.attention.flat_paged import FlatKernel, FlatPagedAttention
from pilot_llm.attention.torch_paged import CacheShape
from pilot_llm.attention.varlen_paged import VarlenKernel, load_varlen, why_not_varlen
from pilot_llm.batch import SequenceStep, build_batch
from pilot_llm.step_inputs import step_inputs
from pilot_testing.flat_attention import CPU, RandomSteps, compare, reference_attention, varlen_by_the_book
from pilot_testing.triton_language import needs_interpreter

KERNELS = ["varlen", pytest.param("triton", marks=needs_interpreter)]


def make_kernel(name: str) -> FlatKernel:
    if name == "varlen":
        return VarlenKernel(varlen_by_the_book)
    from pilot_llm.attention.triton_paged import TritonKernel

    return TritonKernel()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "block_size"),
    [(1, 1, 16, 1), (6, 2, 16, 4), (4, 4, 24, 5)],
)
def test_decodes_and_chunks_agree_with_the_reference(
    name: str, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int
) -> None:
    compare_growing(name, num_heads, num_kv_heads, head_dim, block_size)


@pytest.mark.parametrize("name", ["varlen", pytest.param("triton", marks=[needs_interpreter, pytest.mark.slow])])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "block_size"), [(9, 3, 64, 16), (8, 1, 96, 16), (8, 2, 128, 16)]
)
def test_shapes_of_real_models_agree_with_the_reference(
    name: str, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int
) -> None:
    compare_growing(name, num_heads, num_kv_heads, head_dim, block_size)


def compare_growing(name: str, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int) -> None:
    shape = CacheShape(3 * -(-40 // block_size), block_size, num_kv_heads, head_dim, (None, 7))
    compare(make_kernel(name), shape, num_heads, [[1, 9, 17], [1, 1, 1], [5, 1, 2], [0, 1, 1], [24, 0, 3]])


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("window", [None, 1, 64, 100])
def test_contexts_around_the_edges_of_tiles_agree(name: str, window: int | None) -> None:
    shape = CacheShape(2 * 9, 16, 1, 16, (window,))
    compare(make_kernel(name), shape, 2, [[63, 127], [1, 1], [1, 1], [1, 3], [65, 0]])


@pytest.mark.parametrize("name", KERNELS)
def test_large_scores_do_not_overflow(name: str) -> None:
    compare(make_kernel(name), CacheShape(8, 8, 2, 16, (None,)), 4, [[9, 3], [1, 1]], scale=30.0, atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("window", [None, 2050])
def test_keys_of_long_contexts_are_dealt_to_parts_and_joined(name: str, window: int | None) -> None:
    """Around the end of a part, of the first round of all parts, and in the middle of another."""
    shape = CacheShape(3 * 160, 16, 1, 16, (window,))
    compare(make_kernel(name), shape, 2, [[1, 1, 1], [1, 2, 1]], computed=[127, 2047, 2500])


@pytest.mark.parametrize("name", KERNELS)
def test_decode_gives_the_same_bits_alone_and_in_company(name: str) -> None:
    shape = CacheShape(2 * 140, 16, 1, 16, (None,))
    source = RandomSteps(shape, 2, num_sequences=2)
    flat = FlatPagedAttention(shape, make_kernel(name), cache_dtype=torch.float32, device=CPU)
    for cache in flat._layers:
        cache.normal_()
    source.skip([300, 2100])
    query, key, value = source.heads(2)
    both = source.batch([1, 1])
    flat.begin_step(both)
    together = flat.attend(0, query, key, value)
    blocks = both.block_table[0].tolist()
    flat.begin_step(build_batch([SequenceStep([0], 300, blocks)], 16))
    assert torch.equal(flat.attend(0, query[:1], key[:1], value[:1]), together[:1])


@needs_interpreter
def test_decode_of_one_sequence_has_all_parts_at_work_however_long_another_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_kernel("triton")
    from pilot_llm.attention import triton_paged

    grids = []
    monkeypatch.setattr(triton_paged, "_launch", lambda grid, *_: grids.append(grid))
    monkeypatch.setattr(triton_paged, "_join_parts", {(1, 4): lambda *_, **__: None})
    heads = torch.zeros(1, 4, 8), torch.zeros(200, 16, 2, 8), torch.zeros(200, 16, 2, 8)
    for context in (2048, 131_072):
        batch = build_batch([SequenceStep([0], context - 1, range(-(-context // 16)))], 16)
        triton_paged.TritonKernel()(*heads, step_inputs(batch, CPU), None)
    assert grids == [(1, 2, 16), (1, 2, 16)]


@pytest.mark.parametrize("name", KERNELS)
def test_cache_of_another_type_is_read_as_it_was_rounded(name: str) -> None:
    shape = CacheShape(8, 4, 2, 16, (None,))
    source = RandomSteps(shape, 4, num_sequences=2)
    flat = FlatPagedAttention(shape, make_kernel(name), cache_dtype=torch.float16, device=CPU)
    reference = reference_attention(shape)
    batch = source.batch([5, 9])
    query, key, value = source.heads(batch.num_tokens)
    for attention in (flat, reference):
        attention.begin_step(batch)
    ours = flat.attend(0, query, key, value)
    expected = reference.attend(0, query, key.half().float(), value.half().float())
    torch.testing.assert_close(ours, expected, atol=3e-6, rtol=1e-5)


def test_copied_blocks_are_those_of_the_parent() -> None:
    shape = CacheShape(4, 4, 1, 8, (None,))
    flat = FlatPagedAttention(shape, make_kernel("varlen"), cache_dtype=torch.float32, device=CPU)
    source = RandomSteps(shape, 2, num_sequences=1)
    query, key, value = source.heads(3)
    flat.begin_step(build_batch([SequenceStep([0] * 3, 0, [1])], 4))
    flat.attend(0, query, key, value)
    flat.copy_blocks([])
    flat.copy_blocks([(1, 2)])
    query, key, value = source.heads(1)
    outputs = []
    for block in (1, 2):
        flat.begin_step(build_batch([SequenceStep([0], 3, [block])], 4))
        outputs.append(flat.attend(0, query, key, value))
    assert torch.equal(*outputs)


def test_attending_outside_a_step_is_a_defect() -> None:
    flat = FlatPagedAttention(
        CacheShape(1, 4, 1, 8, (None,)), make_kernel("varlen"), cache_dtype=torch.float32, device=CPU
    )
    heads = torch.zeros(1, 1, 8)
    with pytest.raises(RuntimeError, match="before begin_step"):
        flat.attend(0, heads, heads, heads)


def test_this_torch_has_a_varlen_attention_with_block_tables() -> None:
    assert callable(load_varlen())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"compute_dtype": torch.float32, "cache_dtype": torch.float32}, "16 bit"),
        ({"cache_dtype": torch.float16}, "the KV cache is torch.float16"),
        ({"block_size": 16}, "multiple of 256 tokens, block_size is 16"),
        ({"head_dim": 12}, "head_dim 12"),
        ({"head_dim": 264}, "head_dim 264"),
        ({"capability": (7, 5)}, "this device has 7.5"),
    ],
)
def test_varlen_says_what_it_cannot_serve(changes: dict[str, object], reason: str | None) -> None:
    values = {
        "block_size": 256,
        "head_dim": 64,
        "compute_dtype": torch.bfloat16,
        "cache_dtype": torch.bfloat16,
        "capability": (9, 0),
        **changes,
    }
    shape = CacheShape(4, values.pop("block_size"), 1, values.pop("head_dim"), (None,))  # type: ignore[arg-type]
    told = why_not_varlen(shape, **values)  # type: ignore[arg-type]
    assert (told is None) if reason is None else (told is not None and reason in told)

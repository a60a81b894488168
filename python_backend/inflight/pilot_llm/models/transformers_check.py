"""A model that runs through transformers proves at load that it computes on paged attention what it computes alone.

Two short prompts go through a small cache, in chunks and side by side, and each of them through the model's own
attention. What differs shows whatever the probe could not know: a state that a layer keeps, tokens that are mixed
outside attention, an option that means something else here than there.
"""

from typing import Any

import torch

from pilot_llm.attention import PagedAttention
from pilot_llm.attention.torch_paged import CacheShape, TorchPagedAttention
from pilot_llm.batch import SequenceStep, build_batch
from pilot_llm.models.attention_probe import PAGED
from pilot_llm.models.decoder_config import UnsupportedModelError
from pilot_llm.models.loaded import LoadedModel, TokenDecoder

_BLOCK_SIZE = 4
_BLOCKS = ((6, 1, 4), (5, 0, 2))
_NUM_BLOCKS = 7

# How many tokens of each prompt a step computes.
_STEPS = ((7, 0), (3, 6), (1, 2), (0, 1), (1, 1))
CHECKED_TOKENS = 12

# Root mean square of the differences, relative to the spread of the reference's logits. A mean, since rounding in
# 16 bit may send a token to another expert of a mixture.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.15, torch.float16: 0.03}


@torch.inference_mode()
def check_against_own_attention(model: Any, loaded: LoadedModel) -> None:
    """
    Args:
        loaded: the transformers model `model`, which is left with `PAGED` as its attention.

    Raises:
        UnsupportedModelError: logits differ, or one of the two cannot run.
    """
    random = torch.Generator().manual_seed(1)
    lengths = [sum(counts[index] for counts in _STEPS) for index in range(2)]
    prompts = [torch.randint(loaded.vocab_size, (length,), generator=random).tolist() for length in lengths]
    device, dtype = next(model.parameters()).device, model.dtype
    shape = CacheShape(_NUM_BLOCKS, _BLOCK_SIZE, loaded.num_kv_heads, loaded.head_dim, loaded.windows)
    attention = TorchPagedAttention(
        shape, compute_dtype=dtype, cache_dtype=dtype, device=device, score_rules=loaded.score_rules
    )
    try:
        model.set_attn_implementation("eager")
        theirs = [
            model(input_ids=torch.tensor([prompt], device=device), use_cache=False).logits[0].float()
            for prompt in prompts
        ]
        model.set_attn_implementation(PAGED)
        ours = _paged_logits(loaded.connect(attention), attention, prompts, device)
    except Exception as error:
        raise UnsupportedModelError(f"a short prompt cannot be run: {error}") from error
    for own, reference in zip(ours, theirs, strict=True):
        difference, spread = float((own - reference).square().mean().sqrt()), float(reference.std())
        # Negated, so that a NaN fails too.
        if not difference <= _TOLERANCE[dtype] * spread:
            raise UnsupportedModelError(
                f"on paged attention its logits differ by {difference:.2g} from its own, which spread by {spread:.2g}: "
                "something between its tokens is not known here"
            )


def _paged_logits(
    decoder: TokenDecoder, attention: PagedAttention, prompts: list[list[int]], device: torch.device
) -> list[torch.Tensor]:
    """Logits [length, vocab] of each prompt."""
    rows: list[list[torch.Tensor]] = [[], []]
    starts = [0, 0]
    for counts in _STEPS:
        parts = [
            (index, SequenceStep(prompts[index][start : start + count], start, _BLOCKS[index], range(count)))
            for index, (start, count) in enumerate(zip(starts, counts, strict=True))
            if count
        ]
        batch = build_batch([step for _, step in parts], _BLOCK_SIZE)
        attention.begin_step(batch)
        arrays = (batch.token_ids, batch.positions, batch.sampled_rows)
        logits = decoder.forward(*(torch.from_numpy(array).to(device) for array in arrays)).float()
        for index, step in parts:
            count = len(step.token_ids)
            rows[index].append(logits[:count])
            logits = logits[count:]
            starts[index] += count
    return [torch.cat(part) for part in rows]

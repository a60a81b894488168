"""Which attention a GPU gets, decided once at load: torch's varlen, else the Triton-language kernel, else plain gather.

Nobody is believed: a candidate that says that it can serve the model must first agree with the reference on a short
probe, in a cache full of NaN. The log says who was chosen, and why the others were not.
"""

import importlib.util
import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch

from pilot_llm.attention.flat_paged import FlatKernel, FlatPagedAttention
from pilot_llm.attention.scores import ScoreRule
from pilot_llm.attention.torch_paged import CacheShape, TorchPagedAttention
from pilot_llm.attention.varlen_paged import VarlenKernel, load_varlen, why_not_varlen
from pilot_llm.batch import SequenceStep, build_batch

_log = logging.getLogger(__name__)

# Root mean square of the difference over that of what is expected: the mean of many values is small.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}

# What stands for a window of the model: one that ends within a tile of keys, and one that holds several.
_PROBE_WINDOWS = (3, 200)
# Tokens that two sequences bring to each step: chunks, a chunk beside a decode, decodes; then, in one of them, so many
# that a kernel takes its keys in many tiles and parts, and a decode behind them.
_PROBE_STEPS = ((5, 3), (1, 4), (1, 1), (1, 1100), (1, 1))

Candidate = Callable[[], FlatKernel | str]
"""Makes the kernel, or says why it cannot serve this model here."""


def choose_flat_kernel(
    shape: CacheShape,
    *,
    compute_dtype: torch.dtype,
    cache_dtype: torch.dtype,
    device: torch.device,
    score_rules: Sequence[ScoreRule | None],
) -> FlatKernel | None:
    """None: only the plain one serves this model. Of `shape`, the number of blocks does not matter."""
    if any(rule is not None for rule in score_rules):
        _log.info("plain gather attention: the model does something to its scores that no faster one does")
        return None

    def varlen() -> FlatKernel | str:
        attend = load_varlen()
        if isinstance(attend, str):
            return attend
        capability = torch.cuda.get_device_capability(device)
        reason = why_not_varlen(shape, compute_dtype=compute_dtype, cache_dtype=cache_dtype, capability=capability)
        return reason or VarlenKernel(attend)

    def triton() -> FlatKernel | str:
        if importlib.util.find_spec("triton") is None:
            return "the package triton is not installed"
        from pilot_llm.attention.triton_paged import TritonKernel

        return TritonKernel()

    kernel = first_that_serves(
        {"torch.nn.attention.varlen": varlen, "a Triton-language kernel": triton},
        lambda kernel: why_wrong(kernel, shape, compute_dtype=compute_dtype, cache_dtype=cache_dtype, device=device),
    )
    if kernel is None:
        _log.warning("plain gather attention, which is slow: nothing faster serves this model here")
    return kernel


def first_that_serves(
    candidates: dict[str, Candidate], why_wrong: Callable[[FlatKernel], str | None]
) -> FlatKernel | None:
    """In order of preference; whatever goes wrong with one is a reason to ask the next."""
    for name, make in candidates.items():
        try:
            made = make()
            reason = made if isinstance(made, str) else why_wrong(made)
        except Exception as error:  # noqa: BLE001 compilers and drivers raise all there is
            reason = f"{type(error).__name__}: {error}"
        if reason is None and not isinstance(made, str):
            _log.info("attention by %s", name)
            return made
        _log.info("attention not by %s: %s", name, reason)
    return None


@torch.inference_mode()
def why_wrong(
    kernel: FlatKernel,
    shape: CacheShape,
    *,
    compute_dtype: torch.dtype,
    cache_dtype: torch.dtype,
    device: torch.device,
) -> str | None:
    """None: it agrees with the reference on heads, blocks and kinds of window as in `shape`."""
    has_windows = any(window is not None for window in shape.windows)
    windows = (*((None,) if None in shape.windows else ()), *(_PROBE_WINDOWS if has_windows else ()))
    longest = max(sum(counts) for counts in zip(*_PROBE_STEPS, strict=True))
    num_blocks = 2 * -(-longest // shape.block_size)
    small = CacheShape(num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim, windows)
    flat = FlatPagedAttention(small, kernel, cache_dtype=cache_dtype, device=device)
    flat.fill(float("nan"))
    reference = TorchPagedAttention(small, compute_dtype=compute_dtype, cache_dtype=cache_dtype, device=device)
    random = np.random.default_rng(0)
    blocks = np.arange(small.num_blocks).reshape(2, -1)[:, ::-1].tolist()
    lengths = [0, 0]
    for counts in _PROBE_STEPS:
        steps = [SequenceStep([0] * count, lengths[index], blocks[index]) for index, count in enumerate(counts)]
        lengths = [length + count for length, count in zip(lengths, counts, strict=True)]
        batch = build_batch(steps, small.block_size)
        for layer in range(len(windows)):
            heads = [
                torch.from_numpy(random.standard_normal((sum(counts), num_heads, small.head_dim))).to(
                    device, compute_dtype
                )
                for num_heads in (2 * small.num_kv_heads, small.num_kv_heads, small.num_kv_heads)
            ]
            flat.begin_step(batch)
            reference.begin_step(batch)
            ours, expected = (attention.attend(layer, *heads).float() for attention in (flat, reference))
            difference = float(((ours - expected).square().mean() / expected.square().mean()).sqrt())
            # Negated, so that a NaN fails too.
            if not difference <= _TOLERANCE[compute_dtype]:
                return f"on a probe it differs from the reference by {difference:.2g}"
    return None

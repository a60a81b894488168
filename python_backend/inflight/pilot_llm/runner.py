"""The one door between the engine and a model: batches in, logits out, and blocks that can be copied.

The engine thread alone calls a runner. It knows nothing of requests, scheduling or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from pilot_llm.batch import Batch
    from pilot_llm.config import EngineConfig


class Runner(Protocol):
    """A model with its weights and its KV cache of `num_blocks` blocks of `block_size` tokens."""

    num_blocks: int
    block_size: int
    vocab_size: int
    max_model_len: int  # tokens of one sequence, at most
    is_asynchronous: bool  # `forward` returns before the device has computed the logits

    def forward(self, batch: Batch) -> torch.Tensor:
        """Write K and V of every token of the batch to its slot, and return the logits of `batch.sampled_rows`.

        Returns:
            [S, vocab_size] float32, on the runner's device, in the order of `sampled_rows`. S may be 0.

        An exception leaves the slots of this batch undefined and every other slot as it was.
        """

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy K and V of whole blocks, (source, destination) each, before the next forward.

        For a fork that would otherwise write into a block that its parent still fills.
        """


def load_runner(config: EngineConfig) -> Runner:
    """Load weights, decide on the size of the KV cache, and allocate it.

    Raises:
        UnsupportedModelError: neither the native decoder nor paged attention under transformers can run it; says why.
        ConfigError: no or broken weights, or too little memory for the smallest useful cache, with the numbers.
    """
    from pilot_llm.torch_runner import load_torch_runner

    return load_torch_runner(config)

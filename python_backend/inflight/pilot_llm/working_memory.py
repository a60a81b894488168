"""What a step takes on a GPU beside the weights and the KV cache: measured at load, before the cache is sized.

    device memory   | weights | small cache | activations of the largest step | its logits, and drawing from them |
                    '---- held before -----' '------------------ the most that was held at once -------------------'

Without it the cache would take what the first full chunk of a long prompt needs.
"""

from collections.abc import Callable

import torch

from pilot_llm.batch import Batch, SequenceStep, build_batch
from pilot_llm.config import EngineConfig
from pilot_llm.errors import ConfigError
from pilot_llm.pending_tokens import PendingTokens
from pilot_llm.sample_row import SampleRow
from pilot_llm.sampling import SamplingParams
from pilot_llm.torch_runner import TorchRunner

# What takes most memory: the vocabulary of every row is sorted.
_LARGEST_DRAW = SamplingParams(top_p=0.5)


def largest_batches(config: EngineConfig, max_model_len: int) -> tuple[Batch, Batch]:
    """As many tokens and as many rows of logits as a step may have, in as few sequences as hold them; then as many
    decodes, whose attention is another."""
    speculation = config.speculative_config
    rows_of_sequence = 1 + (0 if speculation is None else speculation.num_speculative_tokens)
    num_tokens, num_rows = config.step_tokens(on_gpu=True), config.max_num_seqs * rows_of_sequence
    steps, first_block = [], 0
    while num_tokens > 0:
        length = min(num_tokens, max_model_len)
        sampled = range(min(length, num_rows))
        blocks = range(first_block, first_block - (-length // config.block_size))
        steps.append(SequenceStep([0] * length, 0, blocks, sampled))
        first_block, num_tokens, num_rows = blocks.stop, num_tokens - length, num_rows - len(sampled)
    decodes = [SequenceStep([0], 0, [0], [0])] * config.max_num_seqs
    return build_batch(steps, config.block_size), build_batch(decodes, config.block_size)


@torch.inference_mode()
def measured_step_bytes(
    connect: Callable[[int], TorchRunner], config: EngineConfig, max_model_len: int, device: torch.device
) -> int:
    """By running the largest steps; `connect` gives a runner with so many blocks.

    Raises:
        ConfigError: the device has no room for such a step.
    """
    batches = largest_batches(config, max_model_len)
    try:
        runner = connect(int(batches[0].block_table.max()) + 1)
        torch.cuda.empty_cache()
        # Reserved, not allocated: the gaps between tensors are nobody else's either.
        before_bytes = torch.cuda.memory_reserved(device)
        torch.cuda.reset_peak_memory_stats(device)
        for batch in batches:
            logits = runner.forward(batch)
            rows = [SampleRow(_LARGEST_DRAW, (), (), seed=0, wants_logprob=False)] * len(logits)
            PendingTokens(logits, rows, num_pending=0).wait()
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"a step of max_num_batched_tokens {config.step_tokens(on_gpu=True)} and max_num_seqs "
            f"{config.max_num_seqs} does not fit beside the weights: set smaller ones ({error})"
        ) from error
    return int(torch.cuda.max_memory_reserved(device)) - before_bytes

"""The runner for a GPU: batches travel while the device computes, and decode steps run as CUDA graphs.

    host    check, pad, stage batch 1 | check, pad, stage batch 2 | ...
    device                            [ step 1 ..................][ step 2 ...

`forward` returns logits that the device may not have computed yet: who reads them on the host waits, nobody else.
"""

import logging
from typing import Any

import torch

from pilot_llm.attention.flat_paged import FlatPagedAttention
from pilot_llm.batch import Batch, SequenceStep, build_batch
from pilot_llm.config import EngineConfig
from pilot_llm.cuda_graphs import CudaCapture, DecodeGraphs
from pilot_llm.models.loaded import TokenDecoder
from pilot_llm.step_inputs import Staging, StepInputs
from pilot_llm.torch_runner import TorchRunner

_log = logging.getLogger(__name__)

_WARM_UP_TOKENS = 64


class DeviceRunner(TorchRunner):
    """A `Runner` on a flat attention. Used by one thread."""

    def __init__(self, decoder: TokenDecoder, attention: FlatPagedAttention, **sizes: Any) -> None:
        """`sizes` are those of `TorchRunner`."""
        super().__init__(decoder, attention, **sizes)
        self._flat = attention
        self.scratch_block = attention.scratch_block
        self._staging = Staging(self.device)
        self._graphs: DecodeGraphs | None = None

    def use_graphs(self, graphs: DecodeGraphs) -> None:
        self._graphs = graphs

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        self._enter(batch)
        for_graph = self._graphs.padded(batch) if self._graphs is not None else None
        if self._graphs is not None and for_graph is not None:
            return self._graphs.replay(self._staging.stage(for_graph))[: batch.num_sequences].float()
        return self.run(self._staging.stage(batch)).float()

    def run(self, inputs: StepInputs) -> torch.Tensor:
        """As it comes; also what a graph records. Logits in the model's type."""
        self._flat.begin(inputs)
        return self._decoder.forward(inputs.token_ids, inputs.positions, inputs.sampled_rows)


def warm_up(runner: DeviceRunner, config: EngineConfig, *, can_be_recorded: bool, step_bytes: int) -> None:
    """So that no request waits for a kernel to be compiled, or for a graph to be captured."""
    longest = min(_WARM_UP_TOKENS, runner.block_size * runner.num_blocks, runner.max_model_len)
    for num_tokens in (longest, 1):
        blocks = range(-(-num_tokens // runner.block_size))
        runner.forward(build_batch([SequenceStep([0] * num_tokens, 0, blocks, [num_tokens - 1])], runner.block_size))
    if config.enforce_eager or not can_be_recorded:
        reason = "enforce_eager is set" if config.enforce_eager else "only the native decoder can be recorded"
        _log.info("no CUDA graphs: %s", reason)
        return
    graphs = DecodeGraphs(
        runner.run,
        max_num_seqs=config.max_num_seqs,
        max_model_len=runner.max_model_len,
        block_size=runner.block_size,
        scratch_block=runner.scratch_block,
        device=runner.device,
    )
    graphs.capture(CudaCapture(runner.device), lambda: torch.cuda.mem_get_info(runner.device)[0] - step_bytes)
    runner.use_graphs(graphs)

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
from pilot_llm.models.loaded import LoadedModel, TokenDecoder
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
        self._staging = Staging(self._device)
        self._graphs: DecodeGraphs | None = None

    def use_graphs(self, graphs: DecodeGraphs) -> None:
        self._graphs = graphs

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        self._check(batch)
        if self.is_asynchronous:
            torch.cuda.set_device(self._device)  # the engine's thread is not the one that has loaded
        for_graph = self._graphs.padded(batch) if self._graphs is not None else None
        if self._graphs is not None and for_graph is not None:
            return self._graphs.replay(self._staging.stage(for_graph))[: batch.num_sequences].float()
        return self.run(self._staging.stage(batch)).float()

    def run(self, inputs: StepInputs) -> torch.Tensor:
        """As it comes; also what a graph records. Logits in the model's type."""
        self._flat.begin(inputs)
        return self._decoder.forward(inputs.token_ids, inputs.positions, inputs.sampled_rows)


def load_device_runner(
    config: EngineConfig, model: LoadedModel, attention: FlatPagedAttention, sizes: dict[str, Any]
) -> DeviceRunner:
    """A runner that is warm: no request waits for a kernel to be compiled, or for a graph to be captured."""
    runner = DeviceRunner(model.connect(attention), attention, **sizes)
    longest = min(_WARM_UP_TOKENS, runner.block_size * runner.num_blocks, runner.max_model_len)
    for num_tokens in (longest, 1):
        blocks = range(-(-num_tokens // runner.block_size))
        runner.forward(build_batch([SequenceStep([0] * num_tokens, 0, blocks, [num_tokens - 1])], runner.block_size))
    device = sizes["device"]
    if config.enforce_eager or not model.can_be_recorded:
        reason = "enforce_eager is set" if config.enforce_eager else "only the native decoder can be recorded"
        _log.info("no CUDA graphs: %s", reason)
        return runner
    graphs = DecodeGraphs(
        runner.run,
        max_num_seqs=config.max_num_seqs,
        max_model_len=runner.max_model_len,
        block_size=runner.block_size,
        scratch_block=attention.scratch_block,
        device=device,
    )
    graphs.capture(CudaCapture(device), lambda: torch.cuda.mem_get_info(device)[0])
    runner.use_graphs(graphs)
    return runner

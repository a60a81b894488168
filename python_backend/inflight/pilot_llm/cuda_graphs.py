"""Decode steps as CUDA graphs: the launches of a step are recorded once for each batch size, and replayed as one.

A graph reads and writes at fixed addresses and has a fixed number of rows. So a batch is filled up to the next size
that was captured, and copied into buffers that all sizes share (a size uses their first rows):

    size 4, batch of 3     rows   [ A   B   C   padding ]
                           slots  [ 29  7   14  scratch ]     what padding computes goes into the scratch block,
                           blocks [ ... ... ... scratch ]     which holds nobody's tokens

Only steps in which every sequence decodes one token run by graph; all others, and larger ones, run as they come.
Captured from the largest size on, since the smaller ones then find their memory in the larger one's.
"""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pilot_llm.batch import Batch
from pilot_llm.step_inputs import StepInputs

_log = logging.getLogger(__name__)

Run = Callable[[StepInputs], torch.Tensor]
"""One step on the device: logits [S, vocab]. It reads the tensors, not the host, whenever it is replayed."""

Capture = Callable[[Callable[[], torch.Tensor]], Callable[[], torch.Tensor]]
"""From a function to what replays it; the output is at the same address each time."""

_COPIED = ("token_ids", "positions", "slots", "context_lens", "key_start")

# Left over beside what the largest step takes.
RESERVED_BYTES = 512 << 20


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Powers of two, and the largest batch there can be."""
    return [*(1 << bits for bits in range((max_num_seqs - 1).bit_length())), max_num_seqs]


def is_decode(batch: Batch) -> bool:
    """Whether every sequence brings one token and wants its logits."""
    return batch.num_tokens == batch.num_sequences == len(batch.sampled_rows)


def padded(batch: Batch, size: int, *, scratch_block: int, block_size: int) -> Batch:
    """A decode batch with rows that count for nothing behind its own, `size` in all."""
    missing = size - batch.num_sequences
    table = np.full((size, max(1, batch.block_table.shape[1])), scratch_block, dtype=np.int32)
    table[: batch.num_sequences, : batch.block_table.shape[1]] = batch.block_table

    def filled(array: npt.NDArray[Any], value: int) -> npt.NDArray[Any]:
        return np.concatenate((array, np.full(missing, value, dtype=array.dtype)))

    return Batch(
        token_ids=filled(batch.token_ids, 0),
        positions=filled(batch.positions, 0),
        slots=filled(batch.slots, scratch_block * block_size),
        block_table=table,
        query_start=np.arange(size + 1, dtype=np.int32),
        context_lens=filled(batch.context_lens, 1),
        sampled_rows=np.arange(size, dtype=np.int64),
        previous_ids=batch.previous_ids,
    )


class DecodeGraphs:
    """Replays `run`. Used by one thread, under `torch.inference_mode`."""

    def __init__(
        self,
        run: Run,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        scratch_block: int,
        device: torch.device,
    ) -> None:
        self._run = run
        self._block_size = block_size
        self._scratch_block = scratch_block
        self._sizes = graph_sizes(max_num_seqs)
        self._replay: dict[int, Callable[[], torch.Tensor]] = {}
        rows = torch.arange(max_num_seqs + 1, device=device)
        self._buffers = StepInputs(
            token_ids=torch.zeros_like(rows[1:]),
            positions=torch.zeros_like(rows[1:]),
            slots=torch.full_like(rows[1:], scratch_block * block_size),
            sampled_rows=rows[:-1],
            block_table=torch.full(
                (max_num_seqs, -(-max_model_len // block_size)), scratch_block, dtype=torch.int32, device=device
            ),
            query_start=rows.int(),
            context_lens=torch.ones_like(rows[1:], dtype=torch.int32),
            key_start=rows.int(),
            num_decodes=max_num_seqs,
            max_query_len=1,
            max_context_len=max_model_len,
        )

    @property
    def captured(self) -> list[int]:
        """Sizes, ascending."""
        return sorted(self._replay)

    @torch.inference_mode()
    def capture(self, capture: Capture, free_bytes: Callable[[], int]) -> None:
        """Record all sizes for which there is memory. What cannot be recorded, or replays wrongly, runs as it comes."""
        for size in reversed(self._sizes):
            if free_bytes() < RESERVED_BYTES:
                _log.warning("no CUDA graphs for %d rows and fewer: too little memory is free", size)
                break
            inputs = self._of_size(size)
            try:
                replay = capture(lambda inputs=inputs: self._run(inputs))  # type: ignore[misc]
                recorded, eager = replay().clone(), self._run(inputs)
            except torch.OutOfMemoryError:
                _log.warning("no CUDA graph for %d rows: out of memory", size)
                continue
            except Exception as error:  # noqa: BLE001 whatever a model does that a graph cannot hold
                _log.warning("no CUDA graphs: %s: %s", type(error).__name__, error)
                self._replay.clear()
                return
            if not torch.allclose(recorded.float(), eager.float(), rtol=0.05, atol=0.05 * float(eager.float().std())):
                _log.warning("no CUDA graphs: %d rows replayed give other logits than as they come", size)
                self._replay.clear()
                return
            self._replay[size] = replay
        _log.info("CUDA graphs for decode steps of %s rows", ", ".join(map(str, self.captured)) or "no")

    def padded(self, batch: Batch) -> Batch | None:
        """The batch as a graph takes it; None: it has to run as it comes."""
        size = next((size for size in self.captured if size >= batch.num_sequences), None)
        if size is None or not is_decode(batch):
            return None
        return padded(batch, size, scratch_block=self._scratch_block, block_size=self._block_size)

    def replay(self, inputs: StepInputs) -> torch.Tensor:
        """Logits of all rows of a padded batch, valid until the next replay."""
        size = inputs.num_sequences
        buffers = self._of_size(size)
        for name in _COPIED:
            getattr(buffers, name).copy_(getattr(inputs, name))
        buffers.block_table[:, : inputs.block_table.shape[1]].copy_(inputs.block_table)
        return self._replay[size]()

    def _of_size(self, size: int) -> StepInputs:
        buffers = self._buffers
        rows = {
            name: getattr(buffers, name)[:size]
            for name in ("token_ids", "positions", "slots", "sampled_rows", "block_table", "context_lens")
        }
        starts = {name: getattr(buffers, name)[: size + 1] for name in ("query_start", "key_start")}
        return dataclasses.replace(buffers, **rows, **starts, num_decodes=size)


class CudaCapture:
    """A `Capture` on a GPU. All graphs share their memory: they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        # Once before, on another stream: kernels are compiled and workspaces are taken outside the graph.
        current = torch.cuda.current_stream(self._device)
        other = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        other.wait_stream(current)
        with torch.cuda.stream(other):
            run()
        current.wait_stream(other)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay

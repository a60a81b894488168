"""Decode steps of the runner alone, each launched behind the one before it, as with async scheduling."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch

from pilot_llm.batch import SequenceStep, build_batch
from pilot_llm.config import EngineConfig
from pilot_llm.connect import connect_runner
from pilot_llm.linear import PlainLinear
from pilot_llm.models.decoder import Decoder, DecoderWeights, LayerWeights
from pilot_llm.models.decoder_config import DecoderConfig
from pilot_llm.models.loaded import LoadedModel
from pilot_llm.models.rope import RopeConfig
from pilot_llm.pending_tokens import PendingTokens
from pilot_llm.row_ops import choose_row_ops
from pilot_llm.sample_row import SampleRow
from pilot_llm.sampling import SamplingParams
from pilot_llm.torch_runner import TorchRunner

_GREEDY = SamplingParams.from_dict({"temperature": 0})
_LAYERS = 32

LLAMA_8B = DecoderConfig(
    family="llama",
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_layers=_LAYERS,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_positions=8192,
    rms_norm_eps=1e-5,
    rope=RopeConfig("default", 500_000.0),
    tied_embeddings=False,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    head_norm=False,
    windows=(None,) * _LAYERS,
    rotary_layers=(True,) * _LAYERS,
)


def random_runner(
    config: DecoderConfig, dtype: torch.dtype, device: torch.device, *, max_model_len: int, **settings: Any
) -> TorchRunner:
    """A model of this shape whose weights are drawn on the device: nothing is downloaded, nothing is written."""

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, dtype=dtype, device=device).mul_(columns**-0.5)

    def linear(rows: int, columns: int) -> PlainLinear:
        return PlainLinear(matrix(rows, columns), None)

    hidden, inner = config.hidden_size, config.intermediate_size
    queries, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    ones = torch.ones(hidden, dtype=dtype, device=device)
    weights: DecoderWeights[Any] = DecoderWeights(
        embedding=matrix(config.vocab_size, hidden),
        layers=[
            LayerWeights(
                attention_norm=ones,
                qkv=linear(queries + 2 * kv, hidden),
                query_norm=None,
                key_norm=None,
                output=linear(hidden, queries),
                mlp_norm=ones,
                gate_up=linear(2 * inner, hidden),
                down=linear(hidden, inner),
            )
            for _ in range(config.num_layers)
        ],
        final_norm=ones,
        lm_head=linear(config.vocab_size, hidden),
    )
    row_ops = choose_row_ops(device, dtype, config.head_dim)
    model = LoadedModel(
        description="random weights",
        vocab_size=config.vocab_size,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        windows=config.windows,
        max_positions=config.max_positions,
        limited_by="this benchmark",
        connect=lambda attention: Decoder(config, weights, attention, max_model_len, row_ops),
        can_be_recorded=True,
    )
    folder = Path.cwd()
    engine_config = EngineConfig(model=folder, tokenizer=folder, max_model_len=max_model_len, **settings)
    return connect_runner(engine_config, model, dtype, dtype, device)


def step_ms(runner: TorchRunner, batch_size: int, context_tokens: int, num_steps: int, device: torch.device) -> float:
    """Mean time of a step that ends with `context_tokens` tokens of each sequence in the cache, whatever they are."""
    blocks_each = -(-context_tokens // runner.block_size)
    steps = [
        SequenceStep([1], context_tokens - 1, range(first, first + blocks_each), [0])
        for first in range(0, batch_size * blocks_each, blocks_each)
    ]
    batch = build_batch(steps, runner.block_size)
    rows = [SampleRow(_GREEDY, (), (), seed=0, wants_logprob=False)] * batch_size
    pending = PendingTokens(runner.forward(batch), rows, 0)
    for is_measured in (False, True):
        _synchronize(device)
        before_s = time.perf_counter()
        for _ in range(num_steps if is_measured else 3):
            # The next one is launched before the host looks at the last one's tokens.
            previous = pending
            # Places in `previous_ids`: here each sequence's own.
            ahead = dataclasses.replace(batch, token_ids=_places(batch_size), previous_ids=previous.ids)
            pending = PendingTokens(runner.forward(ahead), rows, 1)
            previous.wait()
        pending.wait()
        _synchronize(device)
    return (time.perf_counter() - before_s) / num_steps * 1e3


def _places(batch_size: int) -> Any:
    return torch.arange(batch_size).numpy()


def copy_bandwidth_gb_per_s(device: torch.device, num_bytes: int = 1 << 30, repeats: int = 20) -> float:
    """Of copies inside the device's memory, bytes read and written together; the best of some times."""
    source = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    best_s = float("inf")
    for _ in range(repeats):
        _synchronize(device)
        before_s = time.perf_counter()
        target.copy_(source)
        _synchronize(device)
        best_s = min(best_s, time.perf_counter() - before_s)
    return 2 * num_bytes / best_s / 1e9


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

"""Tiny random models of every family that the native decoder runs, made by transformers itself."""

from pathlib import Path
from typing import Any

import torch

from pilot_llm.config import EngineConfig, InflightConfig
from pilot_llm.runner import Runner, load_runner

VOCAB_SIZE = 128

_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}

# name -> (model_type, what differs from _SIZES)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 2": ("llama", {"num_key_value_heads": 6}),
    "llama, tied, biases, own head size": (
        "llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 12},
    ),
    "llama, linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}}),
    "llama 3 rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "llama, yarn rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "mistral, sliding window": ("mistral", {"sliding_window": 7, "head_dim": 8}),
    "mistral, no window": ("mistral", {"sliding_window": None, "head_dim": 8}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, window in upper layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}),
}


def make_model(family: str, folder: Path, *, seed: int = 0, shard_bytes: int | None = None) -> Any:
    """A transformers model in float32, and its files in `folder`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, changes = FAMILIES[family]
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**_SIZES, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Biases and norms too, which transformers leaves at 0 and 1: a forgotten one must show.
            spread, middle = (0.3, 1.0) if "norm" in name else (0.15, 0.0)
            parameter.normal_(middle, spread)
    model.save_pretrained(folder, **({} if shard_bytes is None else {"max_shard_size": shard_bytes}))
    return model


def load(folder: Path, *, intra_op_threads: int | None = 1, device: str = "cpu", **settings: Any) -> Runner:
    """Our runner; on the CPU with one thread, since a tiny product is done before a second one wakes up."""
    inflight = InflightConfig(intra_op_threads=intra_op_threads)
    return load_runner(EngineConfig(model=folder, tokenizer=folder, device=device, inflight=inflight, **settings))


@torch.inference_mode()
def reference_greedy(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """transformers' own generate, one prompt alone."""
    generated = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return [int(token) for token in generated[0, len(prompt) :]]

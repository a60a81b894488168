"""Tiny random models of every family that the native decoder runs, and of others, made by transformers itself."""

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

_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

# What runs through transformers: one for each thing that sets a model apart from the Llama family.
OTHER_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2, learnt positions": ("gpt2", {"n_positions": 256, "scale_attn_by_inverse_layer_idx": True}),
    "opt, positions with an offset, own scaling": ("opt", {"ffn_dim": 80, "word_embed_proj_dim": 48}),
    "gpt neox, parallel residual": ("gpt_neox", {}),
    "gpt bigcode, one key-value head": ("gpt_bigcode", {"n_positions": 256}),
    "phi, partial rotary": ("phi", {"partial_rotary_factor": 0.5}),
    "phi3, long rope": (
        "phi3",
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0, 1.5, 2.0, 2.5],
                "long_factor": [4.0] * 4,
            },
        },
    ),
    "stablelm": ("stablelm", {"use_qkv_bias": True}),
    "olmo2, norms behind": ("olmo2", {}),
    "granite, four multipliers": (
        "granite",
        {"attention_multiplier": 0.3, "embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 3.0},
    ),
    "cohere, scaled logits": ("cohere", {}),
    "gemma2, capped scores and logits, alternating windows": (
        "gemma2",
        {"head_dim": 8, "sliding_window": 7, "attn_logit_softcapping": 1.5, "query_pre_attn_scalar": 20},
    ),
    "gemma3, two ropes": ("gemma3_text", {"head_dim": 8, "sliding_window": 9, "sliding_window_pattern": 2}),
    "starcoder2, sliding window": ("starcoder2", {"sliding_window": 7}),
    "mixtral, experts": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3 moe": ("qwen3_moe", {"head_dim": 8, "num_experts": 4, **_EXPERTS}),
    "gpt-oss, sinks": (
        "gpt_oss",
        {"head_dim": 8, "sliding_window": 9, "num_local_experts": 4, "rope_parameters": None},
    ),
    "deepseek v3, values narrower than keys": (
        "deepseek_v3",
        {
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "num_key_value_heads": 6,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            **_EXPERTS,
        },
    ),
    "llama with another activation": ("llama", {"hidden_act": "gelu"}),
}
_NO_SPECIAL_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def make_model(family: str, folder: Path, *, seed: int = 0, shard_bytes: int | None = None) -> Any:
    """A transformers model in float32, and its files in `folder`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, changes = {**FAMILIES, **OTHER_FAMILIES}[family]
    if family in OTHER_FAMILIES:
        changes = {**_NO_SPECIAL_TOKENS, **changes}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **{**_SIZES, **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Biases and norms too, which transformers leaves at 0 and 1: a forgotten one must show.
            spread, middle = (0.3, 1.0) if "norm" in name else (0.15, 0.0)
            parameter.normal_(middle, spread)
    model.save_pretrained(folder, **({} if shard_bytes is None else {"max_shard_size": shard_bytes}))
    return model


def save_random(folder: Path, model_type: str, fields: dict[str, Any]) -> None:
    """Any model that transformers has, also one that we refuse."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**_NO_SPECIAL_TOKENS, **fields})
    kind = AutoModel if config.is_encoder_decoder else AutoModelForCausalLM
    kind.from_config(config).save_pretrained(folder)


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

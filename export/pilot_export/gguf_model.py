"""A GGUF file of a Llama-like model as a Hugging Face folder: config, tokenizer, weights in bfloat16.

The weights are de-quantised and rounded to bfloat16 once: half the disk, and whoever loads them, in whatever
precision, computes with the same numbers. Names of GGUF: github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file

from pilot_base.progress import Say, silent
from pilot_export.errors import ConvertError

# general.architecture -> (model_type, transformers' class). GGUF calls Mistral "llama" too: the arithmetic is the same.
_ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
}

# <architecture>.<key> -> field of config.json
_REQUIRED = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_OPTIONAL = {"attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim"}
# Read elsewhere, or said again by other keys.
_REDUNDANT = {"vocab_size", "rope.dimension_count", "rope.freq_base", "attention.value_length"}

_TOP_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(path: Path, folder: Path, say: Say = silent) -> None:
    """Write config.json, generation_config.json, the tokenizer's files and model.safetensors into `folder`.

    Raises:
        ConvertError: no GGUF file, or a model, tensor or key that cannot be translated; it names which.
    """
    import gguf

    say(f"Reading {path.name}")
    try:
        reader = gguf.GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise ConvertError(f"{path} is no GGUF file, or is cut: {error}") from error
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(path, metadata, {str(tensor.name) for tensor in reader.tensors})
    say("Converting the weights to bfloat16")
    weights = dict(_weights(path, reader, config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    generation = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in config}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    say("Converting the tokenizer")
    _write_tokenizer(path, folder, config["vocab_size"])


def _config(path: Path, metadata: dict[str, Any], tensors: set[str]) -> dict[str, Any]:
    architecture = metadata.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise ConvertError(f"{path} holds the architecture {architecture!r}; supported is {', '.join(_ARCHITECTURES)}")
    prefix = f"{architecture}."
    own = {name.removeprefix(prefix): value for name, value in metadata.items() if name.startswith(prefix)}
    if unknown := set(own) - set(_REQUIRED) - set(_OPTIONAL) - _REDUNDANT:
        raise ConvertError(f"{path}: no translation for {', '.join(prefix + name for name in sorted(unknown))}")
    if missing := set(_REQUIRED) - set(own):
        raise ConvertError(f"{path} lacks {', '.join(prefix + name for name in sorted(missing))}")
    model_type, transformers_class = _ARCHITECTURES[architecture]
    config: dict[str, Any] = {
        "model_type": model_type,
        "architectures": [transformers_class],
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_parameters": {"rope_type": "default", "rope_theta": own.get("rope.freq_base", 10000.0)},
    }
    for name, field in (*_REQUIRED.items(), *_OPTIONAL.items()):
        if name in own:
            config[field] = own[name]
    if architecture != "qwen2":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
    for kind, field in (("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id")):
        if (token_id := metadata.get(f"tokenizer.ggml.{kind}_token_id")) is not None:
            config[field] = token_id
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    if own.get("rope.dimension_count", head_dim) != head_dim:
        raise ConvertError(f"{path}: partial rotary embedding ({prefix}rope.dimension_count) is not supported")
    return config


def _weights(path: Path, reader: Any, config: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    import gguf

    for tensor in reader.tensors:
        name = _transformers_name(path, str(tensor.name))
        try:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ConvertError(f"{path}: {tensor.name} is stored as {tensor.tensor_type.name}, unknown here") from error
        if config["model_type"] == "llama":
            for projection, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
                if projection in name:
                    values = _halves_apart(values, config.get(heads, config["num_attention_heads"]))
        # A copy, since float32 tensors come as read-only views of the file.
        yield name, torch.from_numpy(np.array(values, order="C")).to(torch.bfloat16)


def _transformers_name(path: Path, name: str) -> str:
    if name in _TOP_TENSORS:
        return _TOP_TENSORS[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_TENSORS:
        return f"model.layers.{parts[1]}.{_LAYER_TENSORS[parts[2]]}.{parts[3]}"
    raise ConvertError(f"{path}: no translation for the tensor {name}")


def _halves_apart(rows: npt.NDArray[Any], num_heads: int) -> npt.NDArray[Any]:
    """GGUF stores a head's rotary pairs side by side, transformers the first halves of all pairs, then the second."""
    return rows.reshape(num_heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _write_tokenizer(path: Path, folder: Path, vocab_size: int) -> None:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise ConvertError(f"{path}: its tokenizer cannot be converted: {error}") from error
    tokenizer.save_pretrained(folder)
    # transformers gives every GPT-2-like vocabulary an <|endoftext|>, if need be as a token that the model has not.
    saved = folder / "tokenizer.json"
    content = json.loads(saved.read_text(encoding="utf-8"))
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < vocab_size]
    saved.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

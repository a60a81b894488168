"""What the native decoder must know of a model, read from Hugging Face's config.json.

A field is either handled (it reaches `DecoderConfig`), fixed (only one value is implemented), or harmless (it never
changes a logit). Anything else that is set is an error that names the field: a model must not be served with half
of its arithmetic.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilot_llm.errors import ConfigError
from pilot_llm.models.rope import ROPE_PARAMETERS, RopeConfig


class UnsupportedModelError(ConfigError):
    """The native decoder does not implement this model, or a field of its configuration."""


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder of the Llama family. `windows` and `rotary_layers` have one entry per layer.

    windows: how many latest tokens, itself included, a query sees; None for all.
    rotary_layers: whether the layer rotates queries and keys.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_norm_eps: float
    rope: RopeConfig
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    head_norm: bool
    windows: tuple[int | None, ...]
    rotary_layers: tuple[bool, ...]


@dataclass(frozen=True)
class _Family:
    """`fields`: what this family adds to `_COMMON_FIELDS`. `defaults`: transformers' values for absent fields."""

    architecture: str
    fields: frozenset[str]
    defaults: Mapping[str, Any]


_FAMILIES = {
    "llama": _Family("LlamaForCausalLM", frozenset({"attention_bias", "mlp_bias", "pretraining_tp"}), {}),
    "mistral": _Family(
        "MistralForCausalLM", frozenset({"sliding_window"}), {"sliding_window": 4096, "num_key_value_heads": 8}
    ),
    "qwen2": _Family(
        "Qwen2ForCausalLM",
        frozenset({"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}),
        {"sliding_window": 4096, "max_window_layers": 28},
    ),
    "qwen3": _Family(
        "Qwen3ForCausalLM",
        frozenset({"use_sliding_window", "sliding_window", "max_window_layers", "layer_types", "attention_bias"}),
        {"sliding_window": 4096, "max_window_layers": 28, "head_dim": 128},
    ),
    "smollm3": _Family(
        "SmolLM3ForCausalLM",
        frozenset(
            {
                *("use_sliding_window", "sliding_window", "layer_types", "attention_bias", "mlp_bias"),
                *("no_rope_layers", "no_rope_layer_interval"),
            }
        ),
        {"no_rope_layer_interval": 4, "num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": True},
    ),
}

_COMMON_FIELDS = frozenset(
    {
        *("model_type", "architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps"),
        *("rope_theta", "rope_scaling", "rope_parameters", "tie_word_embeddings", "quantization_config"),
    }
)

# field -> the only value that is implemented
_FIXED_FIELDS: dict[str, Any] = {
    "hidden_act": "silu",
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "tie_encoder_decoder": False,
    "partial_rotary_factor": 1.0,
    "rope_interleaved": False,
    "use_qk_norm": False,
}

_HARMLESS_FIELDS = frozenset(
    {
        *("transformers_version", "torch_dtype", "dtype", "use_cache", "task"),
        *("_name_or_path", "name_or_path", "_model_name_or_path"),
        *("initializer_range", "attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"),
        *("output_hidden_states", "output_attentions", "return_dict", "use_return_dict", "torchscript"),
        *("chunk_size_feed_forward", "id2label", "label2id", "problem_type", "transformers.js_config"),
        *("is_llama_config", "_attn_implementation_autoset", "auto_map", "pretraining_tp"),
    }
)


def supported_families() -> list[str]:
    return sorted(_FAMILIES)


def read_decoder_config(folder: Path) -> DecoderConfig:
    """The configuration of the model in `folder`.

    Raises:
        UnsupportedModelError: see `parse_decoder_config`.
        ConfigError: config.json is missing or no JSON object.
    """
    path = folder / "config.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): a Hugging Face model folder holds one") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} holds no JSON object")
    try:
        return parse_decoder_config(fields)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{path}: {error}") from None


def parse_decoder_config(fields: Mapping[str, Any]) -> DecoderConfig:
    """Check every field, fill in transformers' defaults, and translate.

    Raises:
        UnsupportedModelError: an unknown family, an unknown field, or a value that is not implemented.
    """
    name = fields.get("model_type")
    family = _FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise UnsupportedModelError(
            f"model_type {name!r} is not supported; the native decoder runs {', '.join(supported_families())}"
        )
    _refuse_unknown(fields, family)
    present = {key: value for key, value in fields.items() if value is not None}
    values = {**family.defaults, **present}
    if fields.get("sliding_window", 0) is None:
        # Here null says "no window", which is not the same as an absent field.
        values["sliding_window"] = None
    num_layers = _count(values, "num_hidden_layers")
    num_heads = _count(values, "num_attention_heads")
    num_kv_heads = _count({"num_key_value_heads": num_heads, **values}, "num_key_value_heads")
    hidden_size = _count(values, "hidden_size")
    head_dim = _count({"head_dim": hidden_size // num_heads, **values}, "head_dim")
    if num_heads % num_kv_heads:
        raise UnsupportedModelError(f"num_attention_heads {num_heads} is no multiple of {num_kv_heads} key-value heads")
    if head_dim % 2:
        raise UnsupportedModelError(f"head_dim {head_dim} is odd: rotary embedding pairs its elements")
    attention_bias = bool(values.get("attention_bias", False))
    rotary_layers = _rotary_layers(values, num_layers)
    max_positions = _count(values, "max_position_embeddings")
    return DecoderConfig(
        family=str(name),
        vocab_size=_count(values, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_count(values, "intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_positions=max_positions,
        rms_norm_eps=float(values.get("rms_norm_eps", 1e-6)),
        rope=_rope(values, max_positions),
        tied_embeddings=bool(values.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias or name == "qwen2",
        output_bias=attention_bias,
        mlp_bias=bool(values.get("mlp_bias", False)),
        head_norm=name == "qwen3",
        windows=_windows(values, num_layers, rotary_layers),
        rotary_layers=rotary_layers,
    )


def unknown_fields(fields: Mapping[str, Any]) -> list[str]:
    """Names in config.json that the native decoder knows nothing of; none for a family that it does not run."""
    family = _FAMILIES.get(str(fields.get("model_type")))
    if family is None:
        return []
    known = _COMMON_FIELDS | family.fields | _HARMLESS_FIELDS | _FIXED_FIELDS.keys()
    return [name for name, value in fields.items() if value is not None and name not in known]


def _refuse_unknown(fields: Mapping[str, Any], family: _Family) -> None:
    architectures = fields.get("architectures")
    if architectures is not None and architectures != [family.architecture]:
        raise UnsupportedModelError(f"architectures is {architectures}, supported is [{family.architecture!r}]")
    quantization = fields.get("quantization_config")
    if quantization is not None and not _is_int8_by_row(quantization):
        raise UnsupportedModelError(
            "quantization_config is set: of quantised checkpoints, those with int8 weights and a scale per row are "
            "supported (compressed-tensors, int-quantized), as `tritonpilot export llm --precision int8` makes them"
        )
    for name, implemented in _FIXED_FIELDS.items():
        value = fields.get(name)
        if value is not None and value != implemented:
            raise UnsupportedModelError(f"{name} is {value!r}, implemented is only {implemented!r}")
    for name in unknown_fields(fields):
        raise UnsupportedModelError(
            f"field {name!r} ({fields[name]!r}) is not implemented. If it does not change what the model computes, "
            "remove it from config.json"
        )


def _is_int8_by_row(quantization: Any) -> bool:
    """Whether weights are stored as `Checkpoint` reads them. How activations are rounded, model.json decides."""
    if not isinstance(quantization, dict) or quantization.get("quant_method") != "compressed-tensors":
        return False
    groups = quantization.get("config_groups")
    weights = [group.get("weights") or {} for group in groups.values()] if isinstance(groups, dict) else []
    wanted = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    return (
        quantization.get("format") == "int-quantized"
        and bool(weights)
        and all(all(scheme.get(key) == value for key, value in wanted.items()) for scheme in weights)
    )


def _count(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UnsupportedModelError(f"{name} is {value!r}, a positive integer is needed")
    return value


def _rope(values: Mapping[str, Any], max_positions: int) -> RopeConfig:
    """From `rope_parameters` (transformers 5) or `rope_scaling` with `rope_theta` (before)."""
    parameters = {
        key: value
        for key, value in {**values.get("rope_scaling", {}), **values.get("rope_parameters", {})}.items()
        if value is not None
    }
    legacy_kind = parameters.pop("type", "default")
    kind = parameters.pop("rope_type", legacy_kind)
    theta = parameters.pop("rope_theta", values.get("rope_theta", 10000.0))
    if parameters.pop("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError("partial_rotary_factor is set: partial rotary embedding is not implemented")
    if kind not in ROPE_PARAMETERS:
        raise UnsupportedModelError(f"rope_type {kind!r} is not implemented; there is {', '.join(ROPE_PARAMETERS)}")
    needed, optional = ROPE_PARAMETERS[kind]
    if "original_max_position_embeddings" in needed:
        parameters.setdefault("original_max_position_embeddings", max_positions)
    if kind == "default":
        # transformers leaves the trained length here too, and does not read it.
        parameters.pop("original_max_position_embeddings", None)
    if missing := needed - set(parameters):
        raise UnsupportedModelError(f"rope_type {kind!r} needs {', '.join(sorted(missing))}")
    if unknown := set(parameters) - needed - optional:
        raise UnsupportedModelError(f"rope parameter {', '.join(sorted(unknown))} is not implemented for {kind!r}")
    for name, value in {"rope_theta": theta, **parameters}.items():
        if not isinstance(value, (int, float)):
            raise UnsupportedModelError(f"rope parameter {name} is {value!r}, a number is needed")
    return RopeConfig(kind, float(theta), parameters)


def _rotary_layers(values: Mapping[str, Any], num_layers: int) -> tuple[bool, ...]:
    if "no_rope_layer_interval" not in values:
        return (True,) * num_layers
    interval = _count(values, "no_rope_layer_interval")
    # Despite its name, 1 in this list means that the layer rotates.
    flags = values.get("no_rope_layers") or [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if len(flags) < num_layers:
        raise UnsupportedModelError(f"no_rope_layers has {len(flags)} entries for {num_layers} layers")
    return tuple(bool(flag) for flag in flags[:num_layers])


def _windows(values: Mapping[str, Any], num_layers: int, rotary_layers: tuple[bool, ...]) -> tuple[int | None, ...]:
    window = (
        values.get("sliding_window") if values.get("use_sliding_window", values["model_type"] == "mistral") else None
    )
    if window is None:
        if "sliding_attention" in values.get("layer_types", ()):
            raise UnsupportedModelError("layer_types asks for sliding_attention, but no sliding_window is in use")
        return (None,) * num_layers
    window = _count(values, "sliding_window")
    if values["model_type"] == "mistral":
        return (window,) * num_layers
    kinds = values.get("layer_types")
    if kinds is None and values["model_type"] == "smollm3":
        kinds = ["full_attention" if rotates else "sliding_attention" for rotates in rotary_layers]
    elif kinds is None:
        first = values["max_window_layers"]
        kinds = ["sliding_attention" if layer >= first else "full_attention" for layer in range(num_layers)]
    if len(kinds) != num_layers or set(kinds) - {"full_attention", "sliding_attention"}:
        raise UnsupportedModelError(f"layer_types {kinds} is not one of full_attention or sliding_attention per layer")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)

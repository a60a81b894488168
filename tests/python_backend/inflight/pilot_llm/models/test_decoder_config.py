"""config.json: what is handled, what is refused by name, and what is harmless."""

import json
from pathlib import Path
from typing import Any

import pytest

from pilot_llm.errors import ConfigError
from pilot_llm.models.decoder_config import (
    DecoderConfig,
    UnsupportedModelError,
    parse_decoder_config,
    read_decoder_config,
)

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def parse(**changes: Any) -> DecoderConfig:
    return parse_decoder_config({**LLAMA, **changes})


def test_absent_fields_have_transformers_defaults() -> None:
    config = parse()
    assert (config.num_kv_heads, config.head_dim, config.rms_norm_eps) == (4, 16, 1e-6)
    assert (config.rope.kind, config.rope.theta, config.tied_embeddings) == ("default", 10000.0, False)
    assert config.windows == (None,) * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma2"}, "model_type 'gemma2' is not supported; the native decoder runs llama, mistral"),
        ({"model_type": None}, "model_type None"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', implemented is only 'silu'"),
        ({"attention_multiplier": 0.5}, "field 'attention_multiplier'"),
        ({"logit_scale": 2.0}, "field 'logit_scale'"),
        ({"sliding_window": 128}, "field 'sliding_window'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}},
            "tritonpilot export llm --precision int8",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' is not implemented"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_type 'longrope'"),
        ({"rope_scaling": {"type": "linear"}}, "rope_type 'linear' needs factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "twist": 1}}, "rope parameter twist"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope parameter factor is '2'"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}, "partial_rotary_factor"),
        ({"vocab_size": None}, "vocab_size is None, a positive integer"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers is 2.0"),
        ({"num_key_value_heads": 3}, "no multiple of 3"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError) as error:
        parse(**changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "changes", [{"attention_dropout": 0.1}, {"eos_token_id": [2, 7]}, {"anything": None}, {"torch_dtype": "bfloat16"}]
)
def test_harmless_fields_change_nothing(changes: dict[str, Any]) -> None:
    assert parse(**changes) == parse()


def test_old_and_new_spelling_of_rope_scaling_are_the_same() -> None:
    old = parse(rope_theta=500000.0, rope_scaling={"type": "linear", "factor": 2.0})
    new = parse(rope_parameters={"rope_type": "linear", "rope_theta": 500000.0, "factor": 2.0})
    assert old == new
    assert old.rope.theta == 500000.0


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"model_type": "mistral"}, (4096,) * 4),
        ({"model_type": "mistral", "sliding_window": None}, (None,) * 4),
        ({"model_type": "qwen2", "sliding_window": 64}, (None,) * 4),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, (None,) * 4),
        (
            {"model_type": "qwen3", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3},
            (None, None, None, 64),
        ),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 64,
                "use_sliding_window": True,
                "layer_types": ["full_attention", "sliding_attention"] * 2,
            },
            (None, 64, None, 64),
        ),
    ],
)
def test_windows_are_those_of_transformers(changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    architecture = {"mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[changes["model_type"]]
    config = parse(architectures=[f"{architecture}ForCausalLM"], num_key_value_heads=4, **changes)
    assert config.windows == windows


@pytest.mark.parametrize(
    "layer_types", [["full_attention"] * 3, ["full_attention", "chunked_attention", "full_attention", "full_attention"]]
)
def test_layer_types_that_do_not_fit_are_refused(layer_types: list[str]) -> None:
    with pytest.raises(UnsupportedModelError, match="layer_types"):
        parse(
            model_type="qwen2",
            architectures=None,
            use_sliding_window=True,
            sliding_window=9,
            layer_types=layer_types,
        )


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), ("{", "not valid JSON"), ("[1]", "no JSON object"), ('{"model_type": "bert"}', "bert")],
)
def test_broken_file_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=message) as error:
        read_decoder_config(tmp_path)
    assert str(tmp_path / "config.json") in str(error.value)


def test_every_config_that_transformers_writes_for_a_family_is_read(tmp_path: Path) -> None:
    from transformers import AutoConfig

    for family in ("llama", "mistral", "qwen2", "qwen3", "smollm3"):
        AutoConfig.for_model(family).save_pretrained(tmp_path)
        fields = json.loads((tmp_path / "config.json").read_text())
        assert read_decoder_config(tmp_path).num_layers == fields["num_hidden_layers"]

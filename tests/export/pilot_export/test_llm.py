"""Export of an LLM: what ends up in the repository, what is refused, and that a refusal leaves nothing behind."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pilot_export import llm_verify
from pilot_export.errors import ExportError
from pilot_export.llm import export_llm
from pilot_llm.checkpoint import Checkpoint
from pilot_llm.tokenizer import HfTokenizer
from pilot_testing.hf_models import load, make_model, save_random
from pilot_testing.tiny_llm import BEGIN_ID, END_ID, make_model_folder

HEADS, KV_HEADS = 4, 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A random Llama with a tokenizer, as Hugging Face lays it out."""
    make_model_folder(tmp_path / "Tiny-Llama")
    return tmp_path / "Tiny-Llama"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "build" / "model_repository"


def listing(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_folder_is_checked_against_transformers_and_installed_whole(folder: Path, repository: Path) -> None:
    export = export_llm(str(folder), repository)
    assert (export.model, export.family) == ("tiny-llama", "llama")
    assert export.verification is not None
    assert export.verification.num_positions > 50
    assert export.verification.num_agreeing + export.verification.num_ties == export.verification.num_positions
    assert export.verification.max_logit_difference < 1e-3
    installed = repository / "tiny-llama"
    assert sorted(listing(installed)) == [
        "1/config.json",
        "1/export.json",
        "1/model.json",
        "1/model.safetensors",
        "1/tokenizer.json",
        "1/tokenizer_config.json",
        "config.pbtxt",
    ]
    assert (installed / "config.pbtxt").read_text() == 'backend: "inflight"\n'
    assert json.loads((installed / "1" / "model.json").read_text()) == {"model": "."}
    assert json.loads((installed / "1" / "export.json").read_text())["weights_sha256"] == export.weights_sha256
    load(installed / "1", num_gpu_blocks_override=2)


def other_family(folder: Path, model_type: str) -> Path:
    """A random model of another family than Llama's, with our byte tokenizer."""
    make_model_folder(folder)
    vocab_size = HfTokenizer.from_folder(folder).vocab_size
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 256}
    save_random(folder, model_type, {"vocab_size": vocab_size, **sizes})
    return folder


def test_model_of_another_family_is_checked_and_installed_to_run_through_transformers(
    tmp_path: Path, repository: Path
) -> None:
    folder = other_family(tmp_path / "neox", "gpt_neox")
    said: list[str] = []
    export = export_llm(str(folder), repository, say=said.append)
    assert export.family == "gpt_neox"
    assert export.verification is not None
    assert export.verification.max_logit_difference < 1e-3
    assert any("it will run through transformers" in line for line in said)
    load(repository / "neox" / "1", num_gpu_blocks_override=2)


@pytest.mark.parametrize("is_verified", [True, False])
def test_model_whose_attention_cannot_be_paged_is_refused(tmp_path: Path, repository: Path, is_verified: bool) -> None:
    folder = other_family(tmp_path / "falcon", "falcon")
    with pytest.raises(ExportError, match="does not go through transformers' AttentionInterface"):
        export_llm(str(folder), repository, is_verified=is_verified)
    assert not repository.exists()


def test_settings_and_configuration_of_the_user_stay(folder: Path, repository: Path) -> None:
    version_dir = repository / "mine" / "1"
    version_dir.mkdir(parents=True)
    (version_dir / "model.json").write_text('{"model": "/old", "max_num_seqs": 3}')
    (repository / "mine" / "config.pbtxt").write_text("# mine\n")
    export_llm(str(folder), repository, name="mine", is_verified=False)
    assert json.loads((version_dir / "model.json").read_text()) == {"model": ".", "max_num_seqs": 3}
    assert (repository / "mine" / "config.pbtxt").read_text() == "# mine\n"


def folder_without_kernels(folder: Path) -> Path:
    """A random Llama whose heads are too small for the CPU kernels."""
    make_model_folder(folder)
    vocab_size = HfTokenizer.from_folder(folder).vocab_size
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1}
    save_random(folder, "llama", {"vocab_size": vocab_size, "max_position_embeddings": 256, **sizes})
    return folder


def test_8_bit_is_stored_once_served_so_and_compared_with_float32(folder: Path, repository: Path) -> None:
    export = export_llm(str(folder), repository, precision="int8", is_verified=False)
    version_dir = repository / "tiny-llama" / "1"
    assert json.loads((version_dir / "model.json").read_text()) == {"model": ".", "quantization": "int8"}
    before, after = (load_file(path / "model.safetensors") for path in (folder, version_dir))
    name = "model.layers.1.mlp.down_proj.weight"
    assert after[name].dtype == torch.int8
    assert after[f"{name}_scale"].shape == (64, 1)
    error = (after[name].float() * after[f"{name}_scale"] - before[name]).abs()
    assert (error <= after[f"{name}_scale"] * 0.5001).all()
    assert torch.equal(after["model.embed_tokens.weight"], before["model.embed_tokens.weight"])
    assert export.int8 is not None
    assert export.int8.num_agreeing > 0.8 * export.int8.num_positions
    assert export.int8.mean_loss == pytest.approx(export.int8.float32_mean_loss, rel=0.02)
    # Stored or made at load, it is the same model; and it is right without the kernels too.
    stored, made = (
        llm_verify.logits_of(path, HfTokenizer.from_folder(path), quantization="int8")[0]
        for path in (version_dir, folder)
    )
    torch.testing.assert_close(stored, made, atol=1e-4, rtol=1e-4)
    load(version_dir, num_gpu_blocks_override=2, block_size=8)


def test_8_bit_without_the_kernels_or_of_a_folder_that_stays_where_it_is_is_refused(
    folder: Path, tmp_path: Path, repository: Path
) -> None:
    with pytest.raises(ExportError, match="int8 needs the CPU kernels, which do not run here: head_dim"):
        export_llm(str(folder_without_kernels(tmp_path / "small")), repository, precision="int8", is_verified=False)
    with pytest.raises(ExportError, match="gpt_neox runs through transformers, which has no int8"):
        export_llm(str(other_family(tmp_path / "neox", "gpt_neox")), repository, precision="int8", is_verified=False)
    with pytest.raises(ExportError, match="with --precision they are written anew"):
        export_llm(str(folder), repository, precision="int8", link=True)
    assert not repository.exists()
    export_llm(str(folder), repository, name="once", precision="int8", is_verified=False)
    with pytest.raises(ExportError, match="is quantised already"):
        export_llm(str(repository / "once" / "1"), repository, name="twice", precision="int8", is_verified=False)


def test_weights_as_they_come_are_served_so_after_8_bit_ones(folder: Path, repository: Path) -> None:
    settings = repository / "model" / "1" / "model.json"
    export_llm(str(folder), repository, name="model", precision="int8", is_verified=False)
    export_llm(str(folder), repository, name="model", is_verified=False)
    assert json.loads(settings.read_text()) == {"model": "."}
    # What a person has asked for stays.
    settings.write_text('{"model": ".", "quantization": "int8"}')
    export_llm(str(folder), repository, name="model", is_verified=False)
    assert json.loads(settings.read_text()) == {"model": ".", "quantization": "int8"}


def test_shards_may_have_any_names(folder: Path, repository: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "named")
    (tmp_path / "named" / "model.safetensors").rename(tmp_path / "named" / "weights.one.safetensors")
    tensors = safe_open(tmp_path / "named" / "weights.one.safetensors", framework="pt").keys()
    index = {"weight_map": dict.fromkeys(tensors, "weights.one.safetensors")}
    (tmp_path / "named" / "model.safetensors.index.json").write_text(json.dumps(index))
    export = export_llm(str(tmp_path / "named"), repository, name="model", is_verified=False)
    assert export.weights_bytes > 0
    Checkpoint(repository / "model" / "1")


def test_link_copies_no_weights(folder: Path, repository: Path) -> None:
    export_llm(str(folder), repository, name="linked", link=True, is_verified=False)
    assert sorted(listing(repository / "linked")) == ["1/export.json", "1/model.json", "config.pbtxt"]
    assert json.loads((repository / "linked" / "1" / "model.json").read_text()) == {"model": str(folder)}


def test_nothing_of_the_model_before_is_read_together_with_the_new_one(
    folder: Path, repository: Path, tmp_path: Path
) -> None:
    sharded = tmp_path / "sharded"
    make_model("llama 2", sharded, shard_bytes=50_000)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (sharded / name).write_bytes((folder / name).read_bytes())
    config = json.loads((sharded / "config.json").read_text())
    # More rows than the model has would be refused; what they hold does not matter here.
    shrink_tokenizer(sharded, config["vocab_size"])
    export_llm(str(sharded), repository, name="model", is_verified=False)
    assert (repository / "model" / "1" / "model.safetensors.index.json").exists()
    assert (repository / "model" / "1" / "generation_config.json").exists()
    export_llm(str(folder), repository, name="model", is_verified=False)
    left = {path.name for path in (repository / "model" / "1").iterdir()}
    assert {name for name in left if "safetensors" in name} == {"model.safetensors"}
    assert "generation_config.json" not in left


def shrink_tokenizer(folder: Path, vocab_size: int) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"] = {
        text: number for text, number in content["model"]["vocab"].items() if number < vocab_size
    }
    content["model"]["merges"] = []
    path.write_text(json.dumps(content))


def unsupported(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))


def unknown_field(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "logit_softcapping": 30.0}))


def without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def foreign_tokenizer(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": config["vocab_size"] - 1}))


def missing_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (unsupported, "model_type 'mamba' is not supported; the native decoder runs llama, mistral, qwen2, qwen3"),
        (unknown_field, "field 'logit_softcapping'"),
        (without_tokenizer, "tokenizer.json is missing"),
        (cut_weights, "model.safetensors cannot be read"),
        (without_config, "config.json cannot be read"),
        (foreign_tokenizer, "they do not belong together"),
        (missing_tensor, "lack model.layers.1.mlp.up_proj.weight"),
    ],
)
def test_model_that_cannot_be_served_is_refused_and_the_repository_is_as_it_was(
    folder: Path, repository: Path, spoil: Callable[[Path], None], message: str
) -> None:
    export_llm(str(folder), repository, name="model", is_verified=False)
    before = listing(repository)
    spoil(folder)
    with pytest.raises(ExportError) as error:
        export_llm(str(folder), repository, name="model")
    assert message in str(error.value)
    assert listing(repository) == before
    assert not list(repository.parent.glob(".export-*"))


def test_model_that_transformers_computes_differently_is_not_installed(
    folder: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_logits = llm_verify._reference_logits

    def shifted(*arguments: Any) -> torch.Tensor:
        return true_logits(*arguments).roll(1, dims=1)

    monkeypatch.setattr(llm_verify, "_reference_logits", shifted)
    with pytest.raises(ExportError, match="verify: logits differ from transformers' by up to"):
        export_llm(str(folder), repository)
    assert not repository.exists()


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("nothing-here", {}, r"is no folder, no \.gguf file and no known model \(smollm2\)"),
        ("smollm2", {"link": True}, "--link works with a Hugging Face folder only"),
        ("smollm2", {"name": "../x"}, "cannot be a model's name"),
    ],
)
def test_wrong_wishes_are_refused(source: str, options: dict[str, Any], message: str, repository: Path) -> None:
    with pytest.raises(ExportError, match=message):
        export_llm(source, repository, **options)


def write_gguf(folder: Path, path: Path, *, architecture: str = "llama", **more: Any) -> None:
    """What llama.cpp's converter makes of the folder: rotary pairs side by side, matrices in Q8_0."""
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())["model"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    for name, value in more.items():
        writer.add_float32(name.replace("__", "."), value)
    vocab = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocab)
    writer.add_token_types([gguf.TokenType.CONTROL] * 4 + [gguf.TokenType.NORMAL] * (len(vocab) - 4))
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["merges"]])
    writer.add_bos_token_id(BEGIN_ID)
    writer.add_eos_token_id(END_ID)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.numpy()
        for projection, heads in (("q_proj", HEADS), ("k_proj", KV_HEADS)):
            if projection in name:
                values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        new_name = names.get_name(name, try_suffixes=(".weight",))
        if values.ndim == 2:
            quantised = gguf.quantize(np.ascontiguousarray(values), gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(new_name, quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(new_name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf_becomes_the_model_that_it_was_made_from(folder: Path, repository: Path, tmp_path: Path) -> None:
    path = tmp_path / "Tiny.gguf"
    write_gguf(folder, path)
    export = export_llm(str(path), repository)
    assert export.model == "tiny"
    ours, theirs = (HfTokenizer.from_folder(place) for place in (export.folder / "1", folder))
    text = "The quick brown fox, 42 times: naïve \u00e9t\u00e9 <|end|>"
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert (ours.vocab_size, ours.eos_token_ids) == (theirs.vocab_size, theirs.eos_token_ids)
    original, converted = load_file(folder / "model.safetensors"), load_file(export.folder / "1" / "model.safetensors")
    assert set(converted) == set(original)
    for name, tensor in original.items():
        # Q8_0 keeps 8 bits of the largest value of 32, bfloat16 8 bits of each.
        allowed = tensor.abs().max() / 127
        assert converted[name].dtype == torch.bfloat16
        assert (converted[name].float() - tensor).abs().max() <= allowed, name
    assert not list(repository.parent.glob(".export-*"))


@pytest.mark.parametrize(
    ("architecture", "more", "message"),
    [
        ("gemma2", {}, "architecture 'gemma2'; supported is llama, qwen2, qwen3"),
        ("llama", {"llama__rope__scaling__factor": 2.0}, "no translation for llama.rope.scaling.factor"),
    ],
)
def test_gguf_that_cannot_be_translated_is_refused(
    folder: Path, repository: Path, tmp_path: Path, architecture: str, more: dict[str, Any], message: str
) -> None:
    write_gguf(folder, tmp_path / "tiny.gguf", architecture=architecture, **more)
    with pytest.raises(ExportError, match=message):
        export_llm(str(tmp_path / "tiny.gguf"), repository)
    assert not repository.exists()


@pytest.mark.parametrize("kept_bytes", [0, 100, 100_000])
def test_cut_gguf_is_refused(folder: Path, repository: Path, tmp_path: Path, kept_bytes: int) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(folder, path)
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(ExportError, match="is no GGUF file, or is cut"):
        export_llm(str(path), repository)

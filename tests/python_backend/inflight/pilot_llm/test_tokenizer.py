"""The tokenizer's files: which ids end an answer, which begin a text, what is missing."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from pilot_llm.errors import ConfigError
from pilot_llm.tokenizer import HfTokenizer


def write_folder(folder: Path, **files: object) -> Path:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>", "<end>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_generation_config_names_several_eos_ids(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, config={"eos_token_id": 4}, generation_config={"eos_token_id": [4, 5]})
    assert HfTokenizer.from_folder(folder).eos_token_ids == {4, 5}


@pytest.mark.parametrize(
    "files",
    [{"config": {"eos_token_id": 4}}, {"tokenizer_config": {"eos_token": "</s>"}},
     {"tokenizer_config": {"eos_token": {"content": "</s>"}}}],
)  # fmt: skip
def test_eos_id_is_found_in_the_next_best_file(tmp_path: Path, files: dict[str, object]) -> None:
    assert HfTokenizer.from_folder(write_folder(tmp_path, **files)).eos_token_ids == {4}


def test_the_tokenizer_s_own_eos_ends_an_answer_too(tmp_path: Path) -> None:
    """As of chat models that came with their base model's generation_config.json."""
    files = {"generation_config": {"eos_token_id": 4}, "tokenizer_config": {"eos_token": "<end>"}}
    assert HfTokenizer.from_folder(write_folder(tmp_path, **files)).eos_token_ids == {4, 5}


def test_a_null_says_nothing_of_the_eos(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, config={"eos_token_id": 4}, generation_config={"eos_token_id": None})
    assert HfTokenizer.from_folder(folder).eos_token_ids == {4}


def test_model_without_eos_has_none(tmp_path: Path) -> None:
    assert HfTokenizer.from_folder(write_folder(tmp_path)).eos_token_ids == frozenset()


def test_prompt_that_holds_the_beginning_already_gets_one(tmp_path: Path) -> None:
    tokenizer = HfTokenizer.from_folder(write_folder(tmp_path, tokenizer_config={"bos_token": "<s>"}))
    assert tokenizer.encode("a b") == [3, 0, 1]
    assert tokenizer.encode("<s> a b") == [3, 0, 1]
    assert tokenizer.encode("<s> a b", add_special_tokens=False) == [3, 0, 1]


def test_truncation_and_padding_of_the_file_are_not_ours(tmp_path: Path) -> None:
    assert HfTokenizer.from_folder(write_folder(tmp_path)).encode("a b a b a") == [3, 0, 1, 0, 1, 0]


def test_special_tokens_are_known_by_text_and_id(tmp_path: Path) -> None:
    tokenizer = HfTokenizer.from_folder(write_folder(tmp_path))
    assert (tokenizer.special_token_id("<end>"), tokenizer.special_token_id("a")) == (5, None)
    assert (tokenizer.is_special(5), tokenizer.is_special(0), tokenizer.vocab_size) == (True, False, 6)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json is missing"):
        HfTokenizer.from_folder(tmp_path)
    write_folder(tmp_path)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        HfTokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        HfTokenizer.from_folder(tmp_path)

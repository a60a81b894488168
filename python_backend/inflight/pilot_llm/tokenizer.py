"""Text to token ids and back. The engine needs only the protocol; `HfTokenizer` fulfils it with a tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from pilot_llm.errors import ConfigError


class Tokenizer(Protocol):
    """Used by several threads at once: every method only reads."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below it. May be smaller than the model's row count of logits, which is often padded."""

    @property
    def longest_token_chars(self) -> int:
        """No token stands for more characters of a prompt: tells texts that can never fit before they are encoded."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer; some models have several."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Never doubles the token that begins a text, should the text hold it already."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Bytes that form no character become U+FFFD."""

    def special_token_id(self, text: str) -> int | None:
        """The id of the special token that is written exactly so, if there is one."""

    def is_special(self, token_id: int) -> bool:
        """Whether `skip_special_tokens` hides it."""


class HfTokenizer:
    """A Hugging Face `tokenizer.json`, with the special tokens that the files beside it name."""

    def __init__(self, tokenizer: Any, *, eos_token_ids: frozenset[int], bos_token_id: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        added = tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._special_id_by_text = {added[token_id].content: token_id for token_id in self._special_ids}
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self.longest_token_chars = max(map(len, vocabulary), default=1)

    @classmethod
    def from_folder(cls, folder: Path) -> HfTokenizer:
        """Read tokenizer.json; the EOS ids from generation_config.json, else config.json.

        Raises:
            ConfigError: a file is missing or cannot be read.
        """
        from tokenizers import Tokenizer as RustTokenizer

        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"{path} is missing: the backend needs the fast tokenizer's file")
        try:
            tokenizer = RustTokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for anything wrong with the file
            raise ConfigError(f"{path}: {error}") from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        generation, model, texts = (
            _read_json(folder / name) for name in ("generation_config.json", "config.json", "tokenizer_config.json")
        )
        eos = generation.get("eos_token_id")
        if eos is None:
            eos = model.get("eos_token_id")
        # As in vLLM, the tokenizer's own counts always: a chat model may end its turns by it, and have its base's file.
        own_eos = tokenizer.token_to_id(_token_text(texts.get("eos_token")))
        bos_token_id = tokenizer.token_to_id(_token_text(texts.get("bos_token")))
        eos_token_ids = frozenset([eos] if isinstance(eos, int) else eos or ())
        if own_eos is not None:
            eos_token_ids |= {own_eos}
        return cls(tokenizer, eos_token_ids=eos_token_ids, bos_token_id=bos_token_id)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        token_ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        if add_special_tokens and self._bos_token_id is not None and token_ids[:2] == [self._bos_token_id] * 2:
            del token_ids[0]
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def special_token_id(self, text: str) -> int | None:
        return self._special_id_by_text.get(text)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return content


def _token_text(entry: object) -> str:
    """tokenizer_config.json writes a token as its text, or as an object that holds it."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else ""

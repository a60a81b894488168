"""Pieces of text from real tokenizers of the kinds that language models have, made on the spot."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pilot_llm.detokenizer import REPLACEMENT, Detokenizer
from pilot_llm.tokenizer import HfTokenizer

TEXTS = [
    "The cat sat.",
    "你好，世界！",
    "naïve café – Ελλάδα",
    "👩‍👩‍👧‍👦 family",
    "  two  spaces\n\tand tab",
    "a" * 50,
    "कखग",
]


def byte_level() -> HfTokenizer:
    """As GPT-2, Llama 3, Qwen, SmolLM: every byte has a token, a few words have one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(alphabet)}
    merges = [("Ġ", "c"), ("a", "t"), ("Ġc", "at"), ("T", "h"), ("Th", "e"), ("ä", "½")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return HfTokenizer(tokenizer, eos_token_ids=frozenset([len(vocabulary)]))


def sentence_piece() -> HfTokenizer:
    """As Llama 2 and Mistral: a word's token holds its leading space; unknown characters are bytes."""
    vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    for piece in ("▁", "▁The", "▁cat", "▁sat", ".", "a", "c", "t", "e", "s", "h", "T", "▁c", "at", "▁s"):
        vocabulary[piece] = len(vocabulary)
    merges = [("▁", "c"), ("a", "t"), ("▁c", "at"), ("▁", "s"), ("▁s", "at")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return HfTokenizer(tokenizer, eos_token_ids=frozenset([len(vocabulary)]))


def word_piece() -> HfTokenizer:
    """As BERT: spaces belong to no token."""
    pieces = ["[UNK]", "the", "cat", "##s", "sat", ".", ",", "n", "##aive", "##ly"]
    tokenizer = Tokenizer(models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return HfTokenizer(tokenizer, eos_token_ids=frozenset())


TOKENIZERS = {"byte level": byte_level(), "sentence piece": sentence_piece(), "word piece": word_piece()}
BYTE_LEVEL, SENTENCE_PIECE = TOKENIZERS["byte level"], TOKENIZERS["sentence piece"]


def pieces(tokenizer: HfTokenizer, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    return [*(detokenizer.feed([token_id]) for token_id in token_ids), detokenizer.flush()]


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_joined_pieces_are_what_decoding_at_once_gives(tokenizer: HfTokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text)
    assert "".join(pieces(tokenizer, token_ids)) == tokenizer.decode(token_ids)


def test_words_keep_their_spaces_when_streamed_token_by_token() -> None:
    vocabulary = SENTENCE_PIECE._tokenizer.get_vocab()
    token_ids = [vocabulary[token] for token in ("▁The", "▁cat", "▁sat", ".")]
    assert pieces(SENTENCE_PIECE, token_ids) == ["The", " cat", " sat", ".", ""]


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@pytest.mark.parametrize("prompt", ["", "The", "The cat sat.", "cat 👩", "The 你好 sat"])
@pytest.mark.parametrize("text", TEXTS)
def test_an_answer_goes_on_where_its_prompt_ends(tokenizer: HfTokenizer, prompt: str, text: str) -> None:
    before, after = tokenizer.encode(prompt), tokenizer.encode(text)
    detokenizer = Detokenizer(tokenizer)
    detokenizer.begin_behind(before)
    shown = [*(detokenizer.feed([token_id]) for token_id in after), detokenizer.flush()]
    assert tokenizer.decode(before) + "".join(shown) == tokenizer.decode([*before, *after])


def test_a_first_word_has_its_space_behind_the_prompt_and_none_behind_half_a_character() -> None:
    vocabulary = SENTENCE_PIECE._tokenizer.get_vocab()
    half = SENTENCE_PIECE.encode("👧")[-4:-1]
    for prompt, expected in (([vocabulary["▁The"]], " cat"), ([vocabulary["</s>"]], "cat"), (half, "cat"), ([], "cat")):
        detokenizer = Detokenizer(SENTENCE_PIECE)
        detokenizer.begin_behind(prompt)
        assert detokenizer.feed([vocabulary["▁cat"]]) == expected


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCE_PIECE], ids=["byte level", "sentence piece"])
@pytest.mark.parametrize("text", ["你好", "👩‍👧", "é"])
def test_character_over_several_tokens_comes_whole_and_no_piece_holds_a_replacement(
    tokenizer: HfTokenizer, text: str
) -> None:
    shown = pieces(tokenizer, tokenizer.encode(text))
    assert "".join(shown).strip() == text
    assert not any(REPLACEMENT in piece for piece in shown)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCE_PIECE], ids=["byte level", "sentence piece"])
@pytest.mark.parametrize("num_missing", [1, 2, 3])
def test_generation_that_ends_inside_a_character_gives_one_replacement_at_the_end(
    tokenizer: HfTokenizer, num_missing: int
) -> None:
    token_ids = [*tokenizer.encode("cat "), *tokenizer.encode("👧")[-4:]]
    shown = pieces(tokenizer, token_ids[: len(token_ids) - num_missing])
    assert shown[-1] == REPLACEMENT
    assert not any(REPLACEMENT in piece for piece in shown[:-1])


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_tokens_that_come_several_at_a_time_give_the_same_text(tokenizer: HfTokenizer, data: st.DataObject) -> None:
    token_ids = tokenizer.encode("The cat 你好 é👩‍👧 sat. 👦")[: data.draw(st.integers(0, 60))]
    detokenizer, shown, rest = Detokenizer(tokenizer), "", token_ids
    while rest:
        size = data.draw(st.integers(1, 9))
        shown, rest = shown + detokenizer.feed(rest[:size]), rest[size:]
        assert REPLACEMENT not in shown
    assert shown + detokenizer.flush() == "".join(pieces(tokenizer, token_ids))


def test_flushing_twice_gives_the_replacement_once() -> None:
    detokenizer = Detokenizer(BYTE_LEVEL)
    detokenizer.feed(BYTE_LEVEL.encode("👧")[:2])
    assert [detokenizer.flush(), detokenizer.flush()] == [REPLACEMENT, ""]


def test_word_behind_a_hidden_special_token_keeps_its_space() -> None:
    vocabulary = SENTENCE_PIECE._tokenizer.get_vocab()
    token_ids = [vocabulary[token] for token in ("▁The", "</s>", "▁cat")]
    assert "".join(pieces(SENTENCE_PIECE, token_ids)) == "The cat"
    assert "".join(pieces(SENTENCE_PIECE, token_ids, skip_special_tokens=False)) == "The</s> cat"


class CountingTokenizer(HfTokenizer):
    """Counts the tokens that it has decoded."""

    num_decoded = 0

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        self.num_decoded += len(token_ids)
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCE_PIECE], ids=["byte level", "sentence piece"])
@pytest.mark.parametrize("text", ["", "a", "a你"])
@pytest.mark.parametrize("at_once", [False, True])
def test_bytes_that_will_never_be_a_character_do_not_hold_up_the_text_nor_make_the_window_grow(
    tokenizer: HfTokenizer, text: str, at_once: bool
) -> None:
    stray = tokenizer.encode("é")[-1]
    token_ids = [stray, *(tokenizer.encode(text)[-4:] if text else [])] * 200
    counting = CountingTokenizer(tokenizer._tokenizer, eos_token_ids=frozenset())
    detokenizer = Detokenizer(counting)
    shown = "".join(detokenizer.feed(part) for part in ([token_ids] if at_once else [[t] for t in token_ids]))
    assert len(shown) >= 190
    assert counting.num_decoded <= 50 * len(token_ids)
    assert detokenizer.feed(tokenizer.encode("sat")[-3:]).endswith("sat")


@given(token_ids=st.lists(st.integers(0, len(BYTE_LEVEL._tokenizer.get_vocab()) - 1), max_size=40))
@settings(max_examples=150, deadline=None)
def test_any_byte_level_tokens_give_what_decoding_at_once_gives(token_ids: list[int]) -> None:
    expected = BYTE_LEVEL.decode(token_ids)
    joined = "".join(pieces(BYTE_LEVEL, token_ids))
    if joined != expected:  # an end inside a character, or of stray bytes, is one replacement
        assert joined.rstrip(REPLACEMENT) == expected.rstrip(REPLACEMENT)
        assert joined.endswith(REPLACEMENT)
        assert expected.endswith(REPLACEMENT)


@given(token_ids=st.lists(st.integers(129, 271), max_size=30))
@settings(max_examples=150, deadline=None)
def test_any_sentence_piece_tokens_are_shown_in_full_and_never_taken_back(token_ids: list[int]) -> None:
    """One wrong byte makes this kind of decoder give up the bytes before it too; the words around them stay."""
    expected = SENTENCE_PIECE.decode(token_ids)
    joined = "".join(pieces(SENTENCE_PIECE, token_ids))
    if REPLACEMENT not in expected:
        assert joined == expected
    else:
        assert [c for c in joined if c.isascii()] == [c for c in expected if c.isascii()]

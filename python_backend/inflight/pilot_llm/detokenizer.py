"""Turns a growing list of token ids into pieces of text that can be shown at once and never taken back.

A token is not a text: it may be part of a UTF-8 character, and its leading space depends on its neighbours. So a small
window of the last tokens is decoded as a whole, and what is new in its text is let out:

    window      [ context tokens | new tokens ]
    text        [ shown already  | new ][ maybe half a character: held ]

`tokenizers.decoders.DecodeStream` does the same, but it raises for some byte sequences, and it does not say what it
holds back at the end.
"""

from collections.abc import Sequence

from pilot_llm.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
"""Decoded from bytes that are no character: an incomplete one, or none that ever will be."""

_LONGEST_CHARACTER_TOKENS = 4
"""A character has at most 4 bytes, so at most 4 tokens."""

_CONTEXT_TOKENS = 4
_LONGEST_WINDOW_TOKENS = 12


class Detokenizer:
    """The text of one sequence. The pieces joined are what decoding all tokens at once gives, behind its prompt."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._window: list[int] = []
        self._num_shown = 0  # characters of the window's text
        self._num_held_tokens = 0  # since the text last ended with a whole character

    def begin_behind(self, prompt_token_ids: Sequence[int]) -> None:
        """The text will go on where the prompt ends: many tokenizers give no space before a text's first word."""
        known = prompt_token_ids
        if self._skip_special_tokens:
            # Few of the last ones are special.
            known = [t for t in prompt_token_ids[-_LONGEST_WINDOW_TOKENS:] if not self._tokenizer.is_special(t)]
        for count in range(_CONTEXT_TOKENS, _CONTEXT_TOKENS + _LONGEST_CHARACTER_TOKENS):
            context = known[-count:]
            text = self._decoded(context)
            if text and REPLACEMENT not in (text[0], text[-1]):
                self._window, self._num_shown = list(context), len(text)
                return

    def feed(self, token_ids: Sequence[int]) -> str:
        """Take in the next tokens; returns the text that they complete."""
        if self._skip_special_tokens:
            # What gives no text is no context either, and must not make the window grow.
            token_ids = [token_id for token_id in token_ids if not self._tokenizer.is_special(token_id)]
        if not token_ids:
            return ""
        text = self._decoded([*self._window, *token_ids])
        if len(token_ids) > 1 and text.endswith(REPLACEMENT):
            return "".join(self.feed([token_id]) for token_id in token_ids)  # to see since when a character is held
        self._window.extend(token_ids)
        complete = text.rstrip(REPLACEMENT)
        if len(complete) == len(text):
            self._num_held_tokens = 0
        else:
            self._num_held_tokens += 1
            if self._num_held_tokens >= _LONGEST_CHARACTER_TOKENS:
                complete = text[:-1]  # bytes of no character; only the last may still be the beginning of one
        piece = complete[self._num_shown :]
        self._num_shown += len(piece)
        is_inside_character = 0 < self._num_held_tokens < _LONGEST_CHARACTER_TOKENS
        if len(self._window) > _LONGEST_WINDOW_TOKENS and not is_inside_character:
            self._shorten_window(text)
        return piece

    def flush(self) -> str:
        """The generation is over: what is left is half a character at most, and becomes one replacement character."""
        text = self._decoded(self._window)
        rest = text[self._num_shown :]
        self._window, self._num_shown = [], 0
        return rest.rstrip(REPLACEMENT) + REPLACEMENT if rest else ""

    def _shorten_window(self, text: str) -> None:
        """Keep the newest tokens of the window, whose text is `text`, as context for the next ones."""
        before, context = self._window[:-_CONTEXT_TOKENS], self._window[-_CONTEXT_TOKENS:]
        context_text = self._decoded(context)
        if context_text and REPLACEMENT not in (context_text[0], text[-1]):
            self._window, self._num_shown = context, len(context_text)
            return
        # They begin inside a character, unless these are bytes of none: then both parts give the same text apart.
        before_text = self._decoded(before)
        if before_text + context_text == text and len(before_text) <= self._num_shown:
            self._window, self._num_shown = context, self._num_shown - len(before_text)

    def _decoded(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)

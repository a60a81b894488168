"""Turns a conversation into the prompt that a chat model was trained on: the Jinja template beside its tokenizer.

Where a folder keeps it, newest habit first:

    chat_template.jinja             the template alone
    tokenizer_config.json           "chat_template": "...", or [{"name": "default", "template": "..."}, ...]

The template comes with the model, so it is run as a stranger's code: in Jinja's sandbox, which sees no files, no
modules and nothing of this process.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pilot_client.errors import ChatTemplateError

Message = Mapping[str, str]
"""{"role": "system" | "user" | "assistant", "content": text}"""

_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token")


class ChatTemplate:
    """One model's template with its special tokens."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], where: str = "chat template") -> None:
        """Raises ChatTemplateError if `source` is no Jinja; `where` stands in the messages."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda format_: datetime.now().strftime(format_)
        self._where = where
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"{where}: {error}") from error

    @classmethod
    def from_path(cls, path: Path) -> "ChatTemplate":
        """Read the template of a model's folder, of its tokenizer_config.json, or of a .jinja file.

        Raises:
            ChatTemplateError: there is none, or it cannot be read.
        """
        if not path.exists():
            raise ChatTemplateError(
                f"{path} does not exist: give the folder that holds the model's tokenizer_config.json"
            )
        folder = path if path.is_dir() else path.parent
        settings = _read_settings(path if path.suffix == ".json" else folder / "tokenizer_config.json")
        file = path if path.suffix == ".jinja" else folder / "chat_template.jinja"
        source = _read_text(file) if file.is_file() else _template_in(settings)
        if source is None:
            raise ChatTemplateError(
                f"{path} holds no chat template: the model was not made for conversations, so send it plain text with "
                "`tritonpilot generate`, or give the template of another tokenizer"
            )
        return cls(source, _special_tokens(settings), where=str(path))

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt that lets the assistant speak next.

        Raises:
            ChatTemplateError: the template does not take such a conversation (many insist on user and assistant by
                turns, some allow no system message).
        """
        try:
            return self._template.render(messages=list(messages), add_generation_prompt=True, **self._special_tokens)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise ChatTemplateError(f"{self._where} refuses this conversation: {error}") from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ChatTemplateError(f"{path} cannot be read: {error}") from error


def _read_settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        settings = json.loads(_read_text(path))
    except ValueError as error:
        raise ChatTemplateError(f"{path} is not JSON: {error}") from error
    return settings if isinstance(settings, dict) else {}


def _template_in(settings: Mapping[str, Any]) -> str | None:
    template = settings.get("chat_template")
    if isinstance(template, list):
        by_name = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = by_name.get("default")
    return template if isinstance(template, str) else None


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in _SPECIAL_TOKENS:
        # A token is written as its text, or as an object that holds it.
        token = settings.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes <, > and & for HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)

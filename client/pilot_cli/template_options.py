"""Where `generate` and `chat` find the chat template of a model: beside its weights, or where they are told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pilot_client.chat_template import ChatTemplate

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--tokenizer",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="Folder (or tokenizer_config.json, or .jinja file) of the chat template; needed where the model "
        "repository is on another machine.",
    ),
    click.option(
        "--repository",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Model repository in which MODEL's folder holds the template.  [default: the one that `serve` takes]",
    ),
)


def template_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def find_template(model: str, tokenizer: Path | None, repository: Path | None) -> "ChatTemplate":
    """The chat template in `tokenizer`, else in the folder of the model's tokenizer in the repository.

    Raises:
        ChatTemplateError: there is none; says which option names one.
    """
    from pilot_client.chat_template import ChatTemplate

    return ChatTemplate.from_path(tokenizer or _tokenizer_folder(model, repository))


def _tokenizer_folder(model: str, repository: Path | None) -> Path:
    """The newest version's folder, or the one that its model.json names."""
    from pilot_cli.repositories import default_repository
    from pilot_client.errors import ChatTemplateError

    repository = repository or default_repository(model)
    folders = [path for path in (repository / model).glob("*") if path.name.isdigit()]
    if not folders:
        raise ChatTemplateError(
            f"no model {model!r} in {repository}, where its chat template would be: give the model repository with "
            "--repository, or the folder of the tokenizer with --tokenizer"
        )
    newest = max(folders, key=lambda path: int(path.name))
    try:
        settings = json.loads((newest / "model.json").read_text())
        return (newest / (settings.get("tokenizer") or settings.get("model") or ".")).resolve()
    except (OSError, ValueError, AttributeError) as error:
        raise ChatTemplateError(f"{newest / 'model.json'} cannot be read: {error}") from error

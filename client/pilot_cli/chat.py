"""`tritonpilot chat`: a conversation in the terminal, in the model's own chat template."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilot_cli.generate_options import sampling_options, sampling_params

if TYPE_CHECKING:
    from pilot_client.chat_template import ChatTemplate


@click.command("chat")
@click.argument("model")
@click.option("--system", metavar="TEXT", help="What the model is told before the conversation.")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Folder (or tokenizer_config.json, or .jinja file) of the chat template; needed where the model repository "
    "is on another machine.",
)
@click.option(
    "--repository",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Model repository in which MODEL's folder holds the template.  [default: the one that `serve` takes]",
)
@sampling_options
def command(
    model: str,
    system: str | None,
    tokenizer: Path | None,
    repository: Path | None,
    url: str | None,
    timeout_s: float,
    **sampling: Any,
) -> None:
    """Talk with MODEL. Ctrl-C ends an answer, not the conversation.

    /reset forgets what was said; /quit (or Ctrl-D) leaves.
    """
    from pilot_client.address import resolve_url
    from pilot_client.chat_template import ChatTemplate

    template = ChatTemplate.from_path(tokenizer or _folder_in_repository(model, repository))
    Conversation(template, resolve_url(url, "grpc"), model, sampling_params(**sampling), timeout_s, system).run()


class Conversation:
    """What was said so far, and the loop that goes on with it."""

    def __init__(
        self,
        template: "ChatTemplate",
        url: str,
        model: str,
        params: dict[str, Any],
        timeout_s: float,
        system: str | None,
    ) -> None:
        self._template = template
        self._url, self._model, self._params, self._timeout_s = url, model, params, timeout_s
        self._opening = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._opening)

    def run(self) -> None:
        """Read lines until /quit or the end of input."""
        while True:
            try:
                line = input("> ")
            except EOFError:
                click.echo()
                return
            except KeyboardInterrupt:
                click.secho("\n(/quit or Ctrl-D leaves)", dim=True)
                continue
            if line.strip() == "/quit":
                return
            if line.strip() == "/reset":
                self._messages = list(self._opening)
            elif line.strip():
                self._answer(line)

    def _answer(self, line: str) -> None:
        from pilot_base.errors import PilotError

        question = {"role": "user", "content": line}
        parts: list[str] = []
        try:
            for text in self._stream([*self._messages, question]):
                parts.append(text)
                click.echo(text, nl=False)
        except KeyboardInterrupt:
            click.secho(" [interrupted]", dim=True, nl=False)
        except PilotError as error:
            # The conversation goes on: the same question may be asked again.
            click.secho(f"error: {error}", err=True)
            return
        click.echo()
        self._messages += [question, {"role": "assistant", "content": "".join(parts)}]

    def _stream(self, messages: list[dict[str, str]]) -> Iterator[str]:
        from pilot_client.generate import stream

        prompt = self._template.render(messages)
        for piece in stream(self._url, self._model, prompt, self._params, timeout_s=self._timeout_s):
            yield piece.text


def _folder_in_repository(model: str, repository: Path | None) -> Path:
    """Where the model's tokenizer lies: the newest version's folder, or the one that its model.json names."""
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

"""`tritonpilot chat`: a conversation in the terminal, in the model's own chat template."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilot_cli.generate_options import sampling_options, sampling_params
from pilot_cli.param_types import address
from pilot_cli.template_options import find_template, template_options

if TYPE_CHECKING:
    from pilot_client.chat_template import ChatTemplate


@click.command("chat")
@click.argument("model")
@click.option("--system", metavar="TEXT", help="What the model is told before the conversation.")
@template_options
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
    template = find_template(model, tokenizer, repository)
    Conversation(template, address(url, "grpc"), model, sampling_params(**sampling), timeout_s, system).run()


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

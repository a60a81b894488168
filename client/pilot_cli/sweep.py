"""`tritonpilot sweep`: measure a model over its knobs and choose within a latency budget."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilot_cli.output import json_option, print_json
from pilot_cli.param_types import address
from pilot_cli.repositories import default_repository
from pilot_cli.request_options import check_before_start, request_options, requests_of
from pilot_cli.sweep_options import INPUT_FILE, levels_of, sweep_options
from pilot_cli.sweep_outcome import outcome_json, outcome_table
from pilot_cli.sweep_progress import Watcher

if TYPE_CHECKING:
    from pilot_perf.slo import Slo


@click.command("sweep")
@click.argument("model")
@click.option(
    "--repository",
    type=click.Path(path_type=Path),
    help="Start a server of our own on this model repository.  [default: build/model_repository, else the project's]",
)
@click.option("--url", help="Use the server at this gRPC address (host:port) instead.")
@click.option("--allow-reload", is_flag=True, help="With --url: change the model's configuration there while it lasts.")
@click.option(
    "--out",
    "results_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the study and the chosen config.pbtxt.  [default: build/results/MODEL]",
)
@sweep_options
@request_options
@json_option
def command(
    model: str,
    repository: Path | None,
    url: str | None,
    allow_reload: bool,
    results_dir: Path | None,
    slo: "Slo",
    as_json: bool,
    **options: Any,
) -> None:
    """Find the configuration of MODEL with the most throughput that keeps the latency budget.

    Measures with perf_analyzer over concurrency, max batch, queue delay, instances, intra-op threads and precision,
    then compares the winner with the installed configuration, both measured in turn. Interrupted, the same command
    goes on where it was.

    A server at --url keeps its configuration unless --allow-reload is given: then only the load is swept.

    \b
    Examples:
      tritonpilot sweep minilm --slo p95:50ms
      tritonpilot sweep mymodel --repository models --slo p99:100 --instances 1,2 --max-batch 1,8 --input-data rows.npz
      tritonpilot sweep mymodel --url 127.0.0.1:8001 --slo p95:20ms
    """
    from pilot_base.lock import only_one_in
    from pilot_perf.session import run
    from pilot_perf.sweep_request import Request
    from pilot_server.toolchain import perf_analyzer

    if url is not None and repository is not None:
        raise click.UsageError("--url names a server that runs, --repository starts one: give one of them")
    if allow_reload and url is None:
        raise click.UsageError("--allow-reload is for a server at --url: one of our own is reloaded anyway")
    results_dir = results_dir or Path("build/results") / model
    levels = levels_of(options)
    tuned_with = results_dir / INPUT_FILE
    if options["input_data"] is None and tuned_with.is_file():
        options["input_data"] = tuned_with
    requests = requests_of(options)
    if url is None:
        repository = repository or default_repository(model)
    check_before_start(requests, options["trace"], None if repository is None else repository / model)
    with ExitStack() as stack:
        watcher = stack.enter_context(Watcher(slo, options["max_measurements"]))
        analyzer = perf_analyzer(watcher.say)
        if requests.input_data == tuned_with:
            watcher.say(f"Sending the rows of {tuned_with}, where an earlier run has put them")
        if url is not None or repository is None:
            from pilot_perf.remote import RemoteServer

            server: Any = RemoteServer(address(url, "grpc"))
            model_dir, restart = None, None
            if not allow_reload:
                watcher.say("The server at --url keeps its configuration: only the load is swept (see --allow-reload)")
        else:
            from pilot_cli.own_server import starter

            model_dir = repository / model
            watcher.say(f"Starting a server on {repository}")
            restart = starter(stack, repository, model, watcher.say)
            server = restart()
        request = Request(
            model=model,
            slo=slo,
            levels=levels,
            results_dir=results_dir,
            model_dir=model_dir,
            may_reload=url is None or allow_reload,
            requests=requests,
            **options,
        )
        stack.enter_context(only_one_in(results_dir))
        outcome = run(server, analyzer, request, watch=watcher, say=watcher.say, restart=restart)
    if as_json:
        print_json(outcome_json(outcome))
        return
    click.echo(outcome_table(outcome))
    if outcome.config_file is not None:
        click.echo(f"Chosen configuration: {outcome.config_file}")
    for member, file in outcome.member_files.items():
        click.echo(f"Chosen configuration of {member}: {file}")
    click.echo(f"Study: {outcome.study_file} (a picture of it: tritonpilot report {outcome.study_file})")

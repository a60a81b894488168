"""`tritonpilot tune`: from a model to a proven configuration in one command."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilot_cli.output import json_option, print_json
from pilot_cli.request_options import check_before_start, request_options, requests_of
from pilot_cli.sweep_options import INPUT_FILE, levels_of, sweep_options
from pilot_cli.sweep_outcome import outcome_json, outcome_table
from pilot_cli.sweep_progress import Watcher

if TYPE_CHECKING:
    from pilot_cli.tune_target import Target
    from pilot_perf.outcome import Outcome
    from pilot_perf.slo import Slo


@click.command("tune")
@click.argument("target_name", metavar="SPEC|MODEL")
@click.option(
    "--repository",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The model repository to start from; it is copied, never changed.  [default: the project's]",
)
@click.option(
    "--build",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build"),
    show_default=True,
    help="Folder for the working copy (model_repository/) and the results.",
)
@sweep_options
@request_options
@json_option
def command(
    target_name: str,
    repository: Path | None,
    build: Path,
    slo: "Slo",
    as_json: bool,
    **options: Any,
) -> None:
    """Export, serve, measure and configure a model: the fastest configuration within a latency budget, with proof.

    SPEC is a sample (minilm, efficientnet, crepe), module:function or file.py[:function]; it is exported, verified and
    installed first.
    MODEL is a model that the repository holds already.

    Then the real server answers over HTTP and gRPC, the model is swept with perf_analyzer, the chosen config.pbtxt is
    written to the working copy (the untuned one stays beside it), and both are compared, measured in turn.
    Interrupted, the same command goes on where it was.

    \b
    Examples:
      tritonpilot tune minilm
      tritonpilot tune mymodel.py:spec --slo p99:100ms
      tritonpilot tune mymodel --repository models --input-data rows.npz
    """
    from pilot_base.lock import only_one_in
    from pilot_cli.answers import show_answer
    from pilot_cli.own_server import starter
    from pilot_cli.tune_target import find_target, put_back
    from pilot_perf.input_data import write_rows
    from pilot_perf.report import write_report
    from pilot_perf.session import run
    from pilot_perf.sweep_request import Request
    from pilot_server import model_repository_dir
    from pilot_server.toolchain import perf_analyzer

    levels = levels_of(options)
    with only_one_in(build), Watcher(slo, options["max_measurements"]) as watcher, ExitStack() as undo:
        say = watcher.say
        analyzer = perf_analyzer(say)
        watcher.step(1, "Model")
        target = find_target(target_name, repository or model_repository_dir(), build, fresh=options["fresh"], say=say)
        undo.callback(put_back, target.tuned)
        results_dir = build / "results" / target.model
        results_dir.mkdir(parents=True, exist_ok=True)
        if options["input_data"] is None and target.spec is not None:
            options["input_data"] = write_rows(target.spec.samples, results_dir / INPUT_FILE)
        requests = requests_of(options)
        check_before_start(requests, options["trace"], target.model_dir)
        watcher.step(2, "Server")
        with ExitStack() as servers:
            start = starter(servers, target.model_dir.parent, target.model, say)
            server = start()
            say(f"Serving {target.model} on {server.http_url} (HTTP) and {server.grpc_url} (gRPC)")
            if target.spec is not None:
                show_answer(target.spec, server, watcher.show)
            watcher.step(3, f"Sweep within {slo}")
            request = Request(
                model=target.model,
                slo=slo,
                levels=levels,
                results_dir=results_dir,
                model_dir=target.model_dir,
                requests=requests,
                **options,
            )
            outcome = run(server, analyzer, request, watch=watcher, say=say, restart=start)
        watcher.step(4, "Configuration")
        if outcome.chosen is not None:
            undo.pop_all()
        _install(target, outcome, say)
        files = write_report(outcome.study_file, results_dir, options["rate_per_s"])
    if as_json:
        report = {"html": str(files.html), "png": str(files.png), "csv": str(files.csv)}
        print_json({"model": target.model, **outcome_json(outcome), "report": report})
        return
    click.echo(f"\n{outcome_table(outcome)}\n")
    if outcome.config_file is not None:
        click.echo(f"Configuration: {target.model_dir / 'config.pbtxt'} (start it: tritonpilot serve)")
    click.echo(f"Report: {files.html}")


def _install(target: "Target", outcome: "Outcome", say: Any) -> None:
    """Write the chosen configuration to the working copy, and have a server load it from there, as users' will."""
    from pilot_cli.own_server import serve_model
    from pilot_cli.tune_target import install_tuned

    repository, files = target.model_dir.parent, dict(outcome.member_files)
    if outcome.config_file is not None:
        files[target.model] = outcome.config_file
    if not files:
        chosen_before = "configuration that an earlier tune chose" if target.tuned else "installed configuration"
        say(f"The {chosen_before if outcome.chosen is None else 'untuned configuration'} stays")
        return
    for name, file in files.items():
        install_tuned(repository / name, file.read_text())
        say(f"Written to {repository / name / 'config.pbtxt'}; the untuned one is beside it")
    serve_model(repository, target.model, say).stop()
    say("Loaded from there")

"""`tritonpilot serve`: a Triton server on a model repository, watched until Ctrl-C."""

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import click

from pilot_base.progress import Say
from pilot_cli.output import json_option, progress
from pilot_cli.repositories import default_repository
from pilot_server.errors import ServerError
from pilot_server.ports import DEFAULT_PORTS, Ports
from pilot_server.running import RunningServer


@click.command("serve")
@click.argument("repository", required=False, type=click.Path(path_type=Path))
@click.option(
    "--mode",
    type=click.Choice(["auto", "embedded", "docker"]),
    default="auto",
    show_default=True,
    help="auto: a process of this machine; a container where that cannot run, or where --image or --gpus is given.",
)
@click.option("--image", help="NVIDIA's container image, such as nvcr.io/nvidia/tritonserver:26.07-py3.")
@click.option("--gpus", help="GPUs for the container, in docker's words: all, 1, device=0.")
@click.option("--http-port", type=click.IntRange(1, 65535), default=DEFAULT_PORTS.http, show_default=True)
@click.option("--grpc-port", type=click.IntRange(1, 65535), default=DEFAULT_PORTS.grpc, show_default=True)
@click.option("--metrics-port", type=click.IntRange(1, 65535), default=DEFAULT_PORTS.metrics, show_default=True)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is open to the network."
)
@click.option("--model", "names", multiple=True, help="Load only this model; may be repeated.  [default: all]")
@click.option("--log-file", type=click.Path(path_type=Path, dir_okay=False), help="Keep the server's log here.")
@click.option("--dry-run", is_flag=True, help="Print the docker command instead of running it.")
@json_option
def command(
    repository: Path | None,
    mode: str,
    image: str | None,
    gpus: str | None,
    http_port: int,
    grpc_port: int,
    metrics_port: int,
    host: str,
    names: tuple[str, ...],
    log_file: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Start a Triton server on REPOSITORY and watch over it.

    Without REPOSITORY it is build/model_repository (what `tune` makes), else the repository of this project.
    A model whose files are not exported yet is skipped, and the command that makes them is printed.
    A Python model whose process dies is loaded again.

    Ctrl-C stops the server and exits with 0; running requests get 10 seconds, a second Ctrl-C ends them at once.
    With --json, one line with the addresses and the models is printed when the server is ready.
    """
    from pilot_cli.servable import models_of, require_models
    from pilot_server import container
    from pilot_server.embedded import existing_repository, start_embedded

    ports = Ports(http_port, grpc_port, metrics_port)
    repository = existing_repository(repository or default_repository())
    if mode == "embedded" and (image or gpus):
        raise click.UsageError("--image and --gpus are for a container: leave them, or say --mode docker")
    say = progress()
    models = models_of(repository)
    skipped = {model.name: model.missing for model in models if model.missing is not None}
    loadable = [model.name for model in models if model.missing is None]
    require_models(repository, models, names)
    wanted = list(names) or loadable

    in_container = mode == "docker" or (mode == "auto" and (image or gpus or not _can_embed(say)))
    options: dict[str, Any] = {"ports": ports, "host": host}
    container_options: dict[str, Any] = {"image": image or container.DEFAULT_IMAGE, "gpus": gpus}
    if dry_run:
        if not in_container:
            raise click.UsageError("--dry-run prints a docker command: add --mode docker")
        argv = container.docker_argv(repository, load=wanted, **options, **container_options)
        click.echo(json.dumps(argv) if as_json else container.as_shell_command(argv))
        return
    options |= {"load": (), "log_file": log_file, "say": say}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if in_container:
            server = container.start_docker(repository, **options, **container_options)
        else:
            server = start_embedded(repository, **options)
        _serve(server, repository, wanted, {} if names else skipped, say, as_json, host)
    except KeyboardInterrupt:
        # How a server is ended, and no failure of it.
        return


def _serve(
    server: RunningServer,
    repository: Path,
    wanted: list[str],
    skipped: dict[str, str],
    say: Say,
    as_json: bool,
    host: str,
) -> None:
    from pilot_server.watch import INTERVAL_S, StubWatch

    try:
        failed = _load(server, wanted, say)
        watch = None if server.pid is None else StubWatch(server.pid, server.http_url, say)
        if watch is not None:
            watch.look()  # It can only name the model of a stub that it has seen alive.
        if as_json:
            loaded = [name for name in wanted if name not in failed]
            urls = {"http": server.http_url, "grpc": server.grpc_url, "metrics": server.metrics_url}
            state = {"repository": str(repository), "loaded": loaded, "failed": failed, "skipped": skipped}
            click.echo(json.dumps({**urls, "pid": server.pid, **state}))
        else:
            _print_state(server, repository, wanted, failed, skipped, host)
        stopped = threading.Event()  # Never set: Ctrl-C ends the wait.
        while server.is_alive():
            if watch is not None:
                watch.look()
            stopped.wait(INTERVAL_S)
        raise server.died()
    except KeyboardInterrupt:
        say("Stopping (running requests get up to 10 s; Ctrl-C again ends them at once)")
        raise
    finally:
        server.stop()


def _load(server: RunningServer, wanted: list[str], say: Say) -> dict[str, str]:
    """Load the models one by one; returns the server's reasons for those that it refused."""
    from pilot_client.connection import one_line
    from pilot_server import control

    failed = {}
    for name in wanted:
        say(f"Loading {name}")
        try:
            control.load(server.http_url, name)
        except ServerError as error:
            if not server.is_alive():
                raise
            failed[name] = one_line(str(error))
    return failed


def _print_state(
    server: RunningServer,
    repository: Path,
    wanted: list[str],
    failed: dict[str, str],
    skipped: dict[str, str],
    host: str,
) -> None:
    click.echo(f"Serving {repository} (pid {server.pid})")
    click.echo(f"  http     {server.http_url}\n  grpc     {server.grpc_url}\n  metrics  {server.metrics_url}/metrics")
    click.echo(f"  log      {server.log_file}")
    if host != "127.0.0.1":
        click.echo(f"  Listening on {host}: whoever reaches this machine can use it and load models into it.")
    if not wanted and not skipped:
        click.echo("  The repository holds no model. Load one with `tritonpilot export`")
    for name in wanted:
        click.echo(f"  {name}: {'FAILED ' + failed[name] if name in failed else 'ready'}")
    for name, reason in skipped.items():
        click.echo(f"  {name}: skipped, {reason}")
    click.echo("Ctrl-C stops it.")


def _can_embed(say: Say) -> bool:
    """Whether a server can run as a process here. Says which way is taken when it cannot."""
    from pilot_server.container import docker_problem
    from pilot_server.toolchain import platform_problem

    problem = None if os.environ.get("TRITONSERVER") else platform_problem()
    if problem is None or docker_problem() is not None:
        return True  # Where neither way works, the start says why.
    say(f"{problem}. Serving in a container instead")
    return False

"""Runs NVIDIA's Triton container on a model repository, with our backends mounted into it."""

import os
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pilot_base.progress import Say, silent
from pilot_server.embedded import existing_repository
from pilot_server.errors import ServerError
from pilot_server.places import backends_dir
from pilot_server.ports import DEFAULT_PORTS, Ports, require_free
from pilot_server.run_folder import make_run_folder, remove_run_folder
from pilot_server.running import KeptServer, RunningServer, reachable_host, start_keeper, wait_until_ready

DEFAULT_IMAGE = "nvcr.io/nvidia/tritonserver:26.07-py3"
_SHM_SIZE = "1g"
# Ours only stands in for these, which the container has in C++.
_STAND_INS = frozenset({"onnxruntime"})


def docker_argv(
    repository: Path,
    *,
    image: str = DEFAULT_IMAGE,
    load: Sequence[str] = ("*",),
    ports: Ports = DEFAULT_PORTS,
    host: str = "127.0.0.1",
    gpus: str | None = None,
    extra_args: Sequence[str] = (),
    name: str | None = None,
) -> list[str]:
    """The `docker run` command: the server in the foreground, its ports published on `host` alone.

    `gpus` is docker's own word for them: "all", "1", "device=0".

    Raises:
        ServerError: a path that docker's --mount cannot express, or no repository.
    """
    mounts = {existing_repository(repository): "/models"}
    for backend in sorted(backends_dir().iterdir()):
        if backend.is_dir() and backend.name not in _STAND_INS and not backend.name.startswith((".", "_")):
            mounts[backend] = f"/opt/tritonserver/backends/{backend.name}"
    argv = ["docker", "run", "--rm", f"--name={name or f'tritonpilot-{secrets.token_hex(4)}'}"]
    # The sizes that NVIDIA recommends; 64 MB, docker's default for /dev/shm, is too small for Python models.
    argv += [f"--shm-size={_SHM_SIZE}", "--ulimit=memlock=-1", "--ulimit=stack=67108864"]
    if gpus is not None:
        argv.append(f"--gpus={gpus}")
    for (_, outside), inside in zip(ports.named(), (8000, 8001, 8002), strict=True):
        argv.append(f"--publish={host}:{outside}:{inside}")
    for source, target in mounts.items():
        if "," in str(source):
            raise ServerError(f"docker cannot mount a path with a comma: {source}. Rename the folder")
        argv.append(f"--mount=type=bind,source={source},target={target},readonly")
    argv += [image, "tritonserver", "--model-repository=/models", "--model-control-mode=explicit"]
    return [*argv, *(f"--load-model={model}" for model in load), *extra_args]


def as_shell_command(argv: Sequence[str]) -> str:
    """One option a line, quoted so that a shell takes it as it is."""
    start, rest = shlex.join(argv[:3]), [shlex.quote(word) for word in argv[3:]]
    return " \\\n  ".join([start, *rest])


def start_docker(
    repository: Path,
    *,
    image: str = DEFAULT_IMAGE,
    load: Sequence[str] = ("*",),
    ports: Ports = DEFAULT_PORTS,
    host: str = "127.0.0.1",
    gpus: str | None = None,
    log_file: Path | None = None,
    extra_args: Sequence[str] = (),
    ready_timeout_s: float = 1800.0,
    say: Say = silent,
) -> RunningServer:
    """A ready server in a container, which ends with us. The time to ready includes the pull of the image.

    Raises:
        ServerError: docker is not here or its daemon does not answer.
        PortTakenError: a port of `ports` is taken.
        StartError: the container ended (the end of its log is in the message), or was not ready in time.
    """
    require_docker()
    require_free(ports, host)
    folder = make_run_folder()
    log = log_file or folder.path / "server.log"
    name = folder.path.name
    argv = docker_argv(
        repository, image=image, load=load, ports=ports, host=host, gpus=gpus, extra_args=extra_args, name=name
    )
    say(f"Starting {image} (an image that is not here yet is pulled first: several GB)")
    try:
        # docker passes SIGTERM on to the container, but not SIGKILL: hence the clean-up.
        keeper, _docker_pid = start_keeper(argv, folder, log, os.environ, cleanup=["docker", "kill", name])
    except BaseException:
        remove_run_folder(folder.path)
        raise
    finally:
        os.close(folder.lock_fd)
    http_url, grpc_url, metrics_url = (f"{reachable_host(host)}:{port}" for _, port in ports.named())
    server = KeptServer(http_url, grpc_url, metrics_url, None, keeper, folder.path, log)
    try:
        if not wait_until_ready(http_url, ready_timeout_s, server.is_alive):
            raise server.died()
    except BaseException:
        server.stop(drain_s=0.0)
        raise
    return server


def require_docker() -> None:
    """
    Raises:
        ServerError: no docker command, or its daemon does not answer.
    """
    if (problem := docker_problem()) is not None:
        raise ServerError(f"{problem}, or serve with --mode embedded")


def docker_problem() -> str | None:
    """What keeps us from running a container, and the mend; None when nothing does."""
    docker = shutil.which("docker")
    if docker is None:
        return "There is no docker command on PATH. Install docker (https://docs.docker.com/engine/install)"
    try:
        done = subprocess.run(
            [docker, "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{docker} does not answer ({error}). Start its daemon"
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1].rstrip(".?! ")
        return f"docker is here, but its daemon does not answer ({reason}). Start it: sudo systemctl start docker"
    return None

"""Starts tritonserver as a process of this machine, on 127.0.0.1 and under a keeper."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import psutil

from pilot_base.progress import Say, silent
from pilot_server.errors import PortTakenError, PreflightError, ServerError, StartError
from pilot_server.places import backends_dir
from pilot_server.ports import Ports, free_ports, require_free
from pilot_server.preflight import (
    libpython,
    require_environment,
    require_plain_names,
    require_shared_memory,
    server_environment,
)
from pilot_server.run_folder import RunFolder, is_shell_safe, make_run_folder, remove_run_folder
from pilot_server.running import KeptServer, RunningServer, reachable_host, start_keeper, wait_until_ready
from pilot_server.toolchain import ServerToolchain, tritonserver

_EXIT_TIMEOUT_S = 10
_PORT_ATTEMPTS = 5


def start_embedded(
    repository: Path,
    *,
    load: Sequence[str] = ("*",),
    ports: Ports | None = None,
    host: str = "127.0.0.1",
    log_file: Path | None = None,
    extra_args: Sequence[str] = (),
    ready_timeout_s: float = 60.0,
    say: Say = silent,
) -> RunningServer:
    """A ready server on `repository`, in explicit model control; `load` names the models to start with, "*" is all.

    Without `ports` it takes free ones. The log goes to `log_file`, else to a file that ends with the server.

    Raises:
        PortTakenError: a port of `ports` is taken.
        PreflightError: this machine or this Python lacks something that the server needs.
        StartError: the server died (its last words are in the message) or was not ready in time.
    """
    repository = existing_repository(repository)
    toolchain = tritonserver(say)
    require_environment(toolchain)
    require_plain_names(repository)
    require_shared_memory(repository)
    if ports is not None:
        require_free(ports, host)
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        chosen = ports or free_ports(host)
        folder = make_run_folder()
        try:
            return _start(toolchain, folder, repository, load, chosen, host, log_file, extra_args, ready_timeout_s)
        except PortTakenError:
            # Somebody was faster: with ports of our own choice, choose again.
            if ports is not None or attempt == _PORT_ATTEMPTS:
                raise
        finally:
            os.close(folder.lock_fd)
    raise StartError(f"No free ports on {host} after {_PORT_ATTEMPTS} attempts")


def _start(
    toolchain: ServerToolchain,
    folder: RunFolder,
    repository: Path,
    load: Sequence[str],
    ports: Ports,
    host: str,
    log_file: Path | None,
    extra_args: Sequence[str],
    ready_timeout_s: float,
) -> RunningServer:
    log = log_file or folder.path / "server.log"
    try:
        _assemble(toolchain, folder.path, repository)
        argv = server_argv(toolchain, folder.path, repository, load, ports, host, extra_args)
        keeper, pid = start_keeper(argv, folder, log, server_environment(toolchain, folder.path / "lib"))
    except BaseException:
        remove_run_folder(folder.path)
        raise
    http_url, grpc_url, metrics_url = (f"{reachable_host(host)}:{port}" for _, port in ports.named())
    server = KeptServer(http_url, grpc_url, metrics_url, pid, keeper, folder.path, log)
    try:
        if not wait_until_ready(http_url, ready_timeout_s, server.is_alive):
            raise _why_it_died(server, ports, host)
        if not _listens(pid, ports.http):
            raise PortTakenError(f"Port {ports.http} (http) on {host} was taken by another server. Start it again")
    except BaseException:
        server.stop(drain_s=0.0)
        raise
    return server


def server_argv(
    toolchain: ServerToolchain,
    folder: Path,
    repository: Path,
    load: Sequence[str],
    ports: Ports,
    host: str,
    extra_args: Sequence[str],
) -> list[str]:
    """The command line of the server, whose folder has been assembled."""
    # Its own path where that can be given, because the server's messages quote it.
    served = repository if is_shell_safe(str(repository)) else folder / "repository"
    backends = sorted((folder / "backends").iterdir())
    python_backends = [path for path in backends if path.name == "python" or (path / "model.py").exists()]
    argv = [
        str(toolchain.binary),
        f"--model-repository={served}",
        f"--backend-directory={folder / 'backends'}",
        *(f"--backend-config={backend.name},shm-region-prefix-name={folder.name}" for backend in python_backends),
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in load),
        f"--exit-timeout-secs={_EXIT_TIMEOUT_S}",
    ]
    if toolchain.caches is not None:
        argv.append(f"--cache-directory={toolchain.caches}")
    for name, port in ports.named():
        argv += [f"--{name}-address={host}", f"--{name}-port={port}"]
    return [*argv, *extra_args]


def existing_repository(repository: Path) -> Path:
    """The absolute path of a folder that is there.

    Raises:
        ServerError: there is none.
    """
    path = repository.expanduser().absolute()
    if not path.is_dir():
        raise ServerError(
            f"There is no model repository at {path}. It is a folder that holds a folder with a config.pbtxt per model"
        )
    return path


def _assemble(toolchain: ServerToolchain, folder: Path, repository: Path) -> None:
    """Links to everything that the server reads: one folder of backends, and paths without a space."""
    backends, library = folder / "backends", folder / "lib"
    for made in (backends, backends / "python", library):
        made.mkdir()
    (folder / "repository").symlink_to(repository)
    for file in (toolchain.backends / "python").iterdir():
        # Copied: for a Python-based backend the server refuses a library whose link leads out of the folder.
        shutil.copy2(file, backends / "python" / file.name)
    stub = backends / "python" / toolchain.stub.name
    if not stub.exists():
        stub.symlink_to(toolchain.stub)
    # The server's own backend of a name (onnxruntime in NVIDIA's container) goes before ours.
    for source in (toolchain.backends, backends_dir()):
        for backend in source.iterdir() if source.is_dir() else ():
            if backend.is_dir() and not (backends / backend.name).exists():
                (backends / backend.name).symlink_to(backend)
    if (shared := libpython()) is not None:
        (library / shared.name).symlink_to(shared)


def _listens(pid: int, port: int) -> bool:
    """Whether it is this server that answers on the port, and not another that took it first."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(item.status == psutil.CONN_LISTEN and item.laddr.port == port for item in connections)


def _why_it_died(server: KeptServer, ports: Ports, host: str) -> ServerError:
    log = server.log_tail(lines=200)
    if "already in use" in log:
        require_free(ports, host)
        return PortTakenError(f"A port of {ports} on {host} was taken while the server started. Start it again")
    if "Unable to initialize shared memory key" in log or "Failed to increase the shared memory pool" in log:
        return PreflightError(
            "/dev/shm is full: the server's Python models could not get their shared memory. "
            "Enlarge it (in a container: --shm-size=1g), or lower the instance counts"
        )
    return server.died()

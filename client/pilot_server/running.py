"""A server that answers, however it was started."""

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self

from pilot_server import control
from pilot_server.errors import ServerError, StartError
from pilot_server.run_folder import RunFolder, remove_run_folder

_POLL_S = 0.05
_TAIL_LINES = 12
# What an empty server gets to send the last bytes of its answers.
_CLOSE_S = 0.2
# Tables, notes (I1231 ...), warnings, and what every machine without a GPU is told.
_NOT_TELLING = re.compile(r"[|+]|[IW]\d{4} |.*(CudaDriverHelper|Failed to initialize NVML)")


class RunningServer:
    """Addresses of a ready server, and the means to end it. One thread stops it; the rest may be called from any.

    Addresses are "host:port" without a scheme. `pid` and `log_file` are the server's own, None where they are not ours.
    """

    def __init__(
        self,
        http_url: str,
        grpc_url: str,
        metrics_url: str,
        pid: int | None = None,
        log_file: Path | None = None,
    ) -> None:
        self.http_url = http_url
        self.grpc_url = grpc_url
        self.metrics_url = metrics_url
        self.pid = pid
        self.log_file = log_file

    def stop(self, drain_s: float = 10.0) -> None:
        """End the server if it is ours; requests that run get `drain_s` seconds. Does nothing the second time."""

    def is_alive(self) -> bool:
        """Whether the server answers "live" now."""
        return is_healthy(self.http_url, "live")

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its log, empty where the log is not ours."""
        return ""

    def died(self) -> StartError:
        """The error to raise for a server that died, with the end of its log."""
        lines = [line for line in self.log_tail(200).splitlines() if line.strip()]
        # What went wrong stands between tables and notes of the shutdown.
        telling = [line for line in lines if _NOT_TELLING.match(line) is None] or lines
        tail = "\n".join(f"  {line}" for line in telling[-_TAIL_LINES:])
        return StartError(f"The server at {self.http_url} died. Its log ends with:\n{tail}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class KeptServer(RunningServer):
    """A server under a keeper (keeper.py), with a folder of its own (run_folder.py)."""

    def __init__(
        self,
        http_url: str,
        grpc_url: str,
        metrics_url: str,
        pid: int | None,
        keeper: subprocess.Popen[bytes],
        folder: Path,
        log_file: Path,
    ) -> None:
        super().__init__(http_url, grpc_url, metrics_url, pid, log_file)
        self._keeper = keeper
        self._folder = folder
        self._log = log_file
        self._last_lines: list[str] = []

    def stop(self, drain_s: float = 10.0) -> None:
        """As above; 0 ends it at once. Interrupted (Ctrl-C) while it drains, it ends at once too."""
        keeper = self._keeper
        if keeper.stdin is None or keeper.stdin.closed:
            return
        try:
            if drain_s > 0:
                self._drain(drain_s)
            self._order_stop(_CLOSE_S if drain_s > 0 else 0.0)
            keeper.wait()
        except BaseException:
            self._order_stop(0.0)
            raise
        finally:
            keeper.wait()
            with contextlib.suppress(BrokenPipeError):
                keeper.stdin.close()
            if keeper.stdout is not None:
                keeper.stdout.close()
            self._last_lines = _last_lines(self._log, 200)
            remove_run_folder(self._folder)

    def _drain(self, drain_s: float) -> None:
        """Unload every model, which waits for its requests. (SIGTERM would wait for idle connections as well.)"""
        deadline = time.monotonic() + drain_s
        url = self.http_url
        try:
            # A request to an ensemble holds the models of its later steps, so the order does not matter.
            for name in control.busy_models(url):
                control.unload(url, name)
            while time.monotonic() < deadline and control.busy_models(url):
                time.sleep(_POLL_S)
        except ServerError:
            return  # It does not answer: there is nothing to wait for.

    def _order_stop(self, drain_s: float) -> None:
        # The keeper ends by itself when the server does: then there is nobody to tell.
        if self._keeper.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._keeper.stdin.write(b"stop %f\n" % drain_s)
                self._keeper.stdin.flush()

    def is_alive(self) -> bool:
        """Whether the server's process runs."""
        return self._keeper.poll() is None

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join((_last_lines(self._log, lines) or self._last_lines)[-lines:])


def start_keeper(
    argv: Sequence[str],
    folder: RunFolder,
    log: Path,
    environment: Mapping[str, str],
    cleanup: Sequence[str] | None = None,
) -> tuple[subprocess.Popen[bytes], int]:
    """Start `argv` under a keeper, and return the keeper and the pid of `argv`. `cleanup` runs once that has ended.

    Raises:
        StartError: `argv` cannot be started, or `log` cannot be written.
    """
    try:
        log.touch()
    except OSError as error:
        raise StartError(f"The log file {log} cannot be written: {error.strerror}. Name one that can") from error
    spec = {
        "argv": argv,
        "log_file": str(log),
        "folder": str(folder.path),
        "shm_prefix": folder.shm_prefix,
        "cleanup": cleanup,
    }
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")), json.dumps(spec)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(environment),
        start_new_session=True,
        pass_fds=(folder.lock_fd,),
    )
    if keeper.stdin is None or keeper.stdout is None:
        raise StartError("The keeper of the server has no pipes")
    word, _, rest = keeper.stdout.readline().decode().strip().partition(" ")
    if word == "started":
        return keeper, int(rest)
    keeper.stdin.close()
    keeper.stdout.close()
    keeper.wait()
    raise StartError(f"{argv[0]} could not be started: {rest or 'its keeper died'}")


def connect(http_url: str, grpc_url: str, metrics_url: str) -> RunningServer:
    """A server that somebody else started: `stop` leaves it alone.

    Raises:
        ServerError: nothing answers there.
    """
    server = RunningServer(http_url, grpc_url, metrics_url)
    if not server.is_alive():
        raise ServerError(
            f"No Triton server answers at http://{http_url}/v2/health/live. Start it, or mend the address"
        )
    return server


def reachable_host(host: str) -> str:
    """Where a client on this machine finds a server that listens on `host`."""
    return "127.0.0.1" if host == "0.0.0.0" else host


def is_healthy(http_url: str, what: str, timeout_s: float = 2.0) -> bool:
    """Whether GET /v2/health/`what` ("live" or "ready") answers 200."""
    connection = HTTPConnection(http_url, timeout=timeout_s)
    try:
        connection.request("GET", f"/v2/health/{what}")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def wait_until_ready(http_url: str, timeout_s: float, is_alive: Callable[[], bool]) -> bool:
    """True once the server is ready, False when it died first.

    Raises:
        StartError: neither happened in time.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not is_alive():
            return False
        if is_healthy(http_url, "ready"):
            return True
        # The server has no event to wait for: health is asked, not told.
        time.sleep(_POLL_S)
    raise StartError(f"The server at {http_url} was not ready after {timeout_s:.0f} s")


def _last_lines(path: Path, count: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 64 * 1024))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []

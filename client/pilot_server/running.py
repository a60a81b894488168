"""A server that answers, however it was started."""

import contextlib
import subprocess
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self

from pilot_server.errors import StartError
from pilot_server.run_folder import remove_run_folder

_POLL_S = 0.05


class RunningServer:
    """Addresses of a ready server, and the means to end it. One thread stops it; the rest may be called from any.

    Addresses are "host:port" without a scheme. `pid` is the server's own, None where it is not a process of ours.
    """

    def __init__(self, http_url: str, grpc_url: str, metrics_url: str, pid: int | None = None) -> None:
        self.http_url = http_url
        self.grpc_url = grpc_url
        self.metrics_url = metrics_url
        self.pid = pid

    def stop(self, drain_s: float = 10.0) -> None:
        """End the server if it is ours; requests that run get `drain_s` seconds. Does nothing the second time."""

    def is_alive(self) -> bool:
        """Whether the server answers "live" now."""
        return is_healthy(self.http_url, "live")

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its log, empty where the log is not ours."""
        return ""

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
        pid: int,
        keeper: subprocess.Popen[bytes],
        folder: Path,
        log_file: Path,
    ) -> None:
        super().__init__(http_url, grpc_url, metrics_url, pid)
        self._keeper = keeper
        self._folder = folder
        self._log_file = log_file
        self._last_lines: list[str] = []

    def stop(self, drain_s: float = 10.0) -> None:
        keeper = self._keeper
        if keeper.stdin is None or keeper.stdin.closed:
            return
        # The keeper may have ended with the server: then there is nobody to tell, and closing tries again.
        with contextlib.suppress(BrokenPipeError):
            keeper.stdin.write(b"stop %f\n" % drain_s)
            keeper.stdin.flush()
        try:
            keeper.wait()
        finally:
            with contextlib.suppress(BrokenPipeError):
                keeper.stdin.close()
            if keeper.stdout is not None:
                keeper.stdout.close()
            self._last_lines = _last_lines(self._log_file, 200)
            remove_run_folder(self._folder)

    def is_alive(self) -> bool:
        """Whether the server's process runs."""
        return self._keeper.poll() is None

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join((_last_lines(self._log_file, lines) or self._last_lines)[-lines:])


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

"""A small process between us and one server, so that the server never outlives us and leaves nothing in /dev/shm.

    our process --stdin-->  keeper  --starts-->  tritonserver  --starts-->  stubs        one process group of their own
                <-stdout--

    stdin   "stop SECONDS": end the server, let it drain for so long; 0 is at once, also while it drains.
            End of file: our process has gone, however it died.
    stdout  "started PID" once, or "failed REASON".
    exit    when the server has ended, and with it its process group, its shared memory, what `cleanup` names, the
            Python backend's folder in /tmp, and (if our process has gone) its own folder.

It runs as a plain script with the standard library alone. If it is itself killed, the kernel ends the server
(PR_SET_PDEATHSIG), and the next start sweeps the rest (run_folder.sweep).
"""

import contextlib
import ctypes
import json
import math
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PARENT_GONE = -1.0
_ORPHAN_DRAIN_S = 2.0
# Beyond the drain, the server takes its time to end.
_EXIT_S = 1.0
# Whatever started it: the keeper of a container must see the servers beside it, too.
SERVER_NAME = "tritonserver"
# Of /proc/PID/stat, after the name: when the process was started, in clock ticks after the boot, which is known to 1 s.
_START_TICKS = 19
_CLOCK_ERROR_S = 2.0


def main() -> int:
    # argv[1]: {"argv": [...], "log_file": path, "folder": path, "shm_prefix": str, "cleanup": [...] or null}
    spec = json.loads(sys.argv[1])
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    try:
        with open(spec["log_file"], "ab") as log:
            # This process has one thread, which makes preexec_fn safe, and which the death signal is tied to.
            server = subprocess.Popen(
                spec["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
    except OSError as error:
        _tell(f"failed {error}")
        return 1
    _tell(f"started {server.pid}")
    order = _wait_for_order(server, wakeup_read, deadline=None)
    if order is not None:
        _end(server, wakeup_read, _ORPHAN_DRAIN_S if order == _PARENT_GONE else order)
    with contextlib.suppress(ProcessLookupError):
        # Stubs that the server has left behind.
        os.killpg(server.pid, signal.SIGKILL)
    if spec["cleanup"] is not None:
        subprocess.run(spec["cleanup"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    for region in Path("/dev/shm").glob(spec["shm_prefix"] + "*"):
        region.unlink(missing_ok=True)
    remove_environment_folders(Path("/tmp"), Path("/proc"), SERVER_NAME)
    if order == _PARENT_GONE:
        shutil.rmtree(spec["folder"], ignore_errors=True)
    return server.returncode & 0xFF


def _wait_for_order(server: subprocess.Popen[bytes], wakeup: int, deadline: float | None) -> float | None:
    """Seconds to drain, or _PARENT_GONE; None when the server has ended by itself or the deadline has passed."""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(wakeup, selectors.EVENT_READ)
        while server.poll() is None:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            for key, _ in selector.select(left_s):
                if key.fd == 0:
                    words = os.read(0, 100).split()
                    return float(words[-1]) if words else _PARENT_GONE
                if any(number != signal.SIGCHLD for number in os.read(wakeup, 100)):
                    return 0.0
    return None


def _end(server: subprocess.Popen[bytes], wakeup: int, drain_s: float) -> None:
    """SIGTERM, then SIGKILL: a dead stub makes the server wait out its own exit timeout."""
    if drain_s > 0:
        server.terminate()
        # Any further order means: now.
        _wait_for_order(server, wakeup, deadline=time.monotonic() + drain_s + _EXIT_S)
    server.kill()
    server.wait()


def remove_environment_folders(parent: Path, proc: Path, server_name: str) -> None:
    """Remove the empty folders that killed servers have left.

    The Python backend makes one (`python_env_XXXXXX`, in /tmp and nowhere else) for every server, and removes it only
    where the server ends in peace. Nothing says whose a folder is; one that is older than every running server
    (processes named `server_name`) is nobody's.
    """
    boot_s = next(float(line.split()[1]) for line in (proc / "stat").read_text().splitlines() if line[:5] == "btime")
    oldest_s = math.inf
    for process in proc.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, fields = process.read_text().partition("(")[2].rsplit(")", 1)
            if name == server_name:
                oldest_s = min(oldest_s, boot_s + int(fields.split()[_START_TICKS]) / os.sysconf("SC_CLK_TCK"))
    for folder in parent.glob("python_env_??????"):
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < oldest_s - _CLOCK_ERROR_S:
                folder.rmdir()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _tell(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    sys.exit(main())

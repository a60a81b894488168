"""A small process between us and one server, so that the server never outlives us and leaves nothing in /dev/shm.

    our process --stdin-->  keeper  --starts-->  tritonserver  --starts-->  stubs        one process group of their own
                <-stdout--

    stdin   "stop SECONDS": end the server, let it drain for so long. End of file: our process has gone, anyhow.
    stdout  "started PID" once, or "failed REASON".
    exit    when the server has ended and its process group, shared memory and (if our process has gone) folder too.

It runs as a plain script with the standard library alone. If it is itself killed, the kernel ends the server
(PR_SET_PDEATHSIG), and the next start sweeps the rest (run_folder.sweep).
"""

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_ORPHAN_DRAIN_S = 2.0


def main() -> int:
    # argv[1]: {"argv": [...], "log_file": path, "folder": path, "shm_prefix": str}
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
    drain_s = _wait_for_order(server, wakeup_read)
    if drain_s is not None:
        _end(server, wakeup_read, _ORPHAN_DRAIN_S if drain_s < 0 else drain_s)
    with contextlib.suppress(ProcessLookupError):
        # Stubs that the server has left behind.
        os.killpg(server.pid, signal.SIGKILL)
    for region in Path("/dev/shm").glob(spec["shm_prefix"] + "*"):
        region.unlink(missing_ok=True)
    if drain_s is not None and drain_s < 0:
        shutil.rmtree(spec["folder"], ignore_errors=True)
    return server.returncode & 0xFF


def _wait_for_order(server: subprocess.Popen[bytes], wakeup: int) -> float | None:
    """Seconds to drain; negative when our process has gone; None when the server has ended by itself."""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(wakeup, selectors.EVENT_READ)
        while server.poll() is None:
            for key, _ in selector.select():
                if key.fd == 0:
                    words = os.read(0, 100).split()
                    return float(words[1]) if words else -1.0
                if any(number != signal.SIGCHLD for number in os.read(wakeup, 100)):
                    return 0.0
    return None


def _end(server: subprocess.Popen[bytes], wakeup: int, drain_s: float) -> None:
    """SIGTERM, then SIGKILL to the whole group: a dead stub makes the server wait out its own exit timeout."""
    deadline = time.monotonic() + drain_s + 1.0
    server.terminate()
    with selectors.DefaultSelector() as selector:
        selector.register(wakeup, selectors.EVENT_READ)
        while server.poll() is None and time.monotonic() < deadline:
            if selector.select(deadline - time.monotonic()):
                os.read(wakeup, 100)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _tell(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    sys.exit(main())

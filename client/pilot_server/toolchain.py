"""The programs that we run: tritonserver and perf_analyzer, from the machine or from pinned wheels.

The pinned server is NVIDIA's 2.51.0 build inside the wheel of PyTriton, which we use as an archive of files:

    pytriton/tritonserver/bin/tritonserver
    pytriton/tritonserver/backends/python/         libtriton_python.so, triton_python_backend_utils.py
    pytriton/tritonserver/python_backend_stubs/    a stub for each Python version
    pytriton/tritonserver/caches/
    nvidia_pytriton.libs/                          the libraries that the binaries were linked with
"""

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pilot_base.packages import PinnedPackage, cache_dir, fetch
from pilot_base.progress import Say, silent
from pilot_server.errors import ToolchainError

SERVER_PACKAGE = PinnedPackage(
    "nvidia-pytriton", "0.7.0", "21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df", size_mb=55
)
ANALYZER_PACKAGE = PinnedPackage(
    "tritonclient", "2.51.0", "c485bb0123bdf310f90bc8b03d3489b28df2ffed55b30c7eee0b795b48113d52", size_mb=14
)
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
# The wheel has stubs for more, but numpy < 2 has wheels only up to 3.12.
_PYTHON_VERSIONS = ("3.11", "3.12")
_MIN_GLIBC = (2, 35)
_STUB = "triton_python_backend_stub"


@dataclass(frozen=True)
class ServerToolchain:
    """The files of one installed server.

    `stub` is the program that runs Python models. `is_pinned` tells the pinned wheel from the user's own server, whose
    Python and numpy are its own affair.
    """

    binary: Path
    backends: Path
    stub: Path
    caches: Path | None
    library_dirs: tuple[Path, ...]
    is_pinned: bool


@dataclass(frozen=True)
class PerfAnalyzer:
    """A perf_analyzer that starts: run `argv0` with `env` laid over the environment."""

    argv0: Path
    env: dict[str, str]
    version: str


def tritonserver(say: Say = silent) -> ServerToolchain:
    """The server that TRITONSERVER names (its binary or its folder), else the pinned one, downloaded when needed.

    Raises:
        ToolchainError: TRITONSERVER names no server, or the pinned one cannot run on this machine or Python.
        DownloadError: the pinned wheel cannot be had.
    """
    named = os.environ.get("TRITONSERVER")
    if named:
        return _named_server(Path(named).expanduser())
    if (problem := platform_problem()) is not None:
        raise ToolchainError(problem)
    folder = fetch(SERVER_PACKAGE, say)
    root = folder / "pytriton" / "tritonserver"
    return ServerToolchain(
        binary=root / "bin" / "tritonserver",
        backends=root / "backends",
        stub=root / "python_backend_stubs" / PYTHON_VERSION / _STUB,
        caches=root / "caches",
        library_dirs=(folder / "nvidia_pytriton.libs",),
        is_pinned=True,
    )


def platform_problem() -> str | None:
    """What keeps the pinned server from this machine or this Python, and the mend; None when nothing does."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        return f"The embedded server is for Linux on x86_64, this is {system} on {machine}: serve with --mode docker"
    _, glibc = platform.libc_ver()
    if not glibc or tuple(map(int, glibc.split("."))) < _MIN_GLIBC:
        wanted = ".".join(map(str, _MIN_GLIBC))
        return (
            f"The embedded server needs glibc {wanted} or newer (Debian 12, Ubuntu 22.04), this machine has "
            f"{glibc or 'another libc'}: serve with --mode docker"
        )
    if PYTHON_VERSION not in _PYTHON_VERSIONS:
        return (
            f"Python {PYTHON_VERSION} cannot run the embedded server's Python models (numpy < 2 has no wheels for it). "
            "Create the environment with Python 3.11 or 3.12"
        )
    return None


def perf_analyzer(say: Say = silent) -> PerfAnalyzer:
    """The first that starts of: PERF_ANALYZER, PATH, the perf-analyzer package, the pinned 2.51.0.

    Raises:
        ToolchainError: PERF_ANALYZER names one that does not start, or the pinned one does not start here.
        DownloadError: the pinned wheels cannot be had.
    """
    return installed_analyzer(say) or _pinned_analyzer(say)


def installed_analyzer(say: Say = silent) -> PerfAnalyzer | None:
    """As perf_analyzer, but never the pinned one: nothing is downloaded."""
    named = os.environ.get("PERF_ANALYZER")
    if named:
        path = Path(named).expanduser().absolute()
        try:
            return PerfAnalyzer(path, {}, _analyzer_version(path, {}))
        except ToolchainError as error:
            raise ToolchainError(
                f"PERF_ANALYZER: {error}. Name a perf_analyzer that starts, or unset PERF_ANALYZER"
            ) from error
    # The perf-analyzer package puts its program beside this interpreter, which need not be on PATH.
    for folder in (os.environ.get("PATH"), str(Path(sys.prefix) / "bin")):
        if found := shutil.which("perf_analyzer", path=folder):
            try:
                return PerfAnalyzer(Path(found), {}, _analyzer_version(Path(found), {}))
            except ToolchainError as error:
                say(f"Passing over: {error}")
    return None


def _named_server(path: Path) -> ServerToolchain:
    binary = path / "bin" / "tritonserver" if path.is_dir() else path
    root = binary.resolve().parent.parent
    backends = root / "backends"
    own_stub = backends / "python" / _STUB
    stub = own_stub if own_stub.exists() else root / "python_backend_stubs" / PYTHON_VERSION / _STUB
    for needed in (binary, backends / "python" / "libtriton_python.so", stub):
        if not needed.is_file():
            raise ToolchainError(
                f"TRITONSERVER={path} is no complete Triton server: {needed} is missing. "
                "Name the folder or the binary of one (such as /opt/tritonserver), or unset TRITONSERVER"
            )
    caches, libraries = root / "caches", root.parents[1] / "nvidia_pytriton.libs"
    library_dirs = (root / "lib", *((libraries,) if libraries.is_dir() else ()))
    return ServerToolchain(
        binary.absolute(), backends, stub, caches if caches.is_dir() else None, library_dirs, is_pinned=False
    )


def _pinned_analyzer(say: Say) -> PerfAnalyzer:
    binary = fetch(ANALYZER_PACKAGE, say) / "tritonclient-2.51.0.data" / "data" / "bin" / "perf_analyzer"
    libraries = fetch(SERVER_PACKAGE, say) / "nvidia_pytriton.libs"
    # It was linked with two libraries that few machines have; the server's wheel carries them under other names.
    links = cache_dir() / "perf_analyzer_libs"
    links.mkdir(parents=True, exist_ok=True)
    for name, pattern in (("libb64.so.0d", "libb64-*.so.0d"), ("libcudart.so.12", "libcudart-*.so.12*")):
        _link(links / name, next(libraries.glob(pattern)))
    env = {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(links), os.environ.get("LD_LIBRARY_PATH")]))}
    return PerfAnalyzer(binary, env, _analyzer_version(binary, env))


def _link(link: Path, target: Path) -> None:
    """Make `link` point at `target`; another process may be doing the same."""
    if link.is_symlink() and link.readlink() == target:
        return
    beside = link.with_name(f".{link.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    beside.replace(link)


def _analyzer_version(path: Path, env: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], env={**os.environ, **env}, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{path} does not start: {error}") from error
    # "Perf Analyzer Version 2.51.0 (commit ...)"; the placeholder package answers something else.
    words = (done.stdout + done.stderr).split()
    # 2.51 exits with a code other than 0 after printing its version on stderr.
    if "Version" not in words[:-1]:
        reason = (done.stderr or done.stdout).strip().splitlines()
        raise ToolchainError(f"{path} does not start: {reason[-1] if reason else 'it prints no version'}")
    return words[words.index("Version") + 1]

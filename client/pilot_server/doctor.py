"""What is on this machine, what is missing for the main job, and the command that mends it. Downloads nothing."""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from pilot_base.cpus import usable_cpus, usable_memory_bytes
from pilot_base.errors import PilotError
from pilot_base.packages import cache_dir, is_fetched
from pilot_server.container import docker_problem
from pilot_server.ports import DEFAULT_PORTS, taken_ports
from pilot_server.preflight import SHM_HEADROOM_BYTES, STUB_SHM_BYTES, libpython, numpy_version, require_environment
from pilot_server.toolchain import (
    ANALYZER_PACKAGE,
    PYTHON_VERSION,
    SERVER_PACKAGE,
    installed_analyzer,
    perf_analyzer,
    platform_problem,
    tritonserver,
)

# ok; note: works, but worth knowing; missing: the main job cannot run.
Status = Literal["ok", "note", "missing"]
_DISTRIBUTION = "tritonpilot"
_MAIN_JOB_EXTRAS = frozenset({"export", "perf"})
_EXTRAS_FOR_USE = ("export", "llm", "perf", "gpu")
_CPU_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8")
_GIB = 1 << 30


@dataclass(frozen=True)
class Row:
    """One thing that was looked at. `mend` is the command or step that makes it ok."""

    name: str
    status: Status
    found: str
    mend: str | None = None


def examine() -> list[Row]:
    """Everything, in the order in which it is needed."""
    looks: tuple[Callable[[], Row | list[Row]], ...] = (
        _cpu,
        _cores,
        _memory,
        _shared_memory,
        _gpu,
        _python,
        _numpy,
        _libpython,
        _server,
        _docker,
        _analyzer,
        _ports,
        _disk,
        _extras,
    )
    rows: list[Row] = []
    for look in looks:
        found = look()
        rows += found if isinstance(found, list) else [found]
    return rows


def cpu_facts(cpuinfo: str) -> tuple[str, list[str]]:
    """The name of the CPU and its features that our kernels and ONNX Runtime use, of the text of /proc/cpuinfo."""
    name = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    present = set(flags[1].split()) if flags else set()
    return (name[1] if name else platform.machine()), [feature for feature in _CPU_FEATURES if feature in present]


def _cpu() -> Row:
    name, features = cpu_facts(Path("/proc/cpuinfo").read_text())
    found = f"{name} ({', '.join(features) or 'no AVX2'})"
    if "avx2" not in features:
        return Row("CPU", "note", found, "Any CPU works; one with AVX2 or AVX-512 is several times faster")
    if "avx512_vnni" not in features and "avx_vnni" not in features:
        return Row("CPU", "note", found, "Without VNNI, int8 gains less than it could")
    return Row("CPU", "ok", found)


def _cores() -> Row:
    usable, shown = usable_cpus(), os.cpu_count() or 1
    found = f"{usable} usable" + (f" of {shown} shown (limited by affinity or cgroup)" if usable < shown else "")
    if usable < 2:
        return Row("Cores", "note", found, "Server and load generator share one core: figures will be low and noisy")
    return Row("Cores", "ok", found)


def _memory() -> Row:
    usable, free = usable_memory_bytes(), psutil.virtual_memory().available
    found = f"{usable / _GIB:.1f} GiB usable, {min(free, usable) / _GIB:.1f} GiB free"
    if min(free, usable) < 3 * _GIB:
        return Row("Memory", "note", found, "An export needs about 3 GiB: close other programs")
    return Row("Memory", "ok", found)


def _shared_memory() -> Row:
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError as error:
        return Row("/dev/shm", "missing", str(error.strerror), "mount -t tmpfs -o size=1g tmpfs /dev/shm")
    found = f"{usage.total >> 20} MiB, {usage.free >> 20} MiB free"
    mend = "In a container: --shm-size=1g; else: mount -o remount,size=1g /dev/shm"
    if usage.free < SHM_HEADROOM_BYTES + STUB_SHM_BYTES:
        return Row("/dev/shm", "missing", found, mend)
    return Row("/dev/shm", "note" if usage.free < 256 << 20 else "ok", found, mend if usage.free < 256 << 20 else None)


def _gpu() -> Row:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Row("GPU", "note", "none (no nvidia-smi)", "None is needed; with one, see README, GPU")
    query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run([program, *query], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Row("GPU", "note", f"nvidia-smi does not run: {error}", "Reinstall the NVIDIA driver")
    if done.returncode != 0:
        reason = (done.stdout + done.stderr).strip().splitlines() or ["no reason given"]
        return Row("GPU", "note", f"nvidia-smi: {reason[-1]}", "Install the NVIDIA driver, if there is a GPU")
    return Row("GPU", "ok", "; ".join(done.stdout.strip().splitlines()))


def _python() -> Row:
    problem = platform_problem()
    found = f"{platform.python_version()} on {' '.join(platform.libc_ver())} {platform.machine()}"
    return Row("Python", "ok", found) if problem is None else Row("Python", "missing", found, problem)


def _numpy() -> Row:
    version = numpy_version()
    if version is None or int(version.partition(".")[0]) >= 2:
        return Row("numpy", "missing", version or "not installed", "python -m pip install 'numpy>=1.26,<2'")
    return Row("numpy", "ok", version)


def _libpython() -> Row:
    shared = libpython()
    if shared is not None:
        return Row("libpython", "ok", str(shared))
    mend = f"apt-get install libpython{PYTHON_VERSION} (Debian, Ubuntu), or a Python built with --enable-shared"
    # The server's own check asks the dynamic linker, which may know another one.
    return Row("libpython", "note", "not beside this interpreter", mend)


def _server() -> Row:
    named = os.environ.get("TRITONSERVER")
    if not named and not is_fetched(SERVER_PACKAGE):
        found = f"not downloaded yet ({SERVER_PACKAGE.size_mb} MB)"
        return Row("Triton server", "note", found, "tritonpilot serve (or tune) downloads it")
    try:
        toolchain = tritonserver()
        require_environment(toolchain)
    except PilotError as error:
        return Row("Triton server", "missing", named or "downloaded", str(error))
    return Row("Triton server", "ok", str(toolchain.binary))


def _docker() -> Row:
    problem = docker_problem()
    if problem is None:
        return Row("docker", "ok", "its daemon answers")
    return Row("docker", "note", "not usable; only --mode docker needs it", problem)


def _analyzer() -> Row:
    try:
        analyzer = installed_analyzer()
        if analyzer is None:
            if not (is_fetched(ANALYZER_PACKAGE) and is_fetched(SERVER_PACKAGE)):
                found = f"not downloaded yet ({ANALYZER_PACKAGE.size_mb} MB)"
                return Row("perf_analyzer", "note", found, "tritonpilot sweep (or tune) downloads it")
            analyzer = perf_analyzer()
    except PilotError as error:
        return Row("perf_analyzer", "missing", "does not start", str(error))
    return Row("perf_analyzer", "ok", f"{analyzer.version}, {analyzer.argv0}")


def _ports() -> Row:
    taken = [str(port) for _, port in taken_ports(DEFAULT_PORTS)]
    if not taken:
        return Row("Ports", "ok", "8000, 8001, 8002 are free")
    mend = "tritonpilot serve --http-port ... --grpc-port ... --metrics-port ...; tune and sweep take free ports"
    return Row("Ports", "note", f"{', '.join(taken)} taken", mend)


def _disk() -> Row:
    # The nearest folder that is there: the cache may not have been made yet.
    folder = next(path for path in (cache_dir(), *cache_dir().parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    found = f"{free / _GIB:.1f} GiB free for {cache_dir()}"
    if not os.access(folder, os.W_OK):
        return Row("Disk", "missing", f"{folder} cannot be written", "Set XDG_CACHE_HOME to a folder that can")
    if free < _GIB:
        return Row("Disk", "missing", found, "Free 1 GiB, or set XDG_CACHE_HOME to another disk")
    return Row("Disk", "ok", found)


def _extras() -> list[Row]:
    """The optional packages, as the installed distribution lists them."""
    try:
        required = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return [Row("Extras", "note", "tritonpilot is not installed", "python -m pip install -e .")]
    rows = []
    for extra in _EXTRAS_FOR_USE:
        absent = [name for name in packages_of_extra(required, extra) if not _is_installed(name)]
        if not absent:
            rows.append(Row(f"Extra {extra}", "ok", "installed"))
            continue
        status: Status = "missing" if extra in _MAIN_JOB_EXTRAS else "note"
        mend = f"In the checkout: python -m pip install -c constraints.txt -e '.[{extra}]'"
        rows.append(Row(f"Extra {extra}", status, f"lacks {', '.join(absent)}", mend))
    return rows


def packages_of_extra(required: list[str], extra: str) -> list[str]:
    """Names in `required` (lines of Requires-Dist) that only `extra` asks for."""
    marker = re.compile(rf"""extra\s*==\s*['"]{extra}['"]""")
    return [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in required if marker.search(line)]


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True

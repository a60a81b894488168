"""What an embedded server needs from this machine and this Python: looked at before the start, each with the mend."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from pilot_server.errors import PreflightError
from pilot_server.run_folder import is_shell_safe
from pilot_server.toolchain import PYTHON_VERSION, ServerToolchain

# A stub starts with one region of this size, and grows it in steps of the same size. Where it cannot grow, a large
# request gets no answer at all: hence the headroom.
STUB_SHM_BYTES = 1 << 20
SHM_HEADROOM_BYTES = 16 << 20
_SHM = Path("/dev/shm")


def server_environment(toolchain: ServerToolchain, library_dir: Path | None = None) -> dict[str, str]:
    """Ours, with the toolchain's libraries, and this environment's `python3` first: the stub imports from there.

    `library_dir` holds this interpreter's libpython (the default: the folder that it lies in).
    """
    shared = libpython()
    own = library_dir or (shared.parent if shared is not None else None)
    libraries = [str(folder) for folder in (own, *toolchain.library_dirs) if folder is not None]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": _joined(*libraries, os.environ.get("LD_LIBRARY_PATH")),
        "PATH": _joined(str(Path(sys.prefix) / "bin"), os.environ.get("PATH")),
    }


def require_environment(toolchain: ServerToolchain) -> None:
    """
    Raises:
        PreflightError: a library of the server is missing, or numpy is one that the pinned stub reads wrongly.
    """
    environment = server_environment(toolchain)
    for program in (toolchain.binary, toolchain.stub):
        if missing := missing_libraries(program, environment):
            raise PreflightError(_missing_library_message(program, missing))
    if toolchain.is_pinned:
        require_numpy_1()


def require_numpy_1() -> None:
    """
    Raises:
        PreflightError: no numpy, or numpy 2, with which the stub of server 2.51 gives wrong answers silently.
    """
    version = numpy_version()
    if version is None or int(version.partition(".")[0]) >= 2:
        found = "is not installed" if version is None else f"is {version}"
        raise PreflightError(
            f"numpy {found} in this environment; the embedded server's Python models need numpy < 2 "
            "(with 2.x they answer wrongly without an error). Run: python -m pip install 'numpy>=1.26,<2'"
        )


def numpy_version() -> str | None:
    """What is installed, without importing it."""
    try:
        return importlib.metadata.version("numpy")
    except importlib.metadata.PackageNotFoundError:
        return None


def libpython() -> Path | None:
    """The shared library of this interpreter, None when it was built without one."""
    name = sysconfig.get_config_var("INSTSONAME")
    folders = (sysconfig.get_config_var("LIBDIR"), os.path.join(os.path.dirname(os.__file__), os.pardir))
    if isinstance(name, str) and ".so" in name:
        for folder in filter(None, folders):
            path = Path(folder) / name
            if path.is_file():
                return path.resolve()
    return None


def missing_libraries(program: Path, environment: Mapping[str, str]) -> list[str]:
    """Names of the shared libraries that the dynamic linker would not find for `program`."""
    ldd = shutil.which("ldd")
    if ldd is None:
        return []
    done = subprocess.run([ldd, program], env=dict(environment), capture_output=True, text=True, check=False)
    return [line.split()[0] for line in (done.stdout + done.stderr).splitlines() if "not found" in line]


def require_shared_memory(repository: Path, region_bytes: int = STUB_SHM_BYTES, shm: Path = _SHM) -> None:
    """
    Raises:
        PreflightError: /dev/shm has less room than the stubs of `repository` take at their start.
    """
    needed = num_stubs(repository) * region_bytes + SHM_HEADROOM_BYTES
    try:
        free = shutil.disk_usage(shm).free
    except OSError as error:
        raise PreflightError(
            f"{shm} cannot be used ({error.strerror}); Python models pass tensors through it. "
            f"Mount it: mount -t tmpfs -o size=1g tmpfs {shm}"
        ) from error
    if free < needed:
        raise PreflightError(
            f"{shm} has {free >> 20} MiB free, the models of {repository} need at least {needed >> 20} MiB. "
            f"Enlarge it (in a container: --shm-size=1g; else: mount -o remount,size=1g {shm}), "
            "or lower the instance counts"
        )


def require_plain_names(repository: Path) -> None:
    """
    Raises:
        PreflightError: a model's name would break the unquoted shell line that starts its stub, which then hangs.
    """
    for config in repository.glob("*/config.pbtxt"):
        if not is_shell_safe(config.parent.name):
            raise PreflightError(
                f"The server cannot start Python models of the name {config.parent.name!r}: "
                f"rename the folder {config.parent} (letters, digits, '_', '-', '.')"
            )


def num_stubs(repository: Path) -> int:
    """Python processes that the server starts if it loads all of `repository`, from above: every model counts.

    Other `count:` fields of a configuration (warm-up, rate limiter) count too; this is a bound, not a parse.
    """
    total = 0
    for config in repository.glob("*/config.pbtxt"):
        try:
            text = re.sub(r"#.*", "", config.read_text())
        except (OSError, UnicodeDecodeError):
            continue  # The server itself says what is wrong with it.
        # Without an instance_group, Triton starts two instances on a CPU.
        total += sum(int(count) for count in re.findall(r"\bcount\s*:\s*(\d+)", text)) or 2
    return total


def _joined(*parts: str | None) -> str:
    return os.pathsep.join(part for part in parts if part)


def _missing_library_message(program: Path, missing: list[str]) -> str:
    if any(name.startswith("libpython") for name in missing):
        return (
            f"The server's Python stub needs the shared library {missing[0]} of Python {PYTHON_VERSION}, and this "
            f"interpreter has none. Install it (Debian, Ubuntu: apt-get install libpython{PYTHON_VERSION}), or use a "
            "Python that was built with --enable-shared (uv's and conda's are)"
        )
    return (
        f"{program.name} cannot start: the libraries {', '.join(missing)} are missing. "
        "Install the packages of your distribution that hold them"
    )

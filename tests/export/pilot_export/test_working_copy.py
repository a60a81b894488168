"""The copy in which exports and tuned configurations live."""

import os
from pathlib import Path

import pytest

from pilot_export.errors import InstallError
from pilot_export.install import install_files
from pilot_export.working_copy import require_unchanged, working_copy
from pilot_testing.folders import contents, files_no_larger_than


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    install_files(tmp_path / "committed" / "a", {"config.pbtxt": "as committed", "1/model.onnx": "weights"})
    return tmp_path / "committed"


def test_a_full_disk_is_one_line_and_no_half_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "committed" / "m").mkdir(parents=True)
    (tmp_path / "committed" / "m" / "config.pbtxt").write_text("x" * 1000)
    with (
        files_no_larger_than(100),
        pytest.raises(InstallError, match=r"model_repository cannot be made from .*committed: \[Errno 27\].*Free some"),
    ):
        working_copy(tmp_path / "committed", tmp_path / "build")
    assert list((tmp_path / "build" / "model_repository").iterdir()) == []


def test_it_is_made_once_and_then_kept(committed: Path, tmp_path: Path) -> None:
    copy = working_copy(committed, tmp_path / "build")
    (copy / "a" / "config.pbtxt").write_text("tuned")
    install_files(committed / "b", {"config.pbtxt": "later"})
    assert working_copy(committed, tmp_path / "build") == copy
    assert contents(copy) == {"a/1/model.onnx": "weights", "a/config.pbtxt": "tuned", "b/config.pbtxt": "later"}
    assert contents(committed)["a/config.pbtxt"] == "as committed"


def test_a_model_that_has_changed_since_is_not_taken_for_the_copy(committed: Path, tmp_path: Path) -> None:
    build = tmp_path / "build"
    copy = working_copy(committed, build)
    (copy / "a" / "config.pbtxt").write_text("tuned")
    os.utime(committed / "a" / "1" / "model.onnx", ns=(0, 0))  # another time alone is no change
    install_files(committed / "a", {"1/__pycache__/model.pyc": "a server that ran from there has compiled it"})
    require_unchanged(committed, build, ["a", "unknown"])
    (committed / "a" / "1" / "model.onnx").write_text("retrain")
    with pytest.raises(
        InstallError, match=r"model_repository/a was copied from .*/committed/a before that changed. Re"
    ):
        require_unchanged(committed, build, ["a"])


def test_a_model_of_the_same_name_elsewhere_is_another_one(committed: Path, tmp_path: Path) -> None:
    working_copy(committed, tmp_path / "build")
    install_files(tmp_path / "others" / "a", {"config.pbtxt": "as committed", "1/model.onnx": "weights"})
    with pytest.raises(InstallError, match=r"a is a copy of .*/committed/a, not of .*/others/a. Remove it"):
        require_unchanged(tmp_path / "others", tmp_path / "build", ["a"])

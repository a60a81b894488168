import subprocess
import sys
from pathlib import Path

import pytest

from pilot_base.lock import FolderError, only_one_in

HOLD = """
import sys
from pathlib import Path
from pilot_base.lock import only_one_in
with only_one_in(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_held_against_other_processes_until_theirs_dies(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "on the way"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(FolderError, match="wait for it to end"), only_one_in(folder):
            pass
        other.kill()
    with only_one_in(folder):
        pass
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(FolderError, match="file/folder cannot be made: Not a directory"),
        only_one_in(tmp_path / "file" / "folder"),
    ):
        pass

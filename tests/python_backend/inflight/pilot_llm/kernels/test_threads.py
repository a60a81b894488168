"""The OpenMP layer's spin count: whether it comes too late is seen from what was loaded before."""

import importlib
import logging
import sys
from pathlib import Path

import pytest

from pilot_llm.kernels import threads

ANOTHER = "7f00-7f01 r-xp 00000000 08:01 42 /torch/lib/libgomp-a34b3233.so.1\n"
SYSTEMS = """7f02-7f03 r-xp 00000000 08:01 43 /usr/lib/libgomp.so.1.0.0
7f03-7f04 rw-p 00001000 08:01 43 /usr/lib/libgomp.so.1.0.0
7f04-7f05 rw-p 00000000 00:00 0
"""


def test_runtimes_are_read_from_the_mappings() -> None:
    assert threads.loaded_gomp(ANOTHER + SYSTEMS) == ["/torch/lib/libgomp-a34b3233.so.1", "/usr/lib/libgomp.so.1.0.0"]


@pytest.mark.parametrize(
    ("before", "is_set", "is_late"),
    [(SYSTEMS, False, True), (ANOTHER, False, False), ("", False, False), (SYSTEMS, True, False)],
)
def test_spin_count_that_comes_too_late_is_said(
    tmp_path: Path,
    before: str,
    is_set: bool,
    is_late: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    maps = tmp_path / "maps"
    maps.write_text(before)
    monkeypatch.setattr(threads, "_MAPS", maps)
    monkeypatch.delitem(sys.modules, "numba.np.ufunc.omppool", raising=False)
    after = before if before == SYSTEMS else before + SYSTEMS
    monkeypatch.setattr(importlib, "import_module", lambda name: maps.write_text(after))
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if is_set:
        monkeypatch.setenv("GOMP_SPINCOUNT", "500")
    caplog.set_level(logging.WARNING)
    assert threads.load_openmp() is None
    assert ("Set GOMP_SPINCOUNT=1000 in the server's environment" in caplog.text) == is_late

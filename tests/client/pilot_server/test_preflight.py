"""What is found before a start that would fail or, worse, answer wrongly."""

from pathlib import Path

import pytest

from pilot_server import preflight, toolchain
from pilot_server.errors import PreflightError, ToolchainError
from pilot_server.toolchain import platform_problem, tritonserver
from pilot_testing.python_models import write_scale_model


@pytest.mark.parametrize(("version", "found"), [("2.1.3", "numpy is 2.1.3"), (None, "numpy is not installed")])
def test_numpy_that_the_stub_misreads_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str | None, found: str
) -> None:
    monkeypatch.setattr(preflight, "numpy_version", lambda: version)
    with pytest.raises(PreflightError, match=f"{found}.*pip install 'numpy>=1.26,<2'"):
        preflight.require_numpy_1()


def test_numpy_of_this_environment_passes() -> None:
    preflight.require_numpy_1()


@pytest.mark.triton
def test_missing_libpython_is_named_before_the_start() -> None:
    ours = tritonserver()
    other_stub = ours.stub.parents[1] / "3.8" / ours.stub.name
    with pytest.raises(PreflightError, match=r"shared library libpython3\.8\.so.*apt-get install libpython"):
        preflight.require_environment(toolchain.ServerToolchain(**{**vars(ours), "stub": other_stub}))


def test_too_small_shared_memory_says_how_much_is_needed(tmp_path: Path) -> None:
    write_scale_model(tmp_path, "a")
    (write_scale_model(tmp_path, "b") / "config.pbtxt").write_text('backend: "python"  # count: 7\n')
    # One instance of a; b has no instance_group, which is two on a CPU.
    assert preflight.num_stubs(tmp_path) == 3
    with pytest.raises(PreflightError, match=r"need at least 3145744 MiB.*--shm-size"):
        preflight.require_shared_memory(tmp_path, region_bytes=1 << 40)


def test_machine_without_shared_memory_is_told_to_mount_it(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="mount -t tmpfs"):
        preflight.require_shared_memory(tmp_path, shm=tmp_path / "none")


@pytest.mark.parametrize(
    ("python", "machine", "libc", "problem"),
    [
        ("3.13", "x86_64", ("glibc", "2.36"), "Python 3.13 cannot run .*3.11 or 3.12"),
        ("3.11", "aarch64", ("glibc", "2.36"), "this is Linux on aarch64"),
        ("3.11", "x86_64", ("glibc", "2.31"), "has 2.31: serve with --mode docker"),
        ("3.11", "x86_64", ("", ""), "has another libc"),
    ],
)
def test_platform_that_cannot_run_the_server_gets_one_line(
    monkeypatch: pytest.MonkeyPatch, python: str, machine: str, libc: tuple[str, str], problem: str
) -> None:
    monkeypatch.setattr(toolchain, "PYTHON_VERSION", python)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("platform.libc_ver", lambda: libc)
    monkeypatch.delenv("TRITONSERVER", raising=False)
    with pytest.raises(ToolchainError, match=problem):
        tritonserver()


def test_this_platform_has_no_problem() -> None:
    assert platform_problem() is None

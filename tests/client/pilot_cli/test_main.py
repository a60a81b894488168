"""The command line as a whole: exit codes, one-line errors, and imports that stay light."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from pilot_base.errors import PilotError
from pilot_cli.main import COMMANDS, cli, main

HEAVY = ("torch", "numpy", "tritonclient", "onnx", "onnxruntime", "grpc", "psutil")


def raise_error(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


@pytest.fixture
def doctor_raises(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Put a command in the place of `doctor` that raises."""

    def put(error: BaseException) -> None:
        command = click.Command("doctor", callback=raise_error(error))
        monkeypatch.setitem(sys.modules, "pilot_cli.doctor", SimpleNamespace(command=command))

    return put


def test_help_lists_every_command_and_loads_nothing_heavy() -> None:
    script = (
        "import sys; from pilot_cli.main import main\n"
        "try: main()\n"
        f"finally: print('LOADED', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=True)
    assert "LOADED []" in done.stdout
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)


def test_help_takes_less_than_half_a_second_of_cpu() -> None:
    def cpu_s() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = cpu_s()
    subprocess.run([sys.executable, "-m", "pilot_cli", "--help"], capture_output=True, check=True)
    assert cpu_s() - before < 0.5


def test_unknown_command_is_wrong_use() -> None:
    result = CliRunner().invoke(cli, ["explode"])
    assert result.exit_code == 2
    assert "No such command 'explode'" in result.output


def test_interrupt_exits_with_130(doctor_raises: Callable[[BaseException], None]) -> None:
    doctor_raises(KeyboardInterrupt())
    result = CliRunner().invoke(cli, ["doctor"])
    assert result.exit_code == 130


def test_failure_is_one_line_and_exit_code_1(
    doctor_raises: Callable[[BaseException], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor_raises(PilotError("the disk is full. Free some space"))
    monkeypatch.setattr(sys, "argv", ["tritonpilot", "doctor"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 1
    assert capsys.readouterr().err == "tritonpilot: error: the disk is full. Free some space\n"


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (errno.ENOSPC, "No space left on device: build/x. Free some space, then run the command again"),
        (errno.EROFS, "Read-only file system: build/x. Work in a folder that can be written"),
    ],
)
def test_what_the_machine_refuses_to_write_is_one_line(
    number: int,
    line: str,
    doctor_raises: Callable[[BaseException], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    doctor_raises(OSError(number, os.strerror(number), "build/x"))
    monkeypatch.setattr(sys, "argv", ["tritonpilot", "doctor"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 1
    assert capsys.readouterr().err == f"tritonpilot: error: {line}\n"


def test_defect_of_ours_keeps_its_traceback(doctor_raises: Callable[[BaseException], None]) -> None:
    doctor_raises(ZeroDivisionError("ours"))
    assert isinstance(CliRunner().invoke(cli, ["doctor"]).exception, ZeroDivisionError)

"""The commands of README.md, run as a reader would, one block after the other in an empty folder."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pilot_export.working_copy import working_copy
from pilot_server import model_repository_dir
from pilot_server.running import RunningServer

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()

# A line that starts so is not run here; the reason is why nobody should mind.
NOT_RUN = {
    "make quickstart": "has a test of its own: tests/client/pilot_cli/test_tune.py runs the same command",
    "make test": "is what runs this",
    "scripts/setup.sh": "made the environment that this runs in",
    "tritonpilot tune my_spec.py": "the file is the reader's own; tests/client/pilot_cli/test_tune.py has such a one",
    "tritonpilot export model crepe": "takes minutes; the slow tests in tests/export do it",
    "tritonpilot export model efficientnet": "takes minutes; the slow tests in tests/export do it",
    "tritonpilot infer crepe": "asks for what a line above makes; the same tests do it",
    "tritonpilot infer efficientnet": "as with crepe",
}
# What each `tritonpilot serve` of the text is asked for next.
SERVED = ["minilm_text", "smollm2"]


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def test_every_exception_still_stands_in_the_readme() -> None:
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in commands())] == []


def test_every_link_leads_to_a_file() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []


@pytest.mark.triton
@pytest.mark.timeout(900)
def test_commands_do_what_they_say(
    tmp_path: Path, start_server: Callable[..., RunningServer], minilm_export: Path
) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    ran, served = [], iter(SERVED)
    for line in commands():
        if line.startswith(tuple(NOT_RUN)):
            continue
        if line == "tritonpilot export model minilm":
            # Made once for all tests; the rest of the working copy comes with the first command that needs it.
            shutil.copytree(
                minilm_export / "model_repository",
                working_copy(model_repository_dir(), tmp_path / "build"),
                dirs_exist_ok=True,
            )
            continue
        if line == "tritonpilot serve":
            server = start_server(tmp_path / "build" / "model_repository", load=[next(served)])
            environment["TRITONPILOT_URL"] = server.grpc_url
            environment["HTTP_URL"] = server.http_url
            continue
        done = subprocess.run(
            ["bash", "-c", line.replace("localhost:8000", "$HTTP_URL")],
            cwd=tmp_path,
            env=environment,
            input="Hello\n/quit\n",  # what `chat` reads
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        ran.append((line, done.stdout))
    streamed = next(out for line, out in ran if line.startswith("curl"))
    assert streamed.count("data: ") > 1
    assert all(out.strip() for _, out in ran), ran
    shutil.rmtree(tmp_path / "build")

"""`tritonpilot generate` and `tritonpilot chat` on a tiny random model: what they print, and what Ctrl-C does."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pilot_cli.main import cli
from pilot_client.chat_template import ChatTemplate
from pilot_server.running import RunningServer
from pilot_testing.llm_clients import model_metrics, wait_for
from pilot_testing.tiny_llm import make_repository

pytestmark = pytest.mark.triton

SHORT = ["--temperature", "0", "--max-tokens", "12"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("repository"), max_model_len=4096, kv_cache_memory_bytes=32 << 20)


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    from pilot_server.embedded import start_embedded

    server = start_embedded(repository, log_file=repository / "server.log")
    yield server
    server.stop(drain_s=0.0)


def run(server: RunningServer, *arguments: str, **options: Any) -> Any:
    return CliRunner().invoke(cli, [*arguments, "--url", server.grpc_url], **options)


def test_generate_prints_the_answer_at_once_or_as_it_comes(server: RunningServer) -> None:
    whole = run(server, "generate", "tiny", "Once upon", "--raw", *SHORT)
    streamed = run(server, "generate", "tiny", "Once upon", "--raw", *SHORT, "--stream")
    assert (whole.exit_code, streamed.exit_code) == (0, 0), whole.output + streamed.output
    assert whole.output == streamed.output != "\n"
    assert run(server, "generate", "tiny", "-", "--raw", *SHORT, input="Once upon").output == whole.output


def test_generate_puts_the_prompt_into_the_chat_template(server: RunningServer, repository: Path) -> None:
    template = ChatTemplate.from_path(repository / "tiny" / "1")
    written_out = template.render([{"role": "user", "content": "Once upon"}])
    asked = run(server, "generate", "tiny", "Once upon", *SHORT, "--repository", str(repository))
    assert asked.output == run(server, "generate", "tiny", written_out, "--raw", *SHORT).output
    assert asked.output != run(server, "generate", "tiny", "Once upon", "--raw", *SHORT).output


def test_generate_says_that_it_found_no_template(server: RunningServer, tmp_path: Path) -> None:
    found_none = run(server, "generate", "tiny", "Once upon", *SHORT)
    assert "as with --raw" in found_none.stderr
    assert found_none.stdout == run(server, "generate", "tiny", "Once upon", "--raw", *SHORT).stdout
    assert run(server, "generate", "tiny", "Once", "--repository", str(tmp_path)).exit_code == 1


def test_generate_as_json_is_one_object_or_one_per_piece(server: RunningServer) -> None:
    whole = json.loads(run(server, "generate", "tiny", "Once upon", "--raw", *SHORT, "--json").output)
    assert whole["num_output_tokens"] == [12]
    lines = run(server, "generate", "tiny", "Once upon", "--raw", *SHORT, "--json", "--stream").output.splitlines()
    assert "".join(json.loads(line)["texts"][0] for line in lines) == whole["texts"][0]


def test_any_parameter_can_be_given(server: RunningServer) -> None:
    result = run(
        server,
        "generate",
        "tiny",
        "Once",
        "--raw",
        "--param",
        "n=2",
        "--param",
        "seed=1",
        "--max-tokens",
        "3",
        "--json",
    )
    assert len(json.loads(result.output)["texts"]) == 2
    assert run(server, "generate", "tiny", "Once", "--raw", "--param", "n=2", "--stream").exit_code == 2
    result = run(server, "generate", "tiny", "Once", "--raw", "--param", "colour=red")
    assert result.exit_code == 1
    assert "colour" in str(result.exception or result.output)


def test_chat_remembers_until_reset(server: RunningServer, repository: Path) -> None:
    arguments = ("chat", "tiny", *SHORT, "--repository", str(repository))
    result = run(server, *arguments, input="One two\nOne two\n/reset\nOne two\n/quit\n")
    assert result.exit_code == 0, result.output
    first, second, third = (answer for answer in result.output.split("> ") if answer.strip())
    assert first == third
    assert first != second


def test_chat_without_a_template_says_what_to_give(server: RunningServer, tmp_path: Path) -> None:
    result = run(server, "chat", "tiny", "--repository", str(tmp_path), input="/quit\n")
    assert result.exit_code == 1
    assert "--tokenizer" in str(result.exception or result.output)


def test_ctrl_c_ends_the_answer_and_not_the_conversation(server: RunningServer, repository: Path) -> None:
    def aborted() -> float:
        return model_metrics(server.metrics_url, "tiny")["vllm:request_success_total{finished_reason=abort}"]

    before = aborted()
    chat = subprocess.Popen(
        [
            *(sys.executable, "-m", "pilot_cli", "chat", "tiny", "--url", server.grpc_url),
            *("--repository", str(repository), "--max-tokens", "4000", "--param", "ignore_eos=true"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with chat:
        if chat.stdin is None or chat.stdout is None:
            pytest.fail("no pipes")
        chat.stdin.write(b"Once upon\n")
        chat.stdin.flush()
        assert len(chat.stdout.read(20)) == 20
        chat.send_signal(signal.SIGINT)
        wait_for(lambda: aborted() == before + 1, 5, "the server stops working on the answer")
        assert chat.poll() is None
        chat.stdin.write(b"/quit\n")
        chat.stdin.flush()
        rest = chat.stdout.read()
    assert b"[interrupted]" in rest
    assert chat.returncode == 0

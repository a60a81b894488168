"""The embedded server, started for real: it answers, it fails in plain words, and it leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest

from pilot_base.packages import cache_dir
from pilot_server.errors import PortTakenError, PreflightError, ServerError, StartError
from pilot_server.ports import Ports, free_ports
from pilot_server.running import RunningServer, connect, is_healthy
from pilot_testing.python_models import scaled, write_ensemble_of_two_steps, write_scale_model

pytestmark = pytest.mark.triton
StartServer = Callable[..., RunningServer]


def wait_until(condition: Callable[[], bool], timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def leftovers(run_folder: Path) -> list[str]:
    """What is left of one server: processes that name its folder, shared memory, the folder."""
    processes = [f"process {item.pid}" for item in psutil.process_iter() if is_of(item, run_folder)]
    regions = [str(path) for path in Path("/dev/shm").glob(f"{run_folder.name}*")]
    return processes + regions + ([str(run_folder)] if run_folder.exists() else [])


def is_of(process: psutil.Process, run_folder: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and run_folder.name in " ".join(process.cmdline())
    except psutil.Error:
        return False


def run_folder_of(server_pid: int) -> Path:
    option = "--backend-directory="
    words = psutil.Process(server_pid).cmdline()
    return next(Path(word.removeprefix(option)).parent for word in words if word.startswith(option))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with the packages of the real one, so that no other start on this machine sweeps what a test looks at."""
    packages = cache_dir() / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    own = tmp_path_factory.mktemp("cache")
    (own / "tritonpilot").mkdir()
    (own / "tritonpilot" / "packages").symlink_to(packages)
    monkeypatch.setenv("XDG_CACHE_HOME", str(own))
    return own


@pytest.fixture
def server_of_another_process(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A Python process that has started a server with one model, and the server's pid."""
    write_scale_model(tmp_path)
    script = (
        "import sys, time; from pathlib import Path; from pilot_server.embedded import start_embedded\n"
        "server = start_embedded(Path(sys.argv[1])); print(server.pid, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def test_model_answers_and_a_stop_leaves_nothing(tmp_path: Path, start_server: StartServer) -> None:
    repository = tmp_path / "a repository"
    write_scale_model(repository)
    server = start_server(repository)
    assert server.pid is not None
    run_folder = run_folder_of(server.pid)
    assert scaled(server.http_url, [1.0, 2.5]) == [2.0, 5.0]
    assert list(Path("/dev/shm").glob(f"{run_folder.name}*"))
    server.stop()
    assert leftovers(run_folder) == []
    assert not server.is_alive()
    assert "successfully unloaded 'scale'" in server.log_tail(50)
    server.stop()


def test_listens_on_the_loopback_address_alone(tmp_path: Path, start_server: StartServer) -> None:
    server = start_server(tmp_path)
    listening = [item for item in psutil.Process(server.pid).net_connections("inet") if item.status == "LISTEN"]
    assert {item.laddr.ip.removeprefix("::ffff:") for item in listening} == {"127.0.0.1"}
    assert len(listening) >= 3


def test_relative_and_read_only_repository(
    tmp_path: Path, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_scale_model(tmp_path / "repository")
    monkeypatch.chdir(tmp_path)
    for path in (folder / "1", folder, tmp_path / "repository"):
        path.chmod(0o555)
    try:
        server = start_server(Path("repository"), load=["scale"])
        assert scaled(server.http_url, [3.0]) == [6.0]
    finally:
        for path in (tmp_path / "repository", folder, folder / "1"):
            path.chmod(0o755)


def test_cache_folder_with_a_space(
    tmp_path: Path, start_server: StartServer, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_scale_model(tmp_path / "repository")
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache.rename(tmp_path / "my cache")))
    server = start_server(tmp_path / "repository")
    assert scaled(server.http_url, [1.0]) == [2.0]


def test_server_that_dies_while_starting_shows_the_end_of_its_log(tmp_path: Path) -> None:
    from pilot_server.embedded import start_embedded

    folder = write_scale_model(tmp_path)
    (folder / "1" / "model.py").write_text("raise RuntimeError('no such weights')\n")
    with pytest.raises(StartError, match=r"(?s)died\. Its log ends with:.*no such weights"):
        start_embedded(tmp_path)


def test_server_that_is_not_ready_in_time_is_ended(tmp_path: Path) -> None:
    from pilot_server.embedded import start_embedded

    folder = write_scale_model(tmp_path)
    (folder / "1" / "model.py").write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(StartError, match="was not ready after 2 s"):
        start_embedded(tmp_path, ready_timeout_s=2)
    assert [path.name for path in (cache_dir() / "servers").iterdir()] == ["lock"]


def test_port_that_is_taken_is_named(tmp_path: Path, start_server: StartServer) -> None:
    ports = free_ports()
    message = rf"Port {ports.grpc} \(grpc\) on 127\.0\.0\.1 is taken.*--grpc-port"
    with socket.create_server(("127.0.0.1", ports.grpc)), pytest.raises(PortTakenError, match=message):
        start_server(tmp_path, ports=ports)


def test_port_that_is_lost_while_the_server_starts_is_named(
    tmp_path: Path, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = free_ports()
    # Looked at before the start, it was still free.
    monkeypatch.setattr("pilot_server.embedded.require_free", lambda *_: None)
    with socket.create_server(("127.0.0.1", ports.http)), pytest.raises(PortTakenError, match="was taken while"):
        start_server(tmp_path, ports=ports)


def test_another_server_on_the_port_is_not_mistaken_for_ours(
    tmp_path: Path, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = start_server(tmp_path), free_ports()
    monkeypatch.setattr("pilot_server.embedded.require_free", lambda *_: None)
    with pytest.raises(PortTakenError, match="was taken by another server"):
        start_server(tmp_path, ports=Ports(int(theirs.http_url.partition(":")[2]), ours.grpc, ours.metrics))


def test_without_given_ports_a_lost_port_is_chosen_anew(
    tmp_path: Path, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, good = free_ports(), free_ports()
    choices = iter([lost, good])
    monkeypatch.setattr("pilot_server.embedded.free_ports", lambda _: next(choices))
    with socket.create_server(("127.0.0.1", lost.grpc)):
        server = start_server(tmp_path)
    assert server.http_url == f"127.0.0.1:{good.http}"


def test_missing_repository_is_named(tmp_path: Path, start_server: StartServer) -> None:
    with pytest.raises(ServerError, match=f"no model repository at {tmp_path}/nothing"):
        start_server(tmp_path / "nothing")


def test_model_name_that_would_hang_the_server_is_refused(tmp_path: Path, start_server: StartServer) -> None:
    write_scale_model(tmp_path, "my model")
    with pytest.raises(PreflightError, match="'my model': rename"):
        start_server(tmp_path)


def test_two_servers_at_once_do_not_disturb_each_other(tmp_path: Path, start_server: StartServer) -> None:
    write_scale_model(tmp_path / "a", factor=2)
    write_scale_model(tmp_path / "b", factor=3)
    first, second = start_server(tmp_path / "a"), start_server(tmp_path / "b")
    assert (scaled(first.http_url, [1.0]), scaled(second.http_url, [1.0])) == ([2.0], [3.0])
    first.stop(drain_s=0)
    assert scaled(second.http_url, [1.0]) == [3.0]


def test_server_of_somebody_else_is_used_and_not_stopped(tmp_path: Path, start_server: StartServer) -> None:
    server = start_server(tmp_path)
    with connect(server.http_url, server.grpc_url, server.metrics_url) as theirs:
        assert theirs.is_alive()
    assert server.is_alive()


def test_nobody_at_the_address_is_said() -> None:
    http, grpc, metrics = (f"127.0.0.1:{port}" for _, port in free_ports().named())
    with pytest.raises(ServerError, match="No Triton server answers"):
        connect(http, grpc, metrics)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_our_process_ends(
    server_of_another_process: tuple[subprocess.Popen[str], int], sent: signal.Signals
) -> None:
    process, server_pid = server_of_another_process
    run_folder = run_folder_of(server_pid)
    assert len(leftovers(run_folder)) >= 4  # keeper, server, stub, region, folder
    process.send_signal(sent)
    wait_until(lambda: leftovers(run_folder) == [])


def test_what_a_killed_keeper_leaves_is_swept_by_the_next_start(
    server_of_another_process: tuple[subprocess.Popen[str], int], tmp_path: Path, start_server: StartServer
) -> None:
    process, server_pid = server_of_another_process
    run_folder = run_folder_of(server_pid)
    keeper = psutil.Process(server_pid).parent()
    assert keeper is not None
    os.kill(keeper.pid, signal.SIGKILL)
    process.kill()
    # The server dies with its keeper, the stubs notice that by themselves.
    wait_until(lambda: not any(line.startswith("process") for line in leftovers(run_folder)))
    assert leftovers(run_folder) != []
    start_server(tmp_path, load=())
    assert leftovers(run_folder) == []


def test_dead_stub_cannot_stretch_the_stop(tmp_path: Path, start_server: StartServer) -> None:
    write_scale_model(tmp_path)
    server = start_server(tmp_path)
    psutil.Process(server.pid).children()[0].kill()
    before = time.monotonic()
    server.stop(drain_s=1.0)
    assert time.monotonic() - before < 5.0


def test_idle_connection_does_not_stretch_the_stop(tmp_path: Path, start_server: StartServer) -> None:
    server = start_server(tmp_path)
    connection = HTTPConnection(server.http_url)
    connection.request("GET", "/v2")
    connection.getresponse().read()
    before = time.monotonic()
    server.stop(drain_s=30.0)
    assert time.monotonic() - before < 10.0
    connection.close()


def test_requests_that_run_are_answered_before_the_stop(tmp_path: Path, start_server: StartServer) -> None:
    write_scale_model(tmp_path, delay_s=1.5)
    write_ensemble_of_two_steps(tmp_path)
    server = start_server(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(scaled, server.http_url, [1.0], "twice")
        time.sleep(0.5)
        server.stop()
        assert answer.result() == [4.0]


def test_start_with_no_models_loads_none(tmp_path: Path, start_server: StartServer) -> None:
    write_scale_model(tmp_path)
    server = start_server(tmp_path, load=())
    assert is_healthy(server.http_url, "ready")
    assert psutil.Process(server.pid).children() == []


def test_log_goes_to_the_given_file(tmp_path: Path, start_server: StartServer) -> None:
    start_server(tmp_path, log_file=tmp_path / "server.log").stop()
    assert "Started HTTPService" in (tmp_path / "server.log").read_text()


def test_same_port_twice_is_refused(tmp_path: Path, start_server: StartServer) -> None:
    with pytest.raises(PortTakenError, match="must differ"):
        start_server(tmp_path, ports=Ports(8000, 8000, 8002))

"""A tiny model on the real tritonserver under the real perf_analyzer, with short windows.

From search to proof in one go: test_tune.py of pilot_cli.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilot_client import repository as model_control
from pilot_client.errors import ClientError, ModelNotReadyError
from pilot_client.infer import infer
from pilot_perf.bench import Bench
from pilot_perf.default_space import Levels
from pilot_perf.ensemble import members_of
from pilot_perf.errors import PerfError
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.loading import Loader
from pilot_perf.measures import Trial
from pilot_perf.remote import RemoteServer
from pilot_perf.report.content import content_of
from pilot_perf.requests import RequestOptions, requests_for
from pilot_perf.session import run
from pilot_perf.slo import Slo, parse_slo
from pilot_perf.store import Store
from pilot_perf.sweep_request import Request
from pilot_perf.target import target_for
from pilot_perf.windows import WindowPlan, is_enough
from pilot_server.running import RunningServer
from pilot_server.toolchain import perf_analyzer
from pilot_testing.steady import measured, steady_figures
from pilot_testing.timed_model import CODE, write_ensemble, write_timed_model

pytestmark = pytest.mark.triton

StartServer = Callable[..., RunningServer]
SLO = parse_slo(["p95:60"])
LEVELS = Levels(instances=(1,), max_batches=(1, 8), queue_delays_us=(0,), max_concurrency=16)
SHORT = WindowPlan(window_ms=300)


# Every fifth request ends in an error: the rest must not be taken for the throughput.
SOME_FAIL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    count = 0

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()) for request in requests]

    def answer(self, x):
        self.count += 1
        if self.count % 5:
            return pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])
        if "{failure}" == "batch":
            raise ValueError("out of luck")
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("out of luck"))
"""
PICKY = (
    CODE.replace("def x(self", "def unchecked(self")
    + """
    def x(self, request):
        x = self.unchecked(request)
        assert x.shape == (1, 4) and (x == 7.5).all()
        return x
"""
)


def bench_on(server: RunningServer, model: str = "timed", slo: Slo = SLO, **options: Any) -> Bench:
    """`options` as RequestOptions'."""
    installed = model_control.model_config(server.grpc_url, model)
    requests = requests_for(installed, RequestOptions(**options), Path(server.log_file).parent, None)
    target = target_for(server.grpc_url, installed, requests, slo)
    return Bench(Loader(perf_analyzer(), target, installed, slo, server.pid), installed)


def test_a_model_of_known_speed_is_measured_as_what_it_is(tmp_path: Path, start_server: StartServer) -> None:
    """20 ms a batch, one instance: 50 batches/s at most, of 1 row untuned, of up to 8 with dynamic batching."""
    write_timed_model(tmp_path / "models", batch_ms=20.0)
    bench = bench_on(start_server(tmp_path / "models"))
    untuned = steady_figures(bench, Trial(UNTUNED, 4), SHORT)
    batched = steady_figures(bench, Trial(Knobs(max_batch=8, queue_delay_us=0), 16), SHORT)
    assert 35 < untuned.throughput_per_s < 50
    assert 200 < batched.throughput_per_s < 400
    for figures, concurrency in ((untuned, 4), (batched, 16)):
        assert figures.littles_law_ratio(concurrency) == pytest.approx(1.0, abs=0.15)
        assert is_enough(figures, SLO, share=0.5)
        assert figures.stages is not None
        assert figures.stages.compute_infer_ms == pytest.approx(22, abs=6)
        assert figures.stages.queue_ms is not None
        assert figures.stages.queue_ms < figures.latency_ms["avg"]
        assert figures.usage is not None
        assert figures.usage.server_cpu_cores is not None
        assert 0 < figures.usage.server_cpu_cores < 4
    # A budget on the memory of the server with all its processes is judged, either way.
    assert parse_slo(["p95:10s,memory:100GiB"]).is_kept(untuned)
    assert not parse_slo(["p95:10s,memory:1MiB"]).is_kept(untuned)
    assert untuned.stages is not None
    assert untuned.stages.mean_batch == 1.0
    assert batched.stages is not None
    assert batched.stages.mean_batch is not None
    assert batched.stages.mean_batch > 6


def test_a_configuration_that_does_not_load_is_a_row_with_its_reason_and_the_next_trial_works(
    tmp_path: Path, start_server: StartServer
) -> None:
    refusing = (
        CODE
        + """
    def initialize(self, args):
        if '"max_batch_size":4' in args["model_config"].replace(" ", ""):
            raise ValueError("no batch of 4")
"""
    )
    write_timed_model(tmp_path / "models", batch_ms=1.0, code=refusing)
    bench = bench_on(start_server(tmp_path / "models"))
    refused = bench.measure(Trial(Knobs(max_batch=4), 1), SHORT)
    assert (refused.status, refused.figures) == ("failed", None)
    assert "no batch of 4" in refused.problem
    assert measured(bench, Trial(Knobs(max_batch=8), 1), SHORT).status == "measured"
    meaningless = bench.measure(Trial(Knobs(precision="int4"), 1), SHORT)
    assert "only the onnxruntime backend serves" in meaningless.problem


@pytest.mark.parametrize("failure", ["answer", "batch"])
def test_failed_requests_are_never_fast_ones(failure: str, tmp_path: Path, start_server: StartServer) -> None:
    write_timed_model(tmp_path / "models", batch_ms=1.0, code=SOME_FAIL.replace("{failure}", failure))
    measurement = bench_on(start_server(tmp_path / "models")).measure(Trial(UNTUNED, 4), SHORT)
    assert (measurement.status, measurement.figures) == ("failed", None)
    assert re.search(r"(requests fail: out of luck|of \d+ requests failed).*--slo error_rate", measurement.problem)


def test_failed_requests_are_counted_under_a_budget_on_them(tmp_path: Path, start_server: StartServer) -> None:
    """Every fifth fails; perf_analyzer would end at the first of them."""
    write_timed_model(tmp_path / "models", batch_ms=1.0, code=SOME_FAIL.replace("{failure}", "answer"))
    slo = parse_slo(["p95:60,error_rate:0.5"])
    bench = bench_on(start_server(tmp_path / "models"), slo=slo)
    figures = steady_figures(bench, Trial(UNTUNED, 4), SHORT)
    assert figures.error_rate == pytest.approx(0.2, abs=0.03)
    assert figures.num_requests == pytest.approx(figures.throughput_per_s * figures.window_s, rel=0.01)
    assert slo.is_kept(figures)


def test_rows_of_a_file_are_what_the_model_gets(tmp_path: Path, start_server: StartServer) -> None:
    """The model fails on any row that is not from the file."""
    write_timed_model(tmp_path / "models", "picky", batch_ms=1.0, code=PICKY)
    server = start_server(tmp_path / "models")
    np.savez(tmp_path / "rows.npz", x=np.full((3, 4), 7.5, dtype=np.float32))
    data = tmp_path / "rows.npz"
    assert measured(bench_on(server, "picky", input_data=data), Trial(UNTUNED, 2), SHORT).status == "measured"
    assert bench_on(server, "picky").measure(Trial(UNTUNED, 2), SHORT).status == "failed"


@pytest.fixture
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    for phase in ("SEARCH", "CONFIRM"):
        monkeypatch.setattr(f"pilot_perf.study.{phase}_WINDOWS", SHORT)


@pytest.mark.usefixtures("short_windows")
def test_a_server_that_is_not_ours_keeps_its_configuration(tmp_path: Path, start_server: StartServer) -> None:
    write_timed_model(tmp_path / "models", batch_ms=5.0)
    server = start_server(tmp_path / "models")
    remote = RemoteServer(server.grpc_url)
    before = model_control.model_config(server.grpc_url, "timed")
    loads = Levels(max_concurrency=2)
    request = Request(
        *("timed", SLO, loads, tmp_path / "out"),
        may_reload=False,
        max_measurements=2,
        open_loop=False,
        attribution=False,
        protection=False,
    )
    outcome = run(remote, perf_analyzer(), request)
    assert outcome.winner is not None
    assert outcome.winner.trial.knobs == UNTUNED
    assert outcome.verdict is outcome.config_file is None
    with Store.open(outcome.study_file) as store:
        assert store.conditions["server.address"] == server.grpc_url
    with pytest.raises(PerfError, match=r"--instances, --max-batch, --delay-us change .* add --allow-reload"):
        run(remote, perf_analyzer(), replace(request, levels=LEVELS))
    # Its memory cannot be seen from here.
    with pytest.raises(PerfError, match="memory cannot be measured here: leave that budget out"):
        run(remote, perf_analyzer(), replace(request, slo=parse_slo(["p95:60,memory:1GiB"])))
    # With leave to reload, it is given back as it was.
    run(remote, perf_analyzer(), replace(request, levels=LEVELS, may_reload=True, max_measurements=3))
    assert model_control.model_config(server.grpc_url, "timed") == before
    with pytest.raises(ModelNotReadyError, match=r"model 'nobody' cannot be swept: .*'nobody'"):
        run(remote, perf_analyzer(), replace(request, model="nobody"))
    model_control.unload(server.grpc_url, "timed")
    with pytest.raises(ModelNotReadyError, match="model 'timed' cannot be swept"):
        run(remote, perf_analyzer(), request)


@pytest.mark.usefixtures("short_windows")
def test_a_server_without_model_control_is_swept_over_its_load_alone(tmp_path: Path, start_server: StartServer) -> None:
    """A server as somebody else has started it: it refuses every load."""
    write_timed_model(tmp_path / "models", batch_ms=5.0)
    server = start_server(tmp_path / "models", load=(), extra_args=["--model-control-mode=none"])
    with pytest.raises(ClientError, match="explicit model load / unload is not allowed"):
        model_control.load(server.grpc_url, "timed")
    request = Request("timed", SLO, Levels(max_concurrency=2), tmp_path / "out", may_reload=False, open_loop=False)
    outcome = run(RemoteServer(server.grpc_url), perf_analyzer(), request)
    assert outcome.winner is not None
    with pytest.raises(PerfError, match=r"does not let models be loaded.*--allow-reload.*load alone"):
        run(RemoteServer(server.grpc_url), perf_analyzer(), replace(request, may_reload=True))


@pytest.mark.slow
@pytest.mark.usefixtures("short_windows")
def test_an_ensemble_is_tuned_through_its_members_and_given_back(tmp_path: Path, start_server: StartServer) -> None:
    """The slow member is what bounds it: a second instance of that one doubles the throughput."""
    models = tmp_path / "models"
    write_timed_model(models, "quick", batch_ms=1.0, max_batch_size=1)
    write_timed_model(models, "slow", batch_ms=20.0, max_batch_size=1)
    write_ensemble(models, "both", ("quick", "slow"))
    server = start_server(models)
    before = {name: model_control.model_config(server.grpc_url, name) for name in ("quick", "slow", "both")}
    request = Request(
        *("both", SLO, Levels(instances=(1, 2), max_concurrency=4), tmp_path / "out", models / "both"),
        study_file=tmp_path / "s.sqlite",
        max_measurements=14,
        open_loop=False,
        attribution=False,
    )
    outcome = run(server, perf_analyzer(), request)
    assert outcome.verdict is not None
    assert outcome.verdict.is_a_gain
    assert dict(outcome.verdict.chosen.trial.knobs.members)["slow"].instances == 2
    assert "count: 2" in outcome.member_files["slow"].read_text()
    assert outcome.config_file is None
    figures = outcome.verdict.untuned.rounds[0].figures
    assert figures is not None
    assert figures.members is not None
    assert figures.members["slow"].compute_infer_ms == pytest.approx(22, abs=8)
    assert {name: model_control.model_config(server.grpc_url, name) for name in before} == before
    with Store.open(tmp_path / "s.sqlite") as store:
        assert any(m.figures and m.figures.members for m in store.measurements("search"))
        content = content_of(store)
    assert "+++ slow/config.pbtxt (chosen)" in content.config_diff
    assert content.bottleneck == outcome.bottleneck


def test_a_kill_9_in_mid_sweep_leaves_no_server_and_the_same_command_goes_on(tmp_path: Path) -> None:
    write_timed_model(tmp_path / "models", batch_ms=4.0)
    study = tmp_path / "study.sqlite"
    command = [
        *(sys.executable, "-m", "pilot_cli", "sweep", "timed", "--repository", str(tmp_path / "models")),
        *("--slo", "p95:60", "--instances", "1", "--max-batch", "1", "--concurrency-max", "16"),
        *("--max-measurements", "4", "--study", str(study), "--out", str(tmp_path / "out"), "--json"),
    ]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert first.stderr is not None
    for line in first.stderr:
        if "[search 2]" in line:
            # In the middle of the third.
            time.sleep(1.0)
            os.kill(first.pid, signal.SIGKILL)
            break
    first.stderr.close()
    first.wait()
    with Store.open(study) as store:
        before = store.rows()
    assert 2 <= len(before) <= 3
    second = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert second.stderr is not None
    made = next((line for line in second.stderr if re.match(r" *\[[a-z_]+ \d+\]", line)), "nothing")
    second.send_signal(signal.SIGINT)
    second.communicate()
    assert f"[search {len(before) + 1}]" in made or "[confirm 1]" in made
    with Store.open(study) as store:
        assert store.rows()[: len(before)] == before
        assert len(store.rows()) > len(before)


def test_a_perf_analyzer_that_hangs_is_a_failed_row(
    tmp_path: Path, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in its place that says its version and then hangs."""
    write_timed_model(tmp_path / "models")
    server = start_server(tmp_path / "models")
    hanging = tmp_path / "perf_analyzer"
    hanging.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo "Perf Analyzer Version 2.51.0"; exit 0; }\nsleep 600\n'
    )
    hanging.chmod(0o755)
    monkeypatch.setenv("PERF_ANALYZER", str(hanging))
    monkeypatch.setattr("pilot_perf.analyzer.GRACE_S", 0.5)
    measurement = bench_on(server).measure(Trial(UNTUNED, 1), SHORT)
    assert measurement.status == "failed"
    assert "still running after" in measurement.problem


@pytest.mark.usefixtures("short_windows")
def test_a_server_that_dies_ends_the_study_and_keeps_what_was_measured(
    tmp_path: Path, start_server: StartServer
) -> None:
    model_dir = write_timed_model(tmp_path / "models")
    server = start_server(tmp_path / "models")
    request = Request("timed", SLO, LEVELS, tmp_path / "out", model_dir=model_dir, study_file=tmp_path / "s.sqlite")
    assert server.pid is not None
    pid = server.pid

    def kill_server(_phase: str, number: int, _measurement: object) -> None:
        if number == 2:
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(PerfError, match="the server is gone; what was measured is kept"):
        run(server, perf_analyzer(), request, watch=kill_server)
    with Store.open(tmp_path / "s.sqlite") as store:
        assert [row.measurement.status for row in store.rows()] == ["measured", "measured", "failed"]


@pytest.mark.usefixtures("short_windows")
def test_a_server_of_our_own_that_dies_is_started_once_more_and_the_study_goes_on(
    tmp_path: Path, start_server: StartServer
) -> None:
    model_dir = write_timed_model(tmp_path / "models")
    servers = [start_server(tmp_path / "models")]
    request = Request(
        *("timed", SLO, LEVELS, tmp_path / "out", model_dir),
        study_file=tmp_path / "s.sqlite",
        max_measurements=5,
        open_loop=False,
        attribution=False,
        protection=False,
    )
    said: list[str] = []

    def start_another() -> RunningServer:
        servers.append(start_server(tmp_path / "models"))
        return servers[-1]

    def kill_server(phase: str, number: int, _measurement: object) -> None:
        if (phase, number) == ("search", 2):
            os.kill(servers[0].pid or 0, signal.SIGKILL)

    run(servers[0], perf_analyzer(), request, watch=kill_server, say=said.append, restart=start_another)
    assert len(servers) == 2
    assert any("The server has died; another one is started" in line for line in said)
    with Store.open(tmp_path / "s.sqlite") as store:
        measurements = store.measurements("search")
    assert [measurement.status for measurement in measurements[:3]] == ["measured"] * 3
    assert "once more, since the server had died" in measurements[2].trial.reason


def test_the_untuned_configuration_serves_the_same_after_an_override(tmp_path: Path, start_server: StartServer) -> None:
    write_timed_model(tmp_path / "models", batch_ms=1.0)
    server = start_server(tmp_path / "models")
    bench = bench_on(server)
    bench.measure(Trial(Knobs(instances=2, max_batch=4, queue_delay_us=100), 2), SHORT)
    bench.restore()
    assert model_control.model_config(server.grpc_url, "timed") == bench.installed
    rows = np.ones((2, 4), dtype=np.float32)
    assert np.array_equal(infer(server.grpc_url, "timed", {"x": rows})["y"], rows)
    # Of a server that is not ours the files count again: an override that stays would hide what its owner writes.
    bench.loader.server_pid = None
    bench.load(Knobs(max_batch=4))
    bench.restore()
    assert model_control.model_config(server.grpc_url, "timed") == bench.installed
    with (tmp_path / "models" / "timed" / "config.pbtxt").open("a") as file:
        file.write('parameters { key: "note" value { string_value: "mine" } }\n')
    model_control.load(server.grpc_url, "timed")
    assert model_control.model_config(server.grpc_url, "timed").parameters["note"].string_value == "mine"


@pytest.mark.slow
def test_the_files_of_a_server_that_is_not_ours_count_again_afterwards(
    tmp_path: Path, start_server: StartServer
) -> None:
    """An override that stays would hide what its owner writes from then on, without a word."""
    models = tmp_path / "models"
    write_timed_model(models, "first", batch_ms=1.0)
    write_timed_model(models, "second", batch_ms=1.0)
    write_ensemble(models, "both", ("first", "second"))
    server = start_server(models)
    bench = bench_on(server, "both")
    bench.members = members_of(bench.installed, lambda name: model_control.model_config(server.grpc_url, name))
    bench.loader.server_pid = None
    bench.load(Knobs(members=(("first", Knobs(instances=2)),)))
    bench.restore()
    found = {name: model_control.model_config(server.grpc_url, name) for name in ("first", "both")}
    assert found == {"first": bench.members["first"], "both": bench.installed}
    rows = np.ones((1, 4), dtype=np.float32)
    assert np.array_equal(infer(server.grpc_url, "both", {"x": rows})["y"], rows)
    with (models / "first" / "config.pbtxt").open("a") as file:
        file.write('parameters { key: "note" value { string_value: "mine" } }\n')
    model_control.load(server.grpc_url, "first")
    assert model_control.model_config(server.grpc_url, "first").parameters["note"].string_value == "mine"

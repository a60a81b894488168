"""Loads of every kind on real models of known behaviour, under the real perf_analyzer, with short windows."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pilot_client import repository as model_control
from pilot_perf import loading
from pilot_perf.analyzer import LoadRun
from pilot_perf.analyzer import measure_load as analyzer_measure_load
from pilot_perf.bench import Bench
from pilot_perf.bottleneck import bottleneck
from pilot_perf.ensemble import members_of
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.lengths import parse_lengths
from pilot_perf.loading import Loader
from pilot_perf.measures import Measurement, Trial
from pilot_perf.requests import RequestOptions, requests_for
from pilot_perf.slo import parse_slo
from pilot_perf.target import Target, target_for
from pilot_perf.windows import WindowPlan
from pilot_server.running import RunningServer
from pilot_server.toolchain import perf_analyzer
from pilot_testing.steady import measured, steady_figures
from pilot_testing.timed_model import CODE, write_ensemble, write_timed_model
from pilot_testing.tiny_llm import make_repository

pytestmark = pytest.mark.triton

StartServer = Callable[..., RunningServer]
SHORT = WindowPlan(window_ms=400)


def bench_on(
    server: RunningServer, model: str, slo: str, folder: Path, target: dict[str, Any] | None = None, **options: Any
) -> Bench:
    """`options` as RequestOptions', `target` as Target's."""
    installed = model_control.model_config(server.grpc_url, model)
    requests = requests_for(installed, RequestOptions(**options), folder, None)
    budgets = parse_slo([slo])
    whom = target_for(server.grpc_url, installed, requests, budgets, **(target or {}))
    return Bench(Loader(perf_analyzer(), whom, installed, budgets, server.pid), installed)


# A decoupled model in the shape of vllm_backend: after 60 ms a word every 10 ms, `max_tokens` of them. It counts its
# own tokens where it is asked to.
SPEAKER_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
input { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
input { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true }
RETURN_FLAG
output { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ -1 ] }
instance_group { kind: KIND_CPU count: 1 }
"""
SPEAKER = """
import json, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sampling = pb_utils.get_input_tensor_by_name(request, "sampling_parameters").as_numpy()[0]
            counts = pb_utils.get_input_tensor_by_name(request, "return_num_output_tokens") is not None
            words = json.loads(sampling)["max_tokens"]
            threading.Thread(target=self.speak, args=(request.get_response_sender(), words, counts)).start()

    def speak(self, sender, words, counts):
        begun = time.monotonic()
        for number in range(words):
            time.sleep(max(0.0, begun + 0.06 + 0.01 * number - time.monotonic()))
            outputs = [pb_utils.Tensor("text_output", np.array([b"word "], dtype=np.object_))]
            if counts:
                outputs.append(pb_utils.Tensor("num_output_tokens", np.array([1], dtype=np.uint32)))
            sender.send(pb_utils.InferenceResponse(outputs))
        sender.send(flags=FINAL)
"""


def write_speaker(repository: Path, name: str, *, counts: bool) -> None:
    flag = 'input { name: "return_num_output_tokens" data_type: TYPE_BOOL dims: [ 1 ] optional: true }'
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(SPEAKER_CONFIG.replace("RETURN_FLAG", flag if counts else ""))
    (repository / name / "1" / "model.py").write_text(SPEAKER)


def test_an_answer_that_streams_is_measured_as_what_it_is(tmp_path: Path, start_server: StartServer) -> None:
    """6 words: first after 60 ms, one every 10 ms; 3 in flight. Closed and open loop, counted by model and by chunk."""
    write_speaker(tmp_path / "models", "counting", counts=True)
    write_speaker(tmp_path / "models", "silent", counts=False)
    server = start_server(tmp_path / "models")
    lengths = {"prompt_tokens": parse_lengths("4"), "output_tokens": parse_lengths("6")}
    slo = "p50:ttft_ms:<=:300,p50:itl_ms:<=:60"
    loads = (Trial(UNTUNED, 3), Trial(UNTUNED, 100, rate_per_s=20.0))
    for model, counted_by in (("counting", "model"), ("silent", "chunks")):
        bench = bench_on(server, model, slo, tmp_path, **lengths)
        for trial in loads if model == "counting" else loads[:1]:
            figures = steady_figures(bench, trial, SHORT)
            assert figures.tokens_counted_by == counted_by
            assert figures.mean_output_tokens == 6.0
            assert figures.ttft_ms is not None
            assert 60 <= figures.ttft_ms["p50"] < 250
            assert figures.itl_ms is not None
            assert 8 <= figures.itl_ms["p50"] < 40
            assert figures.latency_ms["p50"] == pytest.approx(
                figures.ttft_ms["p50"] + 5 * figures.itl_ms["p50"], rel=0.2
            )
            assert figures.output_tokens_per_s == pytest.approx(6 * figures.throughput_per_s, rel=0.01)
            assert figures.goodput_per_s == pytest.approx(figures.throughput_per_s, rel=0.1)
            if trial.rate_per_s is not None:
                assert figures.throughput_per_s == pytest.approx(20.0, rel=0.4)
                assert figures.late_sends is not None


@pytest.mark.slow
def test_an_engines_arguments_are_tried_on_a_live_server_and_taken_back(
    tmp_path: Path, start_server: StartServer
) -> None:
    """One sequence at a time makes four requests wait for each other: the first token comes later, the next sooner."""
    server = start_server(make_repository(tmp_path / "models"), ready_timeout_s=200.0)
    model_json = (tmp_path / "models" / "tiny" / "1" / "model.json").read_text()
    bench = bench_on(
        *(server, "tiny", "p50:ttft_ms:<=:5000", tmp_path),
        prompt_tokens=parse_lengths("8"),
        output_tokens=parse_lengths("12"),
    )
    together = steady_figures(bench, Trial(UNTUNED, 4), SHORT)
    alone = steady_figures(bench, Trial(Knobs(max_num_seqs=1), 4), SHORT)
    assert together.ttft_ms is not None
    assert alone.ttft_ms is not None
    assert alone.ttft_ms["p50"] > 1.5 * together.ttft_ms["p50"]
    assert together.tokens_counted_by == "model"
    assert together.mean_output_tokens == 12.0
    refused = bench.measure(Trial(Knobs(max_num_seqs=64, max_num_batched_tokens=8), 1), SHORT)
    assert "max_num_batched_tokens (8) must be at least max_num_seqs (64)" in refused.problem
    bench.restore()
    assert not model_control.model_config(server.grpc_url, "tiny").parameters
    assert (tmp_path / "models" / "tiny" / "1" / "model.json").read_text() == model_json


def test_an_open_loop_shows_the_queue_that_a_closed_one_hides(tmp_path: Path, start_server: StartServer) -> None:
    """20 ms a request, one at a time, 35 arrivals a second: many find another one there, which in a closed loop of 1
    never happens."""
    write_timed_model(tmp_path / "models", batch_ms=20.0, max_batch_size=1)
    bench = bench_on(start_server(tmp_path / "models"), "timed", "p95:500ms", tmp_path)
    closed = steady_figures(bench, Trial(UNTUNED, 1), SHORT)
    opened = steady_figures(bench, Trial(UNTUNED, 500, rate_per_s=35.0), WindowPlan(window_ms=1500))
    assert opened.asked_rate_per_s == 35.0
    assert opened.throughput_per_s == pytest.approx(35.0, rel=0.3)
    assert opened.latency_ms["avg"] > 1.25 * closed.latency_ms["avg"]
    assert closed.late_sends is None


@pytest.mark.slow
def test_a_trace_brings_its_bursts(tmp_path: Path, start_server: StartServer) -> None:
    """Ten at once, then a pause: a request of 10 ms waits for up to nine others."""
    write_timed_model(tmp_path / "models", batch_ms=10.0, max_batch_size=1)
    bursts = {"trace_us": tuple([100] * 9 + [500_000])}
    bench = bench_on(start_server(tmp_path / "models"), "timed", "p95:500ms", tmp_path, bursts)
    figures = steady_figures(bench, Trial(UNTUNED, 500, rate_per_s=20.0), WindowPlan(window_ms=1200))
    assert figures.latency_ms["p90"] > 80
    assert figures.stages is not None
    assert figures.stages.queue_ms is not None
    assert figures.stages.queue_ms > 25


def test_a_rare_percentile_comes_from_the_raw_data(tmp_path: Path, start_server: StartServer) -> None:
    """Every fiftieth request takes 60 ms: p97.5 does not see it, p98.5 does."""
    slow = CODE.replace(
        "time.sleep({batch_ms} / 1000)",
        "self.n = getattr(self, 'n', 0) + 1; time.sleep(0.06 if self.n % 50 == 0 else 0.004)",
    )
    write_timed_model(tmp_path / "models", max_batch_size=1, code=slow)
    bench = bench_on(start_server(tmp_path / "models"), "timed", "p97.5:500ms,p98.5:500ms", tmp_path)
    figures = steady_figures(bench, Trial(UNTUNED, 1), SHORT)
    assert figures.latency_ms["p98.5"] > 55
    assert figures.latency_ms["p97.5"] < figures.latency_ms["p98.5"]
    assert figures.latency_ms["p50"] < 20


@pytest.mark.slow
def test_windows_grow_until_a_slow_model_answers_within_them(tmp_path: Path, start_server: StartServer) -> None:
    write_timed_model(tmp_path / "models", batch_ms=900.0, max_batch_size=1)
    bench = bench_on(start_server(tmp_path / "models"), "timed", "avg:5000ms", tmp_path)
    measurement = bench.measure(Trial(UNTUNED, 1), SHORT)
    figures = measurement.figures
    assert figures is not None, measurement.problem
    assert 900 <= figures.latency_ms["avg"] < 1400


def test_a_model_far_too_slow_for_its_budget_is_judged_by_a_few_requests(
    tmp_path: Path, start_server: StartServer
) -> None:
    write_timed_model(tmp_path / "models", batch_ms=200.0, max_batch_size=1)
    bench = bench_on(start_server(tmp_path / "models"), "timed", "p99:20ms", tmp_path)
    measurement = bench.measure(Trial(UNTUNED, 1), SHORT)
    figures = measurement.figures
    assert figures is not None, measurement.problem
    assert not bench.loader.slo.is_kept(figures)
    assert figures.latency_ms["p50"] >= 200
    # p99 asks for 500 of them, 100 s.
    assert 10 <= figures.num_requests < 40
    assert not measurement.earlier


def test_tensors_pass_through_shared_memory_and_nothing_is_left_of_it(
    tmp_path: Path, start_server: StartServer
) -> None:
    write_timed_model(tmp_path / "models", batch_ms=2.0)
    server = start_server(tmp_path / "models")
    before = set(os.listdir("/dev/shm"))
    bench = bench_on(server, "timed", "p95:500ms", tmp_path, {"shared_memory": "system"})
    assert measured(bench, Trial(UNTUNED, 2), SHORT).status == "measured"
    # Others on this machine come and go; ours would carry the names of its tensors.
    assert not [name for name in set(os.listdir("/dev/shm")) - before if name.endswith(("_x", "_y"))]


def test_the_way_to_pass_tensors_is_the_trials_and_loads_no_configuration(
    tmp_path: Path, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_timed_model(tmp_path / "models", batch_ms=2.0)
    bench = bench_on(start_server(tmp_path / "models"), "timed", "p95:500ms", tmp_path)
    ways, loads = [], []

    def measure_load(analyzer: Any, target: Target, *arguments: Any) -> LoadRun:
        ways.append(target.shared_memory)
        return analyzer_measure_load(analyzer, target, *arguments)

    monkeypatch.setattr(loading, "measure_load", measure_load)
    monkeypatch.setattr(bench, "_load_model", lambda name, _config: loads.append(name))
    assert measured(bench, Trial(UNTUNED, 2), SHORT).status == "measured"
    assert measured(bench, Trial(Knobs(shared_memory="system"), 2), SHORT).status == "measured"
    assert list(dict.fromkeys(ways)) == ["none", "system"]
    assert loads == []


def test_the_members_of_an_ensemble_are_changed_beneath_it_and_measured_each(
    tmp_path: Path, start_server: StartServer
) -> None:
    """The slow member bounds it, until it has a second instance."""
    models = tmp_path / "models"
    write_timed_model(models, "quick", batch_ms=1.0, max_batch_size=1)
    write_timed_model(models, "slow", batch_ms=30.0, max_batch_size=1)
    write_ensemble(models, "both", ("quick", "slow"))
    server = start_server(models)
    bench = bench_on(server, "both", "p50:500ms", tmp_path)
    bench.members = members_of(bench.installed, lambda name: model_control.model_config(server.grpc_url, name))
    one = steady_figures(bench, Trial(UNTUNED, 4), SHORT)
    two = steady_figures(bench, Trial(Knobs(members=(("slow", Knobs(instances=2)),)), 4), SHORT)
    bench.restore()
    assert one.members is not None
    assert one.members["slow"].compute_infer_ms == pytest.approx(32, abs=10)
    assert two.throughput_per_s > 1.5 * one.throughput_per_s
    slow = model_control.model_config(server.grpc_url, "slow")
    assert slow == bench.members["slow"]


def bound_of(bench: Bench, measurement: Measurement, cpus: int = 64) -> str:
    """On a machine of so many cores that the other programs on this one do not matter."""
    figures = measurement.figures
    assert figures is not None, measurement.problem
    assert figures.usage is not None
    elsewhere = replace(measurement, figures=replace(figures, usage=replace(figures.usage, machine_cpus=cpus)))
    found = bottleneck(elsewhere, bench.installed, cpus)
    assert found is not None
    return found.bound


def test_what_bounds_a_real_model_is_named(tmp_path: Path, start_server: StartServer) -> None:
    """One that sleeps; one whose batcher waits for a batch that never fills."""
    write_timed_model(tmp_path / "models", "sleeper", batch_ms=20.0)
    waiting = write_timed_model(tmp_path / "models", "waiting", batch_ms=2.0)
    with (waiting / "config.pbtxt").open("a") as config:
        config.write("dynamic_batching { max_queue_delay_microseconds: 50000 preferred_batch_size: [ 8 ] }\n")
    server = start_server(tmp_path / "models")
    sleeper = bench_on(server, "sleeper", "p50:500ms", tmp_path)
    batcher = bench_on(server, "waiting", "p50:500ms", tmp_path)
    assert bound_of(sleeper, measured(sleeper, Trial(UNTUNED, 8), SHORT)) == "compute"
    assert bound_of(batcher, measured(batcher, Trial(UNTUNED, 2), SHORT)) == "queue"


def test_the_sizes_of_the_batches_that_ran_are_counted(tmp_path: Path, start_server: StartServer) -> None:
    write_timed_model(tmp_path / "models", batch_ms=10.0)
    bench = bench_on(start_server(tmp_path / "models"), "timed", "p50:500ms", tmp_path)
    figures = steady_figures(bench, Trial(Knobs(max_batch=4, queue_delay_us=0), 16), SHORT)
    assert figures.batch_counts is not None
    assert max(figures.batch_counts) == 4
    assert figures.batch_counts[4] > sum(figures.batch_counts.values()) / 2
    assert json.loads(json.dumps(figures.batch_counts))


@pytest.mark.parametrize(
    ("datatype", "more"),
    [("TYPE_STRING", ""), ("TYPE_FP32", "sequence_batching { direct { } }\n")],
    ids=["text", "sequences"],
)
def test_what_perf_analyzer_can_load_is_warmed_up_too(
    datatype: str, more: str, tmp_path: Path, start_server: StartServer
) -> None:
    folder = write_timed_model(tmp_path / "models", batch_ms=2.0)
    file = folder / "config.pbtxt"
    file.write_text(file.read_text().replace("TYPE_FP32", datatype) + more)
    bench = bench_on(start_server(tmp_path / "models"), "timed", "p95:500ms", tmp_path)
    assert steady_figures(bench, Trial(UNTUNED, 2), SHORT).num_requests > 20

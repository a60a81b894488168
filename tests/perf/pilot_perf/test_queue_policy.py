"""The bound of the queue in a configuration, and what a real server makes of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pilot_client import repository
from pilot_client.model_config import parse
from pilot_perf.bench import Bench
from pilot_perf.config_override import apply
from pilot_perf.errors import KnobError
from pilot_perf.knobs import Knobs
from pilot_perf.loading import Loader
from pilot_perf.measures import Trial
from pilot_perf.requests import RequestOptions, requests_for
from pilot_perf.slo import parse_slo
from pilot_perf.target import target_for
from pilot_perf.windows import WindowPlan
from pilot_server.running import RunningServer
from pilot_server.toolchain import perf_analyzer
from pilot_testing.steady import steady_figures
from pilot_testing.timed_model import write_timed_model

SLO = parse_slo(["p95:500"])


def test_a_bound_is_the_dynamic_batchers_policy_also_for_batches_of_one() -> None:
    config = parse('name: "m" backend: "onnxruntime" max_batch_size: 8')
    by_size = apply(config, Knobs(max_batch=4, queue_delay_us=100, max_queue_size=12))
    assert (
        by_size.dynamic_batching
        == parse(
            "dynamic_batching { max_queue_delay_microseconds: 100 default_queue_policy { max_queue_size: 12 } }"
        ).dynamic_batching
    )
    by_wait = apply(config, Knobs(max_batch=1, queue_timeout_us=30_000))
    assert by_wait.max_batch_size == 1
    policy = by_wait.dynamic_batching.default_queue_policy
    assert (policy.default_timeout_microseconds, policy.max_queue_size) == (30_000, 0)
    assert policy.timeout_action == policy.REJECT
    assert not policy.allow_timeout_override


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("sequence_batching {} max_batch_size: 4", "only the dynamic batcher has a queue policy"),
        ("ensemble_scheduling {} max_batch_size: 4", "only the dynamic batcher has a queue policy"),
        ("max_batch_size: 0", "only the dynamic batcher has a queue policy"),
        ("max_batch_size: 4 model_transaction_policy { decoupled: true }", "wait inside the model"),
    ],
)
def test_a_model_without_such_a_queue_says_so(config: str, words: str) -> None:
    with pytest.raises(KnobError, match=words):
        apply(parse(f'name: "m" {config}'), Knobs(max_queue_size=4))


@pytest.mark.triton
def test_a_full_queue_refuses_at_once_and_the_figures_tell_refused_from_accepted(
    tmp_path: Path, start_server: Callable[..., RunningServer]
) -> None:
    """Two instances of 40 ms for a batch of 4 serve 200/s; 400/s arrive."""
    write_timed_model(tmp_path / "models", batch_ms=40.0)
    server = start_server(tmp_path / "models")
    installed = repository.model_config(server.grpc_url, "timed")
    requests = requests_for(installed, RequestOptions(), tmp_path, None)
    loader = Loader(perf_analyzer(), target_for(server.grpc_url, installed, requests, SLO), installed, SLO)
    bounded = Knobs(instances=2, max_batch=4, max_queue_size=8)
    trial = Trial(bounded, 500, rate_per_s=400.0)
    figures = steady_figures(Bench(loader, installed), trial, WindowPlan(window_ms=600))
    assert figures.refused_rate is not None
    assert 0.2 < figures.refused_rate < 0.95
    assert figures.error_rate == figures.refused_rate
    assert figures.refused_ms is not None
    assert figures.refused_ms["p50"] < figures.latency_ms["p50"]

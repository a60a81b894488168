"""Made-up figures for each rule; real models that sleep, compute and move tensors are in test_bench.py."""

from dataclasses import replace
from typing import Any

import pytest

from pilot_client.model_config import parse
from pilot_perf.bottleneck import bottleneck
from pilot_perf.knobs import UNTUNED
from pilot_perf.measures import Figures, Measurement, Stages, Trial
from pilot_perf.usage import Usage

CPUS = 4
CONFIG = parse(
    'name: "m" instance_group { count: 2 } dynamic_batching { max_queue_delay_microseconds: 5000 } max_batch_size: 8'
)
# 8 in flight at 40 ms: 200/s; two instances, each 40 batches/s of 20 ms: busy 80%.
STAGES = Stages(15.0, 0.5, 19.0, 0.5, 2.5)
FIGURES = Figures(200.0, {"avg": 40.0, "p95": 50.0}, 1000, 5.0, STAGES, Usage(1.0, 0.3, 1.5))


def found(trial: Trial = Trial(UNTUNED, 8), **changes: Any) -> tuple[str, str]:  # noqa: B008 frozen
    result = bottleneck(Measurement(trial, "measured", replace(FIGURES, **changes)), CONFIG, CPUS)
    assert result is not None
    return result.bound, result.text


def test_nothing_is_full_at_a_low_load() -> None:
    bound, text = found()
    assert bound == "nothing"
    assert text == (
        "Nothing bounds it at this load. instances are busy 80% of the time; 1.50 of 4 cores are busy. "
        "Next: a higher load"
    )


@pytest.mark.parametrize(
    ("changes", "bound", "evidence"),
    [
        ({"latency_ms": {"avg": 20.0, "p95": 30.0}}, "client", "on average 4.0 of 8 requests were in flight"),
        ({"usage": Usage(1.0, 2.6, 3.7)}, "client", "the client keeps 2.60 of 4 cores busy, the server 1.00"),
        (
            {"stages": Stages(25.0, 0.5, 9.0, 0.5, 2.5)},
            "queue",
            "waits 25.0 of 40.0 ms in the queue, while the instances are busy 40% of the time (the",
        ),
        ({"usage": Usage(3.2, 0.4, 3.8)}, "cpu", "3.80 of 4 cores are busy, 3.20 with the server"),
        ({"usage": Usage(1.0, 0.2, 3.8)}, "cpu", "and 2.60 with other programs"),
        # A container of 4 cores on a host of 64, and a full host that leaves nothing for it.
        (
            {"usage": Usage(3.1, 0.4, 20.0, machine_cpus=64)},
            "cpu",
            "3.50 of 4 cores that may be used are busy, 3.10 with the server. Next: a lower",
        ),
        ({"usage": Usage(1.0, 0.3, 60.0, machine_cpus=64)}, "cpu", "and 58.70 with other programs"),
        ({"usage": Usage(1.0, 0.3, 20.0, machine_cpus=64)}, "nothing", "20.00 of 64 cores are busy"),
        ({"usage": Usage(machine_cpu_cores=3.9)}, "cpu", "the server's processes cannot be seen from here"),
        ({"stages": Stages(1.0, 4.0, 5.0, 6.0, 1.0)}, "transfer", "34.00 of 40.00 ms pass outside"),
        ({"stages": Stages(15.0, 0.5, 24.0, 0.5, 2.5)}, "compute", "2 instances are busy 100% of the time (25.0 ms"),
        ({"usage": Usage(1.0, 0.3, 1.5, gpu_busy=0.97)}, "compute", "the GPU is busy 97% of the time"),
    ],
)
def test_each_rule_has_its_evidence(changes: dict[str, Any], bound: str, evidence: str) -> None:
    named, text = found(**changes)
    assert named == bound
    assert evidence in text


def test_late_sends_of_an_open_loop_are_the_clients() -> None:
    bound, text = found(Trial(UNTUNED, 1000, rate_per_s=200.0), late_sends=0.3)
    assert (bound, "30% of the requests were sent late" in text) == ("client", True)
    # There the requests in flight follow from the load, and are no sign of anything.
    assert found(Trial(UNTUNED, 1000, rate_per_s=200.0), late_sends=0.0)[0] == "nothing"


def test_tritons_times_say_nothing_of_an_engine_behind_them() -> None:
    """A request of 40 ms that Triton has handed over after 1 ms is no matter of transfer."""
    handed_over = {"stages": Stages(0.1, 0.1, 1.0, 0.0, 1.0), "ttft_ms": {"avg": 15.0}, "output_tokens_per_s": 800.0}
    bound, text = found(**handed_over)
    assert bound == "compute"
    assert "the engine makes 800 tokens/s, with 1.00 of 4 cores" in text


def test_what_was_not_measured_has_no_bound() -> None:
    assert bottleneck(Measurement(Trial(UNTUNED, 1), "failed", problem="no"), CONFIG, CPUS) is None

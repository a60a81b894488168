import os
import subprocess
import sys
import time

import pytest

from pilot_perf.gpu import GpuReading
from pilot_perf.usage import Usage
from pilot_perf.usage_sampler import Sample, UsageSampler, usage_between


def test_cores_are_what_was_used_between_the_two_moments() -> None:
    samples = [Sample(float(at), {1: 10.0 + 0.5 * at}, {7: 2.0 * at}, 3.0 * at, 1000 + at) for at in range(11)]
    usage = usage_between(samples, 2.0, 8.0)
    assert usage == Usage(0.5, 2.0, 3.0, 1010, machine_cpus=os.cpu_count())


def test_a_process_that_came_later_counts_from_its_first_reading() -> None:
    samples = [
        Sample(0.0, {1: 100.0}, {}, 0.0),
        Sample(1.0, {1: 101.0, 2: 40.0}, {}, 1.0),
        Sample(2.0, {1: 102.0, 2: 41.0}, {}, 2.0),
        Sample(4.0, {1: 104.0}, {}, 4.0),
    ]
    assert usage_between(samples, 0.0, 4.0).server_cpu_cores == pytest.approx((4.0 + 1.0) / 4.0)


def test_what_cannot_be_seen_is_none_and_not_zero() -> None:
    usage = usage_between([Sample(0.0, {}, {}, 0.0), Sample(1.0, {}, {}, 1.0)], 0.0, 1.0)
    assert usage == Usage(machine_cpu_cores=1.0, machine_cpus=os.cpu_count())
    assert usage_between([], 0.0, 1.0) == Usage()


def test_gpus_are_the_mean_of_their_readings_and_memory_the_most() -> None:
    readings = [GpuReading(0.2, 100, 50.0), GpuReading(0.6, 300, None), GpuReading(0.4, 200, 70.0)]
    samples = [Sample(float(at), {}, {}, 0.0, gpu=reading) for at, reading in enumerate(readings)]
    usage = usage_between(samples, 0.0, 2.0)
    assert (usage.gpu_busy, usage.gpu_memory_bytes, usage.gpu_power_w) == (pytest.approx(0.4), 300, 60.0)


def test_a_busy_child_of_the_server_counts_as_the_server() -> None:
    """A shell that waits for a Python that computes and holds 60 MB."""
    script = "block = b'x' * (60 << 20)\nwhile True: pass"
    shell = subprocess.Popen(["/bin/sh", "-c", f'{sys.executable} -c "{script}" & wait'], start_new_session=True)
    try:
        with UsageSampler(shell.pid) as sampler:
            sampler.watch_client(os.getpid())
            time.sleep(2.5)
            ended = time.monotonic()
    finally:
        os.killpg(shell.pid, 9)
        shell.wait()
    usage = sampler.usage(ended - 1.4, ended)
    assert usage.server_cpu_cores is not None
    assert 0.2 < usage.server_cpu_cores < 1.2
    assert usage.client_cpu_cores is not None
    assert usage.client_cpu_cores < usage.server_cpu_cores
    assert usage.server_memory_bytes is not None
    assert 60 << 20 < usage.server_memory_bytes < 200 << 20

"""The texts were written by perf_analyzer 2.51.0."""

import pytest

from pilot_perf.analyzer_output import parse
from pilot_perf.errors import AnalyzerError

WITH_P95 = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency,"
    "request/response,response wait\n"
    "8,384.844,7,1274,5995,131,11557,1486,2,20491,24905,26297,29475,9,20437\n"
)
WITH_P97 = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p97 latency,"
    "p99 latency,request/response,response wait\n"
    "4,257.188,11,1206,5742,168,7691,500,4,15008,18270,19123,20504,23221,15,15291\n"
)
STDOUT = """*** Measurement Settings ***
  Batch size: 1
  Using "time_windows" mode for stabilization
  Stabilizing using p95throughput
  Measurement window: 1000 msec

Request concurrency: 8
  Pass [1] throughput: 366.58 infer/sec. p95 latency: 27425 usec
  Pass [2] throughput: 397.257 infer/sec. p95 latency: 26365 usec
  Pass [3] throughput: 390.692 infer/sec. p95 latency: 25631 usec
  Client:
    Request count: 1389
    Throughput: 384.844 infer/sec
    p95 latency: 26297 usec
  Server:
    Inference count: 1389
"""
STDOUT_AVERAGE = """Request concurrency: 4
  Pass [1] throughput: 255.102 infer/sec. Avg latency: 15183 usec (std 2428 usec).
  Pass [2] throughput: 256.949 infer/sec. Avg latency: 15381 usec (std 3113 usec).
  Pass [3] throughput: 253.421 infer/sec. Avg latency: 15429 usec (std 2732 usec).
  Client:
    Request count: 369
"""


def test_microseconds_become_milliseconds() -> None:
    result = parse(WITH_P95, STDOUT)
    assert result.throughput_per_s == 384.844
    assert result.latency_ms == pytest.approx(
        {"p50": 20.491, "p90": 24.905, "p95": 26.297, "p99": 29.475, "avg": 20.452}
    )
    assert (result.concurrency, result.num_requests) == (8, 1389)
    assert result.window_s == pytest.approx(3.609, abs=0.001)
    assert result.window_rates_per_s == (366.58, 397.257, 390.692)


def test_a_percentile_that_was_asked_for_is_read() -> None:
    assert parse(WITH_P97, STDOUT_AVERAGE).latency_ms["p97"] == pytest.approx(20.504)


def test_another_unit_is_an_error_and_not_a_number_off_by_a_thousand() -> None:
    with pytest.raises(AnalyzerError, match=r"should be in usec, its text says \['msec'\]"):
        parse(WITH_P95, STDOUT.replace("usec", "msec"))


def test_no_windows_in_the_text_is_an_error() -> None:
    with pytest.raises(AnalyzerError, match="its text says nothing"):
        parse(WITH_P95, "Request concurrency: 8\n")


@pytest.mark.parametrize(
    ("csv_text", "message"),
    [
        (WITH_P95.splitlines()[0], "one row for one load, it has 0"),
        (WITH_P95 + WITH_P95.splitlines()[1], "it has 2"),
        ("", "it has 0"),
        (WITH_P95.replace("p95 latency", "P95"), "None in the column 'p95 latency'"),
        (WITH_P95.replace("384.844", "0"), "no request was answered"),
        (WITH_P95.replace("11557", "n/a"), "'n/a' in the column 'Server Compute Infer'"),
        (WITH_P95.replace("29475", "2"), "percentiles are out of order"),
    ],
)
def test_a_file_that_is_not_understood_is_an_error(csv_text: str, message: str) -> None:
    with pytest.raises(AnalyzerError, match=message):
        parse(csv_text, STDOUT)

import json
from pathlib import Path
from typing import Any

import pytest

from pilot_perf import profile_export
from pilot_perf.errors import AnalyzerError, EmptyWindowsError
from pilot_perf.profile_export import read_export

# The form that perf_analyzer 2.51.0 writes.
EXPORT: dict[str, Any] = {
    "experiments": [
        {
            "experiment": {"mode": "concurrency", "value": 2},
            "requests": [
                {
                    "timestamp": 2000,
                    "request_inputs": {"text_input": "b"},
                    "response_timestamps": [2500, 2900],
                    "response_outputs": [{"text_output": "x", "num_output_tokens": 1}, {"text_output": ""}],
                },
                {"timestamp": 1000, "response_timestamps": [1800], "response_outputs": [{"text_output": "y"}]},
                {"timestamp": 2800, "response_timestamps": [3100], "response_outputs": [{}]},
            ],
            "window_boundaries": [900, 2000, 3000],
        }
    ],
    "version": "2.51.0",
    "service_kind": "triton",
    "endpoint": "",
}


def write(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "requests.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def test_requests_come_in_the_order_of_their_sends_and_those_outside_the_windows_are_left_out(tmp_path: Path) -> None:
    load = read_export(write(tmp_path, EXPORT))
    assert [(record.sent_ns, record.response_ns) for record in load.records] == [
        (1000, (1800,)),
        (2000, (2500, 2900)),
    ]
    assert load.records[1].responses[0]["num_output_tokens"] == 1
    assert load.borders_ns == (900, 2000, 3000)


def test_half_a_character_at_the_end_of_a_chunk_does_not_matter(tmp_path: Path) -> None:
    content = json.dumps(EXPORT).encode().replace(b'"x"', b'"\xc3"')
    assert len(read_export(write(tmp_path, content)).records) == 2


def test_an_empty_export_is_an_error_with_its_reason(tmp_path: Path) -> None:
    """2.51 exits with 0 and leaves it empty where a tensor holds NaN."""
    with pytest.raises(AnalyzerError, match=r"wrote no profile export.*cannot write NaN.*--input-data"):
        read_export(write(tmp_path, b""))
    with pytest.raises(AnalyzerError, match="wrote no profile export"):
        read_export(tmp_path / "none.json")


@pytest.mark.parametrize("content", [b'{"experiments": [', {"experiments": []}, {"experiments": [{"requests": [{}]}]}])
def test_an_export_that_is_not_understood_is_an_error(content: Any, tmp_path: Path) -> None:
    with pytest.raises(AnalyzerError, match="profile export is not understood"):
        read_export(write(tmp_path, content))


def test_an_export_too_large_to_read_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_export, "MAX_BYTES", 10)
    with pytest.raises(AnalyzerError, match=r"holds every tensor: ask for a percentile that needs fewer requests"):
        read_export(write(tmp_path, EXPORT))


def test_an_export_without_a_request_in_its_windows_asks_for_longer_ones(tmp_path: Path) -> None:
    (experiment,) = EXPORT["experiments"]
    with pytest.raises(EmptyWindowsError, match="longer windows"):
        read_export(write(tmp_path, {"experiments": [{**experiment, "window_boundaries": [5000, 6000]}]}))

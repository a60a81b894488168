import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pilot_perf.errors import StudyError
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Earlier, Figures, Measurement, Stages, Trial
from pilot_perf.store import Store, first_difference
from pilot_perf.usage import Usage

CONDITIONS = {"slo": "p95:50ms", "space": {"instances": [1, 2]}, "machine.cpus": 2}
STAGES = Stages(1.0, None, 3.5, 0.25, 4.0)
FIGURES = Figures(200.5, {"avg": 9.5, "p95": 12.25}, 500, 2.5, STAGES, Usage(server_cpu_cores=1.75))
MEASURED = Measurement(Trial(Knobs("int8", 2, 1, 8, 1000), 16, "because"), "measured", FIGURES)
FAILED = Measurement(Trial(UNTUNED, 1), "failed", problem="did not load")


def make(path: Path) -> Store:
    return Store.create_or_resume(path, CONDITIONS, 'name: "m"')


def test_what_was_added_is_read_back_equal_in_its_order(tmp_path: Path) -> None:
    with make(tmp_path / "s.sqlite") as store:
        store.add("search", MEASURED, 4.5)
        store.add("search", FAILED, 0.5)
        store.add("confirm", MEASURED, 5.0)
    with Store.open(tmp_path / "s.sqlite") as store:
        assert store.measurements("search") == [MEASURED, FAILED]
        assert store.measurements("confirm") == [MEASURED]
        assert [row.took_s for row in store.rows()] == [4.5, 0.5, 5.0]
        assert (store.conditions, store.untuned_config, store.member_configs) == (CONDITIONS, 'name: "m"', {})


def test_the_configurations_of_members_are_kept_too(tmp_path: Path) -> None:
    members = {"slow": 'name: "slow"'}
    Store.create_or_resume(tmp_path / "s.sqlite", CONDITIONS, 'name: "m"', members).close()
    with Store.open(tmp_path / "s.sqlite") as store:
        assert store.member_configs == members


def test_the_configurations_that_the_server_has_completed_are_kept_beside_the_files(tmp_path: Path) -> None:
    installed = {"m": 'name: "m" instance_group { count: 2 }'}
    Store.create_or_resume(tmp_path / "s.sqlite", CONDITIONS, 'name: "m"', None, installed).close()
    with Store.open(tmp_path / "s.sqlite") as store:
        assert store.installed_configs == installed


def test_attempts_before_a_measurement_are_kept_with_it(tmp_path: Path) -> None:
    earlier = (Earlier("unsteady", 150.0, (100.0, 200.0), 300, 2.0), Earlier("too few requests", 9.0, (), 9, 1.0))
    rows = [replace(MEASURED, earlier=earlier), replace(FAILED, earlier=earlier[:1])]
    with make(tmp_path / "s.sqlite") as store:
        for row in rows:
            store.add("confirm", row, 1.0)
        assert store.measurements("confirm") == rows


def test_figures_without_stages_and_cpu_stay_without(tmp_path: Path) -> None:
    bare = Measurement(MEASURED.trial, "measured", Figures(1.0, {"avg": 1.0, "p95": 2.0}, 10, 1.0))
    with make(tmp_path / "s.sqlite") as store:
        store.add("search", bare, 1.0)
        assert store.measurements("search") == [bare]


def test_all_that_can_be_measured_is_read_back_equal(tmp_path: Path) -> None:
    all_figures = Figures(
        *(10.0, {"avg": 1.0, "p99.9": 2.0}, 40, 4.0, STAGES),
        usage=Usage(1.5, 0.5, 2.0, 10**9, 0.75, 2**33, 300.0),
        error_rate=0.0,
        window_rates_per_s=(9.0, 10.0, 11.0),
        batch_counts={1: 3, 16: 7},
        members={"first": STAGES},
        ttft_ms={"p95": 300.0},
        itl_ms={"p95": 20.0},
        output_tokens_per_s=640.0,
        output_tokens_per_s_per_user=48.0,
        goodput_per_s=8.0,
        mean_input_tokens=100.0,
        mean_output_tokens=64.0,
        tokens_counted_by="model",
        asked_rate_per_s=10.5,
        late_sends=0.01,
        refused_rate=0.2,
        refused_ms={"p95": 1.5},
        half_widths={"p95 TTFT": 0.1},
    )
    open_loop = Measurement(Trial(UNTUNED, 64, "holds?", rate_per_s=10.5), "measured", all_figures)
    with make(tmp_path / "s.sqlite") as store:
        store.add("open_loop", open_loop, 1.0)
        assert store.measurements("open_loop") == [open_loop]
        assert set(vars(all_figures)) == {name for name, value in vars(all_figures).items() if value is not None}


def test_a_load_in_an_open_loop_is_another_point_than_in_a_closed_one() -> None:
    assert Trial(UNTUNED, 8).point != Trial(UNTUNED, 8, rate_per_s=100.0).point


@pytest.mark.parametrize(
    ("measure", "statistic", "value"),
    [
        ("latency_ms", "p95", 12.25),
        ("latency_ms", "p42", None),
        ("ttft_ms", "p95", None),
        ("error_rate", None, None),
        ("memory_bytes", None, 4096),
    ],
)
def test_a_budget_finds_its_number_or_none(measure: str, statistic: str | None, value: float | None) -> None:
    figures = replace(FIGURES, usage=Usage(server_memory_bytes=4096))
    assert figures.value(measure, statistic) == value


def test_the_same_conditions_resume(tmp_path: Path) -> None:
    with make(tmp_path / "s.sqlite") as store:
        store.add("search", MEASURED, 4.5)
    with make(tmp_path / "s.sqlite") as store:
        assert len(store.rows()) == 1


def test_a_fresh_study_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    with make(tmp_path / "s.sqlite") as store:
        store.add("search", MEASURED, 4.5)
    with Store.create_or_resume(tmp_path / "s.sqlite", {"slo": "p99:50ms"}, "", fresh=True) as store:
        assert (store.rows(), store.conditions) == ([], {"slo": "p99:50ms"})


def test_other_conditions_are_refused_and_the_difference_is_named(tmp_path: Path) -> None:
    make(tmp_path / "s.sqlite").close()
    with pytest.raises(StudyError, match=r"slo was 'p95:50ms', now it is 'p99:50ms'.*--study.*--fresh"):
        Store.create_or_resume(tmp_path / "s.sqlite", {**CONDITIONS, "slo": "p99:50ms"}, "")


def test_a_condition_that_only_one_side_has_is_a_difference() -> None:
    assert first_difference({"a": 1}, {"a": 1, "b": 2}) == "b was None, now it is 2"
    assert first_difference({"a": [1, 2]}, {"a": (1, 2)}) is None


@pytest.mark.parametrize("content", [b"", b"not a database at all, but long enough to have a header" * 10])
def test_another_file_is_refused_and_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    path.write_bytes(content)
    with pytest.raises(StudyError, match=r"is not a study: .*Name the SQLite file that"):
        Store.create_or_resume(path, CONDITIONS, "", fresh=True)
    with pytest.raises(StudyError, match=r"is not a study: .*Name the SQLite file that"):
        make(path)
    assert path.read_bytes() == content


def test_a_study_of_another_version_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "s.sqlite").close()
    connection = sqlite3.connect(tmp_path / "s.sqlite")
    with connection:
        connection.execute("UPDATE study SET schema_version = 1")
    connection.close()
    with pytest.raises(StudyError, match="schema version 1, this is version 4"):
        Store.open(tmp_path / "s.sqlite")


def test_a_missing_study_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"no study at .*tritonpilot sweep"):
        Store.open(tmp_path / "none.sqlite")


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StudyError, match="cannot be written"):
        make(tmp_path / "file" / "s.sqlite")


def test_a_full_disk_is_one_line_and_keeps_what_was_added(tmp_path: Path) -> None:
    with make(tmp_path / "s.sqlite") as store:
        store.add("search", Measurement(Trial(UNTUNED, 1), "failed", problem="x"), 0.0)
        store._connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(StudyError, match=r"full\. What was measured before is kept"):
            store.add("search", Measurement(Trial(UNTUNED, 2), "failed", problem="x" * 10_000), 0.0)
    with make(tmp_path / "s.sqlite") as store:
        assert [measurement.trial.concurrency for measurement in store.measurements("search")] == [1]


def test_a_writer_that_is_killed_loses_nothing_that_it_had_added(tmp_path: Path) -> None:
    """A real kill -9 while another process adds as fast as it can."""
    path = tmp_path / "s.sqlite"
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from pilot_perf.store import Store\nfrom pilot_perf.measures import Measurement, Trial\n"
        "from pilot_perf.knobs import UNTUNED\n"
        "store = Store.create_or_resume(Path(sys.argv[1]), {}, '')\n"
        "for number in range(1, 10**6):\n"
        "    store.add('search', Measurement(Trial(UNTUNED, number), 'failed', problem='x'), 0.0)\n"
        "    print(number, flush=True)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) >= 20:
            os.kill(writer.pid, signal.SIGKILL)
            break
    rest = writer.stdout.read().split("\n")
    writer.stdout.close()
    writer.wait()
    added = max([20, *(int(text) for text in rest[:-1] if text)])
    with Store.create_or_resume(path, {}, "") as store:
        loads = [measurement.trial.concurrency for measurement in store.measurements("search")]
    # The one that it was adding may be there too.
    assert loads in (list(range(1, added + 1)), list(range(1, added + 2)))


def test_a_measurement_has_figures_exactly_when_it_was_measured() -> None:
    with pytest.raises(ValueError, match="failed must not hold figures"):
        Measurement(Trial(UNTUNED, 1), "failed", FIGURES)
    with pytest.raises(ValueError, match="measured must hold figures"):
        Measurement(Trial(UNTUNED, 1), "measured")

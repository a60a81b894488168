import csv
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pilot_perf.confirm import next_confirmation
from pilot_perf.errors import StudyError
from pilot_perf.knobs import Knobs
from pilot_perf.measures import Measurement, Trial
from pilot_perf.report import write_report
from pilot_perf.report.content import Point, content_of, pareto_front
from pilot_perf.search.drive import next_trial
from pilot_perf.search.quick import quick
from pilot_perf.search.space import Space
from pilot_perf.simulator import SimulatedModel
from pilot_perf.slo import parse_slo
from pilot_perf.store import Store

CONFIG = """name: "m<script>" backend: "onnxruntime" max_batch_size: 8 default_model_filename: "model.fp32.onnx"
instance_group { count: 1 }"""
SLO = parse_slo(["p95:60", "p99:90"])
SPACE = Space(("fp32", "int8"), (1, 2), (1, 2), (1, 8, 32), (0,))
MODEL = SimulatedModel(4.0, 1.0, {"int8": 0.6}, 0.4, cores=2, window_noise=0.02, untuned=Knobs("fp32", 1, 1, 1, 0))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of a simulated server, with one failed measurement among the others."""
    path = tmp_path_factory.mktemp("study") / "s.sqlite"
    with Store.create_or_resume(path, {"model": "m<script>", "slo": str(SLO), "machine.cpus": 2}, CONFIG) as store:
        failed = Trial(Knobs("int8", 2, 2, 8, 0), 7, "to see a failure")
        store.add("search", Measurement(failed, "failed", problem="did not <load>"), 1.0)
        while (trial := next_trial(lambda: quick(SPACE, SLO, 2, 60), store.measurements("search")).trial) is not None:
            store.add("search", MODEL.measure(trial, 200), 3.0)
        while True:
            step = next_confirmation(store.measurements("search"), store.measurements("confirm"), SLO)
            if step.trial is None:
                break
            store.add("confirm", MODEL.measure(step.trial, 400), 6.0)
    return path


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href") and value and not value.startswith("data:"):
                self.outside.append(value)


def test_the_page_needs_nothing_from_outside_and_holds_every_measurement(study: Path, tmp_path: Path) -> None:
    html = write_report(study, tmp_path).html.read_text()
    tags = Tags()
    tags.feed(html)
    assert tags.outside == []
    with Store.open(study) as store:
        num_rows = len(store.rows())
    assert f"All {num_rows} measurements" in html
    assert html.split("<h2>Conditions")[0].split("<h2>All")[1].count("<tr class=") == num_rows
    assert "did not &lt;load&gt;" in html
    assert "m<script>" not in html
    assert "int8, instances 2, threads 2, max batch 8, delay us 0 (more threads than cores)" in html
    assert "threads 1, max batch 8, delay us 0 (more" not in html
    assert html.count("Plotly.newPlot(") == 1 + ("Where the time" in html)


def test_the_page_shows_what_the_verdict_says(study: Path, tmp_path: Path) -> None:
    html = write_report(study, tmp_path).html.read_text()
    with Store.open(study) as store:
        content = content_of(store)
    assert content.verdict is not None
    assert content.verdict.is_a_gain
    assert content.verdict.text[1:] in html
    assert str(content.verdict.ratio) in html
    assert re.search(r"<span class='add'>\+.*model\.int8\.onnx", html)


def test_the_table_has_one_line_per_measurement_and_no_number_where_none_was_measured(
    study: Path, tmp_path: Path
) -> None:
    with write_report(study, tmp_path).csv.open() as file:
        lines = list(csv.DictReader(file))
    with Store.open(study) as store:
        rows = store.rows()
    assert len(lines) == len(rows)
    assert lines[0]["status"] == "failed"
    assert lines[0]["problem"] == "did not <load>"
    assert lines[0]["throughput_per_s"] == lines[0]["p95_ms"] == lines[0]["within_budget"] == ""
    for line, row in zip(lines[1:], rows[1:], strict=True):
        figures = row.measurement.figures
        assert figures is not None
        assert float(line["throughput_per_s"]) == figures.throughput_per_s
        assert float(line["p99_ms"]) == figures.latency_ms["p99"]


def test_the_picture_is_a_png_of_a_useful_size(study: Path, tmp_path: Path) -> None:
    png = write_report(study, tmp_path).png.read_bytes()
    assert png.startswith(b"\x89PNG")
    assert len(png) > 20_000


def test_a_study_that_is_not_finished_is_reported_as_such(study: Path, tmp_path: Path) -> None:
    with Store.open(study) as whole, Store.create_or_resume(tmp_path / "s", whole.conditions, CONFIG) as part:
        for row in [row for row in whole.rows() if row.phase == "search"]:
            part.add("search", row.measurement, row.took_s)
    html = write_report(tmp_path / "s", tmp_path).html.read_text()
    assert "it has not been confirmed yet" in html


def test_a_study_of_failures_alone_is_still_a_report(tmp_path: Path) -> None:
    with Store.create_or_resume(tmp_path / "s", {"model": "m", "slo": "p95:5ms"}, CONFIG) as store:
        store.add("search", Measurement(Trial(Knobs(), 1), "failed", problem="no"), 1.0)
    assert "Nothing keeps p95:5ms." in write_report(tmp_path / "s", tmp_path).html.read_text()


def test_a_study_without_measurements_is_refused(tmp_path: Path) -> None:
    Store.create_or_resume(tmp_path / "s", {"model": "m", "slo": "p95:5ms"}, CONFIG).close()
    with pytest.raises(StudyError, match="no measurement yet"):
        write_report(tmp_path / "s", tmp_path)


def test_the_pareto_front_holds_what_nothing_beats_in_both() -> None:
    points = [Point(Knobs(), 1, rate, ms, True) for rate, ms in ((10, 5), (20, 5), (15, 8), (30, 9), (25, 12))]
    assert [(p.throughput_per_s, p.latency_ms) for p in pareto_front(points)] == [(20, 5), (30, 9)]

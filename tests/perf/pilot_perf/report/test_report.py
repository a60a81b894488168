import csv
import re
import shutil
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pilot_client import model_config
from pilot_perf.errors import StudyError
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Earlier, Figures, Measurement, Stages, Trial
from pilot_perf.proof import next_proof
from pilot_perf.report import ReportFiles, write_report
from pilot_perf.report.content import Point, axis_of, config_diff, content_of, pareto_front
from pilot_perf.slo import parse_slo
from pilot_perf.store import Store
from pilot_testing.simulated_study import CONFIG, simulated_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of a simulated server, with one failed measurement among the others."""
    return simulated_study(tmp_path_factory.mktemp("study") / "s.sqlite")


@pytest.fixture(scope="module")
def report(study: Path, tmp_path_factory: pytest.TempPathFactory) -> ReportFiles:
    return write_report(study, tmp_path_factory.mktemp("report"))


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href") and value and not value.startswith("data:"):
                self.outside.append(value)


def test_the_page_needs_nothing_from_outside_and_holds_every_measurement(study: Path, report: ReportFiles) -> None:
    html = report.html.read_text()
    tags = Tags()
    tags.feed(html)
    assert tags.outside == []
    with Store.open(study) as store:
        num_rows = len(store.rows())
    assert f"All {num_rows} measurements" in html
    assert html.split("<h2>Conditions")[0].split("<summary>All")[1].count("<tr class=") == num_rows
    assert "did not &lt;load&gt;" in html
    assert "m<script>" not in html
    assert "int8, instances 2, threads 2, max batch 8, delay us 0 (more threads than cores)" in html
    assert "threads 1, max batch 8, delay us 0 (more" not in html


def test_the_page_shows_what_the_verdict_says(study: Path, report: ReportFiles) -> None:
    html = report.html.read_text()
    with Store.open(study) as store:
        content = content_of(store)
    assert content.verdict is not None
    assert content.verdict.is_a_gain
    assert content.verdict.text[1:] in html
    assert str(content.verdict.ratio) in html
    assert re.search(r"<span class='add'>\+.*model\.int8\.onnx", html)


def test_the_table_has_one_line_per_measurement_and_no_number_where_none_was_measured(
    study: Path, report: ReportFiles
) -> None:
    with report.csv.open() as file:
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


def test_the_picture_is_a_png_of_a_useful_size(report: ReportFiles) -> None:
    png = report.png.read_bytes()
    assert png.startswith(b"\x89PNG")
    assert len(png) > 20_000


def test_the_page_says_what_each_knob_brought_what_holds_in_an_open_loop_and_what_an_overload_does(
    study: Path, report: ReportFiles
) -> None:
    html = report.html.read_text()
    with Store.open(study) as store:
        content = content_of(store)
    assert content.attribution is not None
    for step in content.attribution.steps:
        assert f"x {step.ratio}" in html
    assert content.bottleneck is not None
    assert escape(content.bottleneck.evidence[1:]) in html
    assert content.open_loop is not None
    assert escape(content.open_loop.text(content.slo)[1:]) in html
    assert content.protection is not None
    assert content.protection.knobs is not None
    assert content.protection.text[1:] in html
    assert f"default_timeout_microseconds: {content.protection.knobs.queue_timeout_us}" in html


def test_the_same_study_gives_the_same_report_also_from_a_copy_elsewhere(
    study: Path, report: ReportFiles, tmp_path: Path
) -> None:
    copy = tmp_path / "elsewhere" / "copy.sqlite"
    copy.parent.mkdir()
    shutil.copyfile(study, copy)
    again = write_report(copy, tmp_path / "elsewhere")
    assert again.html.read_text() == report.html.read_text()
    assert again.csv.read_text() == report.csv.read_text()
    assert again.png.read_bytes() == report.png.read_bytes()


def test_the_path_holds_each_best_so_far_and_ends_with_the_winner(study: Path) -> None:
    with Store.open(study) as store:
        content = content_of(store)
    rates = [m.figures.throughput_per_s for _, m in content.improvements if m.figures]
    assert rates == sorted(rates)
    assert content.improvements[-1][1] == content.winner
    number, measurement = content.improvements[0]
    assert content.rows[number - 1].measurement == measurement


def test_a_rate_to_serve_is_answered_with_replicas(study: Path, report: ReportFiles, tmp_path: Path) -> None:
    html = write_report(study, tmp_path, rate_per_s=5000).html.read_text()
    with Store.open(study) as store:
        replicas = content_of(store, 5000).replicas
        open_loop = content_of(store).open_loop
    assert replicas is not None
    assert replicas.count > 1
    assert open_loop is not None
    # One that serves arrivals that wait serves fewer of those that do not.
    assert replicas.measured_per_s == open_loop.rate_per_s
    assert replicas.text in html
    assert "replicas for" not in report.html.read_text()


def test_a_study_that_is_not_finished_is_reported_as_such(study: Path, tmp_path: Path) -> None:
    with Store.open(study) as whole, Store.create_or_resume(tmp_path / "s", whole.conditions, CONFIG) as part:
        for row in [row for row in whole.rows() if row.phase == "search"]:
            part.add("search", row.measurement, row.took_s)
    html = write_report(tmp_path / "s", tmp_path).html.read_text()
    assert "it has not been confirmed yet" in html


def figures(rate: float = 100.0) -> Figures:
    """Two instances, each 50 batches/s of 19 ms: busy 95%."""
    return Figures(rate, {"avg": 40.0, "p95": 45.0}, 500, 5.0, Stages(20.0, 0.5, 18.0, 0.5, 1.0))


def test_what_bounds_it_is_told_of_the_instances_that_ran_and_not_of_those_in_the_file(tmp_path: Path) -> None:
    """A file without instance_group has as many as the server starts: two on CPUs."""
    conditions, source = {"model": "m", "slo": "p95:50ms", "machine.cpus": 64}, 'name: "m" backend: "python"'
    installed = {"m": f"{source} instance_group {{ count: 2 kind: KIND_CPU }}"}
    with Store.create_or_resume(tmp_path / "s", conditions, source, None, installed) as store:
        store.add("search", Measurement(Trial(UNTUNED, 4), "measured", figures()), 1.0)
        found = content_of(store).bottleneck
    assert found is not None
    assert found.bound == "compute"
    assert "2 instances are busy 95% of the time" in found.evidence


def test_a_configuration_that_does_not_replace_the_untuned_one_is_no_difference_to_install(tmp_path: Path) -> None:
    with Store.create_or_resume(tmp_path / "s", {"model": "m", "slo": "p95:50ms"}, 'name: "m"') as store:
        for knobs, rate in ((UNTUNED, 100.0), (Knobs(instances=2), 101.0)):
            store.add("search", Measurement(Trial(knobs, 4), "measured", figures(rate)), 1.0)
        number = 0
        while True:
            step = next_proof(store.measurements("search"), store.measurements("confirm"), parse_slo(["p95:50ms"]))
            if step.trial is None:
                break
            rate, number = 100.0 + 7 * (number % 3), number + 1
            store.add("confirm", Measurement(step.trial, "measured", figures(rate)), 1.0)
        content = content_of(store)
    assert content.verdict is not None
    assert not content.verdict.is_a_gain
    assert content.config_diff == ""
    assert "The chosen configuration" not in write_report(tmp_path / "s", tmp_path).html.read_text()


def test_an_attempt_that_does_not_count_stands_beside_its_measurement(tmp_path: Path) -> None:
    earlier = (Earlier("unsteady", 150.0, (100.0, 200.0), 300, 2.0),)
    with Store.create_or_resume(tmp_path / "s", {"model": "m", "slo": "p95:50ms"}, 'name: "m"') as store:
        store.add("search", Measurement(Trial(UNTUNED, 4), "measured", figures(), earlier=earlier), 1.0)
    files = write_report(tmp_path / "s", tmp_path)
    text = "unsteady: 150.0/s (windows 100, 200), 300 requests in 2.0 s"
    assert text in files.html.read_text()
    assert next(csv.DictReader(files.csv.read_text().splitlines()))["earlier"] == text


def test_how_surely_a_measurement_knows_its_numbers_is_in_page_and_table(tmp_path: Path) -> None:
    known = replace(figures(), window_rates_per_s=(90.0, 100.0, 110.0), half_widths={"p95": 0.08})
    with Store.create_or_resume(tmp_path / "s", {"model": "m", "slo": "p95:50ms"}, 'name: "m"') as store:
        store.add("search", Measurement(Trial(UNTUNED, 4), "measured", known), 1.0)
    files = write_report(tmp_path / "s", tmp_path)
    assert "<td class='short'>25%, p95 8%</td>" in files.html.read_text()
    line = next(csv.DictReader(files.csv.read_text().splitlines()))
    assert (line["throughput_half_width"][:5], line["p95_half_width"]) == ("0.248", "0.08")


def test_a_language_models_page_is_about_its_tokens(tmp_path: Path) -> None:
    """The axis is that of the first budget on a time, with its line; the rates of the answer stand at the head."""
    slo = "p95:ttft:300ms,p95:500ms"
    spoken = replace(
        figures(4.0),
        ttft_ms={"p95": 210.0},
        output_tokens_per_s=640.0,
        output_tokens_per_s_per_user=48.0,
        goodput_per_s=3.75,
    )
    with Store.create_or_resume(tmp_path / "s", {"model": "m", "slo": slo}, 'name: "m"') as store:
        for phase in ("search", "confirm", "confirm", "confirm"):
            store.add(phase, Measurement(Trial(UNTUNED, 4), "measured", spoken), 1.0)  # type: ignore[arg-type]
        content = content_of(store)
    assert content.axis.name == "p95 TTFT"
    assert [point.time_ms for point in content.curves[UNTUNED]] == [210.0]
    html = write_report(tmp_path / "s", tmp_path).html.read_text()
    assert "p95 TTFT, ms" in html
    assert "budget p95:ttft:300ms" in html
    for value, name in (("640", "output tokens/s"), ("48", "tokens/s for one user"), ("3.8", "goodput/s")):
        assert f"<b>{value}</b><span>{name}</span>" in html


@pytest.mark.parametrize(
    ("slo", "name"),
    [("error_rate:0.01", "p95 latency"), ("p99:5ms,p95:itl:3ms", "p99 latency"), ("avg:itl:3ms", "avg ITL")],
)
def test_the_axis_is_that_of_the_first_budget_on_a_time(slo: str, name: str) -> None:
    assert axis_of(parse_slo([slo])).name == name


def test_the_nearest_miss_is_told_where_nothing_keeps_the_budget(tmp_path: Path) -> None:
    with Store.create_or_resume(tmp_path / "s", {"model": "m", "slo": "p95:5ms"}, 'name: "m"') as store:
        store.add("search", Measurement(Trial(UNTUNED, 4), "measured", figures()), 1.0)
    html = write_report(tmp_path / "s", tmp_path).html.read_text()
    assert "Nothing keeps p95:5ms. Nearest: untuned, 4 in flight: p95 45.0 ms." in html


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
    assert [(p.throughput_per_s, p.time_ms) for p in pareto_front(points)] == [(20, 5), (30, 9)]


def test_the_configurations_of_an_ensembles_members_are_compared_one_by_one() -> None:
    ensemble = model_config.parse('name: "both" ensemble_scheduling {}')
    members = {name: model_config.parse(f'name: "{name}" max_batch_size: 8') for name in ("quick", "slow")}
    chosen = Knobs(members=(("slow", Knobs(max_batch=32)),))
    diff = config_diff(ensemble, chosen, members)
    assert "--- slow/config.pbtxt (untuned)" in diff
    assert "-max_batch_size: 8\n+max_batch_size: 32" in diff
    assert "quick" not in diff

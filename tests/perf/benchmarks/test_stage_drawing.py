"""A timeline is drawn to scale: one line a request, a mark a stage."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "perf" / "benchmarks")
    return importlib.import_module("stage_drawing")


def test_spans_lie_where_their_time_is(drawing: ModuleType) -> None:
    spans = [drawing.Span(1, "a", 10.0, 10.5), drawing.Span(1, "b", 10.5, 10.75), drawing.Span(2, "a", 10.5, 11.0)]
    legend, first, second = drawing.draw(spans, ["a", "b"]).splitlines()
    half, quarter = drawing.WIDTH // 2, drawing.WIDTH // 4
    assert legend == "  - a, # b; 1000 ms wide"
    assert first == f"   1 |{'-' * half}{'#' * quarter}{' ' * quarter}|"
    assert second == f"   2 |{' ' * half}{'-' * half}|"


def test_the_shortest_span_is_drawn(drawing: ModuleType) -> None:
    spans = [drawing.Span(1, "a", 0.0, 1.0), drawing.Span(2, "b", 1.0, 1.0)]
    assert drawing.draw(spans, ["a", "b"]).splitlines()[2] == f"   2 |{' ' * (drawing.WIDTH - 1)}#|"


def test_overlap_is_one_where_one_thing_is_done_at_a_time(drawing: ModuleType) -> None:
    serial = [drawing.Span(1, "a", 0.0, 1.0), drawing.Span(1, "b", 1.0, 2.0)]
    both = [drawing.Span(1, "a", 0.0, 2.0), drawing.Span(2, "a", 0.0, 2.0)]
    assert drawing.overlap_share(serial) == pytest.approx(1.0)
    assert drawing.overlap_share(both) == pytest.approx(2.0)

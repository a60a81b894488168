"""The page in a real browser, offline: it draws without a word on the console, fits a phone, and prints whole."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pilot_perf.report import write_report
from pilot_testing.browser import Browser, find_browser
from pilot_testing.simulated_study import simulated_study

PHONE_PX, A4_PX = 390, 718

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium here (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    return write_report(simulated_study(folder / "s.sqlite"), folder, rate_per_s=5000).html


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    assert program is not None
    with Browser(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def right_ends(browser: Browser, selector: str) -> list[float]:
    found = browser.evaluate(f"[...document.querySelectorAll('{selector}')].map(e => e.getBoundingClientRect().right)")
    assert isinstance(found, list)
    return found


def test_it_draws_every_figure_offline_and_without_a_word_on_the_console(page: Path, browser: Browser) -> None:
    browser.requests.clear()
    browser.open(page, 1200)
    assert browser.problems == []
    assert browser.requests == [page.absolute().as_uri()]
    figures = browser.evaluate(
        "[...document.querySelectorAll('.plotly-graph-div')].map(e => e.querySelectorAll('.trace').length)"
    )
    assert len(figures) == 5
    assert all(count > 0 for count in figures), figures


def test_it_fits_a_phone_without_scrolling_sideways(page: Path, browser: Browser) -> None:
    browser.open(page, PHONE_PX, is_phone=True)
    assert browser.evaluate("document.documentElement.scrollWidth") == PHONE_PX
    assert max(right_ends(browser, ".main-svg")) <= PHONE_PX
    # Wide tables scroll inside their own box.
    assert max(right_ends(browser, ".scroll")) <= PHONE_PX
    font_px = browser.evaluate("parseFloat(getComputedStyle(document.querySelector('.verdict')).fontSize)")
    assert font_px >= 16
    assert browser.problems == []


def test_in_print_nothing_is_cut_off_and_every_row_is_there(page: Path, browser: Browser, tmp_path: Path) -> None:
    browser.open(page, A4_PX)
    assert browser.evaluate("document.querySelector('details').open") is False
    browser.print_media(on=True)
    try:
        assert browser.evaluate("document.querySelector('details').open") is True
        assert max(right_ends(browser, "table")) <= A4_PX
        assert max(right_ends(browser, ".main-svg")) <= A4_PX
        browser.pdf(tmp_path / "report.pdf")
    finally:
        browser.print_media(on=False)
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    assert browser.problems == []

"""Writes the three files of a report."""

from dataclasses import dataclass
from pathlib import Path

from pilot_perf.errors import StudyError
from pilot_perf.report.content import content_of
from pilot_perf.report.page import page
from pilot_perf.report.picture import write_picture
from pilot_perf.report.table import to_csv
from pilot_perf.store import Store


@dataclass(frozen=True)
class ReportFiles:
    html: Path
    png: Path
    csv: Path


def write_report(study: Path, folder: Path, rate_per_s: float | None = None) -> ReportFiles:
    """report.html, report.png and report.csv of `study` in `folder`, which is made where it is missing.

    `rate_per_s` is what is to be served: the page then says how many replicas that needs.

    Raises:
        StudyError: no study, one without measurements, or a folder that cannot be written.
    """
    with Store.open(study) as store:
        content = content_of(store, rate_per_s)
    if not content.rows:
        raise StudyError(f"{study} holds no measurement yet: run the sweep first")
    files = ReportFiles(folder / "report.html", folder / "report.png", folder / "report.csv")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.html.write_text(page(content))
        write_picture(content, files.png)
        files.csv.write_text(to_csv(content))
    except OSError as error:
        raise StudyError(
            f"the report cannot be written to {folder}: {error}. Name another folder with --out"
        ) from error
    return files

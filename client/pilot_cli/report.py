"""`tritonpilot report`: a study as an HTML page, a picture and a table."""

from pathlib import Path

import click

from pilot_cli.output import json_option, print_json


@click.command("report")
@click.argument("study", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for report.html, report.png and report.csv.  [default: beside the study]",
)
@click.option(
    "--rate", "rate_per_s", type=click.FloatRange(0, min_open=True), help="Requests/s to serve: how many replicas?"
)
@json_option
def command(study: Path, out: Path | None, rate_per_s: float | None, as_json: bool) -> None:
    """Write the report of STUDY, the SQLite file that `sweep` and `tune` keep.

    The HTML page holds everything inside (it needs no network): the conclusion, the chosen config.pbtxt as a diff,
    what each knob brought, throughput-latency curves with the budget, what an overload does, where a request's time
    goes, the path of the search, every measurement and the conditions. The picture (PNG) and the table (CSV) are for
    documents and spreadsheets. A study that is not finished can be reported too.
    """
    from pilot_perf.report import write_report

    files = write_report(study, out or study.parent, rate_per_s)
    if as_json:
        print_json({"html": str(files.html), "png": str(files.png), "csv": str(files.csv)})
        return
    click.echo(f"Report: {files.html}\nPicture: {files.png}\nTable: {files.csv}")

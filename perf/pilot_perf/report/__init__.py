"""A study as an HTML page, a picture and a table, all computed from its SQLite file alone."""

from pilot_perf.report.write import ReportFiles, write_report

__all__ = ["ReportFiles", "write_report"]

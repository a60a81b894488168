"""Errors of measuring and searching.

PerfError
  BudgetError        a latency budget cannot be read
  KnobError          a knob has no meaning for this model, or a value that it cannot take
  AnalyzerError      perf_analyzer failed, hung, or wrote something that is not understood
    EmptyWindowsError    no request was answered within the windows
    FailedRequestsError    requests failed, and perf_analyzer ends at the first of them
  InputDataError     the input data for the load do not fit the model
  StudyError         a study's file cannot be used: another version, another study, other conditions
"""

from pilot_base.errors import PilotError


class PerfError(PilotError):
    """A measurement or a study failed."""


class BudgetError(PerfError):
    """A latency budget cannot be read."""


class KnobError(PerfError):
    """A knob has no meaning for this model, or a value that it cannot take."""


class AnalyzerError(PerfError):
    """perf_analyzer failed, hung, or wrote something that is not understood."""


class EmptyWindowsError(AnalyzerError):
    """No request was answered within the windows: longer ones are needed."""


class FailedRequestsError(AnalyzerError):
    """Requests failed, and perf_analyzer ends at the first of them."""


class InputDataError(PerfError):
    """The input data for the load do not fit the model."""


class StudyError(PerfError):
    """A study's file cannot be used."""

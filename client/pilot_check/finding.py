"""What a rule says about a place in a model repository."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"  # the server refuses the model, or serves it wrongly
    WARNING = "warning"  # it is served, but hardly as it was meant
    NOTE = "note"  # nothing is wrong yet


@dataclass(frozen=True, order=True)
class Finding:
    """One thing to mend. `file` is relative to the repository; `line` counts from 1, None for a file as a whole."""

    file: str
    line: int | None
    code: str  # stable, for suppressions and for counting: "name-folder"
    severity: Severity
    field: str  # "input[0].dims", empty where no field is concerned
    message: str
    mend: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        rule = f"{self.code}: {self.field}" if self.field else self.code
        return f"{place}: {self.severity}: {self.message} ({self.mend}) [{rule}]"

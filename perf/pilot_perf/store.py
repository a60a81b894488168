"""A study in one SQLite file: its conditions, and every measurement, committed as it ends.

    study         one row: schema version, conditions (JSON), the untuned config.pbtxt, of an ensemble those of its
                  members too (JSON, by name), and each of them as the server has completed it (JSON, by name)
    measurement   one row per measurement, in the order in which they ended; failed and unstable ones too

Nothing else is stored: winner, ratio and report are computed from these rows. A process killed at any moment loses
the measurement that was running.
"""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from pilot_perf.errors import StudyError
from pilot_perf.knobs import Knobs
from pilot_perf.measures import Earlier, Figures, Measurement, Stages, Trial
from pilot_perf.usage import Usage

SCHEMA_VERSION = 4
_SCHEMA = """
CREATE TABLE study (schema_version INTEGER NOT NULL, created_at TEXT NOT NULL, conditions TEXT NOT NULL,
                    untuned_config TEXT NOT NULL, member_configs TEXT NOT NULL, installed_configs TEXT NOT NULL);
CREATE TABLE measurement (
    id INTEGER PRIMARY KEY,
    phase TEXT NOT NULL CHECK (phase IN ('search', 'confirm', 'open_loop', 'attribution', 'overload')),
    knobs TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    rate_per_s REAL,
    reason TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('measured', 'unstable', 'failed')),
    problem TEXT NOT NULL,
    ended_at TEXT NOT NULL,
    took_s REAL NOT NULL,
    figures TEXT,
    earlier TEXT NOT NULL
);
"""

Phase = Literal["search", "confirm", "open_loop", "attribution", "overload"]
Conditions = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One stored measurement. `took_s` includes the load of the configuration and the warm-up."""

    phase: Phase
    measurement: Measurement
    ended_at: str
    took_s: float


class Store:
    """The open file. One thread uses it."""

    def __init__(self, path: Path, connection: sqlite3.Connection, study: sqlite3.Row) -> None:
        self.path = path
        self.created_at: str = study["created_at"]
        self.conditions: dict[str, Any] = json.loads(study["conditions"])
        self.untuned_config: str = study["untuned_config"]
        self.member_configs: dict[str, str] = json.loads(study["member_configs"])
        self.installed_configs: dict[str, str] = json.loads(study["installed_configs"])
        self._connection = connection

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing study.

        Raises:
            StudyError: no file, or not a study of this version.
        """
        if not path.is_file():
            raise StudyError(f"There is no study at {path}. `tritonpilot sweep MODEL --study {path}` makes one")
        connection: sqlite3.Connection | None = None
        try:
            connection = _connect(path)
            found = connection.execute("SELECT * FROM study").fetchone()
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise StudyError(
                f"{path} is not a study: {error}. Name the SQLite file that `tritonpilot sweep` or `tune` has written "
                "(it says where at its end; by default below build/results)"
            ) from error
        if found is None or found["schema_version"] != SCHEMA_VERSION:
            connection.close()
            version = found and found["schema_version"]
            raise StudyError(
                f"{path} is a study of schema version {version}, this is version {SCHEMA_VERSION}: "
                "name another file, or remove it"
            )
        return cls(path, connection, found)

    @classmethod
    def create_or_resume(
        cls,
        path: Path,
        conditions: Conditions,
        untuned_config: str,
        member_configs: Mapping[str, str] | None = None,
        installed_configs: Mapping[str, str] | None = None,
        *,
        fresh: bool = False,
    ) -> Self:
        """The study at `path`, new where there is none, or in place of the one that is there if `fresh`.

        Raises:
            StudyError: what is there is no study, or was made under other conditions; names the first that differs.
        """
        if fresh and path.exists():
            cls.open(path).close()
            path.unlink()
        if path.exists():
            store = cls.open(path)
            if difference := first_difference(store.conditions, conditions):
                store.close()
                raise StudyError(
                    f"{path} was measured under other conditions: {difference}. Name another file with --study, "
                    "or start it anew with --fresh"
                )
            return store
        _create(path, conditions, untuned_config, member_configs or {}, installed_configs or {})
        return cls.open(path)

    def add(self, phase: Phase, measurement: Measurement, took_s: float) -> None:
        """Commit one measurement; it is on disk when this returns.

        Raises:
            StudyError: no space, or no permission; the rows before it are kept.
        """
        trial, figures = measurement.trial, measurement.figures
        row = (
            phase,
            json.dumps(trial.knobs.as_dict()),
            trial.concurrency,
            trial.rate_per_s,
            trial.reason,
            measurement.status,
            measurement.problem,
            datetime.now(UTC).isoformat(timespec="milliseconds"),
            took_s,
            None if figures is None else _figures_json(figures),
            json.dumps([asdict(attempt) for attempt in measurement.earlier]),
        )
        try:
            with self._connection:
                self._connection.execute(f"INSERT INTO measurement VALUES (NULL{', ?' * len(row)})", row)
        except sqlite3.Error as error:
            raise StudyError(
                f"{self.path} cannot be written: {error}. What was measured before is kept: mend that, and the same "
                "command goes on from there"
            ) from error

    def rows(self, phase: Phase | None = None) -> list[Row]:
        """All measurements, or those of one phase, in the order in which they were made."""
        query = "SELECT * FROM measurement ORDER BY id"
        rows = [_row(dict(found)) for found in self._connection.execute(query)]
        return [row for row in rows if phase in (None, row.phase)]

    def measurements(self, phase: Phase) -> list[Measurement]:
        return [row.measurement for row in self.rows(phase)]

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def first_difference(stored: Conditions, now: Conditions) -> str | None:
    """The first condition (by name) that differs, in words; None where all are equal."""
    # Through JSON, as they were stored: tuples and lists are the same there.
    now = json.loads(json.dumps(now))
    for name in sorted({*stored, *now}):
        if stored.get(name) != now.get(name):
            return f"{name} was {stored.get(name)!r}, now it is {now.get(name)!r}"
    return None


def _create(path: Path, conditions: Conditions, untuned_config: str, *configs: Mapping[str, str]) -> None:
    """Written beside and renamed: a kill leaves no half-made study behind."""
    beside = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.unlink(missing_ok=True)
        connection = _connect(beside)
        connection.executescript(_SCHEMA)
        with connection:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            texts = json.dumps(conditions, sort_keys=True), untuned_config, *(json.dumps(dict(of)) for of in configs)
            connection.execute("INSERT INTO study VALUES (?, ?, ?, ?, ?, ?)", (SCHEMA_VERSION, now, *texts))
        connection.close()
        beside.replace(path)
    except (OSError, sqlite3.Error) as error:
        raise StudyError(f"{path} cannot be written: {error}. Name a study file that can be, with --study") from error


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    # On disk before a measurement counts as made.
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _row(found: dict[str, Any]) -> Row:
    trial = Trial(
        Knobs.from_dict(json.loads(found["knobs"])), found["concurrency"], found["reason"], found["rate_per_s"]
    )
    figures = None if found["figures"] is None else _read_figures(json.loads(found["figures"]))
    earlier = tuple(
        Earlier(**{**attempt, "window_rates_per_s": tuple(attempt["window_rates_per_s"])})
        for attempt in json.loads(found["earlier"])
    )
    measurement = Measurement(trial, found["status"], figures, found["problem"], earlier)
    return Row(found["phase"], measurement, found["ended_at"], found["took_s"])


def _figures_json(figures: Figures) -> str:
    """What was not measured is left out."""
    return json.dumps({name: value for name, value in asdict(figures).items() if value is not None})


def _read_figures(stored: dict[str, Any]) -> Figures:
    """The inverse of `_figures_json`: JSON knows no tuples, no keys that are numbers, and no classes."""
    if "stages" in stored:
        stored["stages"] = Stages(**stored["stages"])
    if "usage" in stored:
        stored["usage"] = Usage(**stored["usage"])
    if "members" in stored:
        stored["members"] = {name: Stages(**stages) for name, stages in stored["members"].items()}
    if "batch_counts" in stored:
        stored["batch_counts"] = {int(size): count for size, count in stored["batch_counts"].items()}
    stored["window_rates_per_s"] = tuple(stored["window_rates_per_s"])
    return Figures(**stored)

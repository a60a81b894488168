"""Three versions of a config.pbtxt become one: a person's edits and an export's news, neither lost.

    base        what the last export wrote        --edits of a person-->    yours      (comments, batching, new fields)
       |                                                                      |
       +-- news of this export -->  generated  ------------ merged <----------+

It works on lines, as diff3 does (Khanna, Kunal, Pierce: A formal investigation of diff3, 2007), so that comments and
fields that only a newer server knows survive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff

from pilot_export.errors import InstallError


@dataclass(frozen=True)
class _Change:
    """`lines` in place of base[low:high]."""

    low: int
    high: int
    lines: tuple[str, ...]

    def meets(self, other: "_Change") -> bool:
        """Whether both touch the same lines, or insert at the same place."""
        if self.low == self.high or other.low == other.high:
            return self.low <= other.high and other.low <= self.high
        return self.low < other.high and other.low < self.high


def merge(base: str, yours: str, generated: str, where: str) -> str:
    """`yours` with what changed from `base` to `generated`.

    Raises:
        InstallError: both changed the same lines; shows them, and names the file `where`.
    """
    lines = base.splitlines(keepends=True)
    edits, news = _changes(lines, yours), _changes(lines, generated)
    for change in news:
        against = [edit for edit in edits if edit.meets(change) and edit != change]
        if against:
            raise InstallError(_conflict(lines, against, change, where))
    merged, at = [], 0
    for change in sorted({*edits, *news}, key=lambda change: (change.low, change.high)):
        merged += [*lines[at : change.low], *change.lines]
        at = change.high
    return "".join([*merged, *lines[at:]])


def diff(before: str, after: str, name: str) -> str:
    """What changes, as `diff -u` shows it; empty where nothing does."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return "".join(unified_diff(old, new, f"{name} (there)", f"{name} (new)"))


def _changes(base: Sequence[str], other: str) -> list[_Change]:
    lines = other.splitlines(keepends=True)
    found = SequenceMatcher(None, base, lines, autojunk=False).get_opcodes()
    return [_Change(low, high, tuple(lines[start:end])) for tag, low, high, start, end in found if tag != "equal"]


def _conflict(base: Sequence[str], edits: Sequence[_Change], change: _Change, where: str) -> str:
    def shown(lines: Sequence[str]) -> str:
        return "; ".join(line.strip() for line in lines) or "(nothing)"

    yours = shown([line for edit in edits for line in edit.lines])
    low, high = min(c.low for c in (*edits, change)), max(c.high for c in (*edits, change))
    return (
        f"{where}: your edit and this export change the same lines. It was: {shown(base[low:high])}. Yours: {yours}. "
        f"The export's: {shown(change.lines)}. Put the export's lines in, or remove the file to have it written anew"
    )

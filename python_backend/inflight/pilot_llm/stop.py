"""Finds stop strings in a text that arrives in pieces, and never lets a piece of one out.

    stop "DEF"     pieces   "abD"   "E"   "xD"   "EF" ...
                   out      "ab"    ""    "DEx"  stop: the text ends before "DEF"
                   held       "D"   "DE"    "D"

Held back is the longest end of the text that a stop string begins with: at most one character less than the longest.
"""

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """The text up to where it ends, and what ended it."""

    text: str
    stop: str


class StopMatcher:
    """Watches one sequence's text."""

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._held = ""

    def feed(self, text: str) -> str | StopMatch:
        """Take in the next piece. Returns what may be shown now, or, at a stop string, the last that may be shown."""
        if not self._stops:
            return text
        text = self._held + text
        matches = [(text.index(stop), len(stop), stop) for stop in self._stops if stop in text]
        if matches:
            start, length, stop = min(matches)  # the one that begins first; of these the shortest, complete first
            self._held = ""
            return StopMatch(text[: start + length] if self._include_stop else text[:start], stop)
        shown = len(text) - self._num_held(text)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """The text is over: what was held back belongs to it after all."""
        held, self._held = self._held, ""
        return held

    def _num_held(self, text: str) -> int:
        longest = min(len(text), max(len(stop) for stop in self._stops) - 1)
        for length in range(longest, 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0

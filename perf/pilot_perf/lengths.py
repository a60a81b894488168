"""How long texts and answers are, as a person writes it, and lengths drawn from it.

128            always
32-512         any whole number between, each as likely
200~60         normal, mean and standard deviation, at least 1
lengths.txt    a sample: a file with one number per line, each as likely
"""

import hashlib
import random
import re
from dataclasses import dataclass
from pathlib import Path

from pilot_perf.errors import InputDataError

GRAMMAR = "lengths look like 128, 32-512, 200~60 (mean and standard deviation), or the name of a file of numbers"

_ONE = re.compile(r"[0-9]+")
_RANGE = re.compile(r"(?P<least>[0-9]+)-(?P<most>[0-9]+)")
_NORMAL = re.compile(r"(?P<mean>[0-9]+)~(?P<deviation>[0-9]+)")


@dataclass(frozen=True)
class Lengths:
    """`text` is how it was written. Exactly one of the others is there; `normal` is mean and deviation."""

    text: str
    between: tuple[int, int] | None = None
    normal: tuple[int, int] | None = None
    sample: tuple[int, ...] | None = None

    def __str__(self) -> str:
        """As it was written; of a file also what it held."""
        if self.sample is None:
            return self.text
        digest = hashlib.sha256(repr(sorted(self.sample)).encode()).hexdigest()
        return f"{self.text} ({len(self.sample)} numbers, {digest[:8]})"

    def draw(self, rng: random.Random) -> int:
        if self.between is not None:
            return rng.randint(*self.between)
        if self.normal is not None:
            return max(1, round(rng.gauss(*self.normal)))
        return rng.choice(self.sample or (1,))


def parse_lengths(text: str) -> Lengths:
    """
    Raises:
        InputDataError: not understood, a length below 1, or a file that cannot be read; shows the grammar.
    """
    if _ONE.fullmatch(text):
        return _at_least_one(text, Lengths(text, between=(int(text), int(text))), int(text))
    if match := _RANGE.fullmatch(text):
        least, most = int(match["least"]), int(match["most"])
        if least > most:
            raise InputDataError(f"lengths {text!r}: {least} is above {most}; {GRAMMAR}")
        return _at_least_one(text, Lengths(text, between=(least, most)), least)
    if match := _NORMAL.fullmatch(text):
        mean = int(match["mean"])
        return _at_least_one(text, Lengths(text, normal=(mean, int(match["deviation"]))), mean)
    path = Path(text)
    if not path.is_file():
        raise InputDataError(f"lengths {text!r} are not understood: {GRAMMAR}")
    try:
        sample = tuple(int(word) for word in path.read_text().split())
    except (OSError, ValueError) as error:
        raise InputDataError(f"{path} cannot be read as one whole number per line: {error}") from error
    if not sample:
        raise InputDataError(f"{path} holds no lengths; {GRAMMAR}")
    return _at_least_one(text, Lengths(text, sample=sample), min(sample))


def _at_least_one(text: str, lengths: Lengths, least: int) -> Lengths:
    if least < 1:
        raise InputDataError(f"lengths {text!r}: the least that has a meaning is 1; {GRAMMAR}")
    return lengths

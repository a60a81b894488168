"""Labelled sentences: the ground truth of the VADER study, about 23,700 sentences that people rated for sentiment.

C.J. Hutto and Eric Gilbert, "VADER: A Parsimonious Rule-based Model for Sentiment Analysis of Social Media Text",
ICWSM 2014; MIT licence. Film and product reviews, newspaper editorials and tweets; ratings from -4 to 4.
"""

import functools
import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

from pilot_base.packages import PinnedPackage, fetch
from pilot_base.progress import Say, silent
from pilot_export.errors import SpecError

PACKAGE = PinnedPackage(
    "vaderSentiment", "3.3.2", "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9", 3, is_wheel=False
)
_ARCHIVE = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
_SOURCES = ("movieReviewSnippets", "amazonReviewSnippets", "nytEditorialSnippets", "tweets")


@dataclass(frozen=True)
class RatedSentence:
    """`rating` is the mean of at least 20 people, from -4 (very negative) to 4 (very positive)."""

    text: str
    rating: float


def rated_sentences(say: Say = silent) -> tuple[RatedSentence, ...]:
    """All of them, in the order of the files."""
    return _read(fetch(PACKAGE, say) / _ARCHIVE)


@functools.cache
def _read(path: Path) -> tuple[RatedSentence, ...]:
    sentences = []
    with tarfile.open(path) as archive:
        for source in _SOURCES:
            member = archive.extractfile(f"hutto_ICWSM_2014/{source}_GroundTruth.txt")
            if member is None:
                raise SpecError(f"{path} holds no {source}: delete the package from the cache, it is fetched again")
            for line in io.TextIOWrapper(member, encoding="utf-8"):
                _number, rating, text = line.rstrip("\n").split("\t", 2)
                sentences.append(RatedSentence(text.strip(), float(rating)))
    return tuple(sentences)

"""Stop strings in pieces of text."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilot_llm.stop import StopMatch, StopMatcher


def run(stops: list[str], pieces: list[str], *, include_stop: bool = False) -> tuple[list[str], str | None]:
    """The pieces that were shown, with what the end brings, and the stop string that was found."""
    matcher = StopMatcher(stops, include_stop=include_stop)
    shown = []
    for piece in pieces:
        result = matcher.feed(piece)
        if isinstance(result, StopMatch):
            return [*shown, result.text], result.stop
        shown.append(result)
    return [*shown, matcher.flush()], None


def test_stop_over_three_tokens_shows_no_piece_of_itself() -> None:
    assert run(["DEFGHIJ"], ["abc", "DEF", "G", "HI", "J"]) == (["abc", "", "", "", ""], "DEFGHIJ")


def test_beginning_that_never_completes_is_delivered() -> None:
    assert run(["DEFG"], ["abD", "E", "xD", "E"]) == (["ab", "", "DEx", "", "DE"], None)


def test_text_behind_the_stop_in_the_same_piece_is_dropped() -> None:
    assert run(["\n"], ["one\ntwo"]) == (["one"], "\n")


def test_first_stop_in_the_text_wins_whatever_the_order_of_the_list() -> None:
    assert run(["two", "one"], ["x one two"]) == (["x "], "one")


def test_of_two_stops_at_one_place_the_shorter_is_complete_first() -> None:
    assert run(["abc", "ab"], ["xabc"]) == (["x"], "ab")


def test_stop_can_be_kept_in_the_text() -> None:
    assert run(["END"], ["go EN", "D and more"], include_stop=True) == (["go ", "END"], "END")


@pytest.mark.parametrize("stop", ["\n", " x", "x"])
def test_short_stops_with_leading_space_or_newline_match(stop: str) -> None:
    assert run([stop], ["word", stop, "more"]) == (["word", ""], stop)


@given(
    text=st.text("abX", max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=8),
    stops=st.lists(st.text("abX", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_result_does_not_depend_on_how_the_text_is_cut_up(text: str, cuts: list[int], stops: list[str]) -> None:
    borders = [0, *sorted(cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(borders)]
    shown, stop = run(stops, pieces)
    by_letter, stop_by_letter = run(stops, list(text))
    assert ("".join(by_letter), stop_by_letter) == ("".join(shown), stop) or stop is not None
    joined = "".join(shown)
    assert text.startswith(joined)
    assert not any(found in joined for found in stops)
    assert (joined == text) == (stop is None)


@given(text=st.text("ab", max_size=20), stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
def test_no_more_is_held_back_than_the_longest_stop_less_one(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    fed = shown = ""
    for letter in text:
        result = matcher.feed(letter)
        if isinstance(result, StopMatch):
            return
        fed, shown = fed + letter, shown + result
        assert len(fed) - len(shown) < max(len(stop) for stop in stops)

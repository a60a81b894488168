"""The drafts of prompt lookup, compared with a search that is written out."""

import random

import pytest

from pilot_llm.ngram import NgramDrafter


def written_out(tokens: list[int], longest: int, shortest: int, num_tokens: int) -> list[int]:
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == tokens[-length:]:
                period = len(tokens) - start - length
                extended = list(tokens)
                while len(extended) < len(tokens) + num_tokens:
                    extended.append(extended[len(extended) - period])
                return extended[start + length : start + length + num_tokens]
    return []


def test_draft_is_what_followed_the_last_tokens_before() -> None:
    assert NgramDrafter(3, 2).draft([1, 2, 3, 4, 5, 9, 2, 3], 2) == [4, 5]


def test_longer_match_wins_over_a_later_one() -> None:
    assert NgramDrafter(3, 1).draft([1, 2, 3, 4, 3, 7, 1, 2, 3], 1) == [4]


def test_of_equal_matches_the_latest_wins() -> None:
    assert NgramDrafter(2, 2).draft([1, 2, 3, 1, 2, 4, 1, 2], 1) == [4]


def test_text_that_goes_round_is_continued_beyond_its_end() -> None:
    assert NgramDrafter(2, 2).draft([7, 8, 9, 7, 8, 9], 7) == [7, 8, 9, 7, 8, 9, 7]


@pytest.mark.parametrize("tokens", [[], [5], [5, 6], [5, 6, 7]])
def test_nothing_seen_before_gives_no_draft(tokens: list[int]) -> None:
    assert NgramDrafter(4, 1).draft(tokens, 5) == []


def test_bytes_of_two_neighbours_are_no_token() -> None:
    """0x00010000 twice holds, shifted by two bytes, what looks like the token 0x00000001."""
    assert NgramDrafter(1, 1).draft([0x10000, 0x10000, 5, 1], 1) == []


@pytest.mark.parametrize("seed", range(20))
def test_draft_of_a_growing_text_is_that_of_a_plain_search(seed: int) -> None:
    rng = random.Random(seed)
    longest = rng.randint(1, 4)
    shortest = rng.randint(1, longest)
    drafter, tokens = NgramDrafter(longest, shortest), [rng.randrange(3) * 255 for _ in range(rng.randint(0, 5))]
    for _ in range(60):
        tokens += [rng.randrange(3) * 255 for _ in range(rng.randint(1, 3))]
        num_tokens = rng.randint(1, 6)
        assert drafter.draft(tokens, num_tokens) == written_out(tokens, longest, shortest, num_tokens)

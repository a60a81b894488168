import random
from pathlib import Path
from statistics import mean, stdev

import pytest

from pilot_perf.errors import InputDataError
from pilot_perf.lengths import parse_lengths


def drawn(text: str, count: int = 2000) -> list[int]:
    lengths, rng = parse_lengths(text), random.Random(1)
    return [lengths.draw(rng) for _ in range(count)]


def test_each_form_draws_what_it_says(tmp_path: Path) -> None:
    assert set(drawn("128")) == {128}
    assert (min(drawn("3-7")), max(drawn("3-7"))) == (3, 7)
    normal = drawn("200~40")
    assert mean(normal) == pytest.approx(200, abs=5)
    assert stdev(normal) == pytest.approx(40, abs=4)
    assert min(drawn("2~40")) == 1
    sample = tmp_path / "lengths.txt"
    sample.write_text("5\n5\n900\n")
    assert set(drawn(str(sample))) == {5, 900}
    assert drawn(str(sample)).count(5) == pytest.approx(1333, abs=100)
    before = str(parse_lengths(str(sample)))
    sample.write_text("5\n6\n900\n")
    assert str(parse_lengths(str(sample))) != before  # a condition of a study


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("long", "are not understood: lengths look like 128"),
        ("0", "the least that has a meaning is 1"),
        ("0-5", "the least that has a meaning is 1"),
        ("9-5", "9 is above 5"),
        ("-5", "are not understood"),
    ],
)
def test_what_is_no_length_is_refused_with_the_grammar(text: str, message: str) -> None:
    with pytest.raises(InputDataError, match=message):
        parse_lengths(text)


@pytest.mark.parametrize(("content", "message"), [("", "holds no lengths"), ("1\nx", "one whole number per line")])
def test_a_file_without_lengths_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text(content)
    with pytest.raises(InputDataError, match=message):
        parse_lengths(str(tmp_path / "lengths.txt"))

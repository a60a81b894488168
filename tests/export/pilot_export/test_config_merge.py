"""A person's edits and an export's news in one config.pbtxt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilot_export.config_merge import diff, merge
from pilot_export.errors import InstallError

BASE = """\
name: "m"
max_batch_size: 8
input {
  name: "x"
  dims: 4
}
instance_group {
  count: 1
}
"""


def test_comments_new_fields_and_news_of_the_export_are_all_kept() -> None:
    yours = BASE.replace("count: 1", "count: 2  # two are faster").replace(
        "instance", "# of a newer server\nfield_of_2031: true\ninstance"
    )
    generated = BASE.replace("dims: 4", "dims: 5") + 'output {\n  name: "second"\n}\n'
    assert merge(BASE, yours, generated, "config.pbtxt") == yours.replace("dims: 4", "dims: 5") + (
        'output {\n  name: "second"\n}\n'
    )


def test_lines_that_both_changed_are_shown_and_nothing_is_guessed() -> None:
    yours, generated = BASE.replace("size: 8", "size: 4  # hand"), BASE.replace("size: 8", "size: 16")
    message = r"m/config.pbtxt: .*It was: max_batch_size: 8\. Yours: max_batch_size: 4  # hand\. The export's: max_.*16"
    with pytest.raises(InstallError, match=message):
        merge(BASE, yours, generated, "m/config.pbtxt")


def test_the_same_change_on_both_sides_is_no_conflict_and_is_made_once() -> None:
    changed = BASE.replace("dims: 4", "dims: 5\n  dims: 6")
    assert merge(BASE, changed, changed, "") == changed


def test_two_insertions_at_one_place_have_no_order_so_they_conflict() -> None:
    with pytest.raises(InstallError, match=r"Yours: a: 1\. The export's: b: 2"):
        merge(BASE, BASE + "a: 1\n", BASE + "b: 2\n", "")


@given(st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n"])), st.lists(st.sampled_from(["a\n", "b\n", "e\n"])))
def test_whoever_changes_alone_is_followed(base: list[str], other: list[str]) -> None:
    before, after = "".join(base), "".join(other)
    assert merge(before, after, before, "") == after
    assert merge(before, before, after, "") == after


def test_the_diff_says_nothing_where_nothing_changes() -> None:
    assert diff(BASE, BASE, "config.pbtxt") == ""
    assert "+max_batch_size: 16\n" in diff(BASE, BASE.replace("size: 8", "size: 16"), "config.pbtxt")

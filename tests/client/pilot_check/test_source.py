"""Every field of a config.pbtxt is found on its line, however the text is written."""

from pilot_check.source import Source

TEXT = """\
# { a comment: [
name: "m"
input [
  {
    name: "X"
    dims: [ -1,
            3 ]
  },
  { name: "Y" dims: 4 }
]
output < name: 'Z; "quoted" {'
  "continued" >
output { name: "W"
}
parameters { key: "a" value { string_value: "1" } }
parameters: {
  key: "b"
  value: { string_value: "}" }
}
dynamic_batching { preferred_batch_size: 2, preferred_batch_size: 4;
  priority_queue_policy { key: 7
    value { max_queue_size: 1 } }
}
version_policy { specific { versions: [1, 3] } }
"""


def test_fields_are_found_by_name_and_index() -> None:
    source = Source(TEXT)
    assert source.line("name") == 2
    assert source.line("input", 0) == 4
    assert source.line("input", 0, "dims") == 6
    assert source.line("input", 1, "dims") == 9
    assert source.line("output", 0, "name") == 11
    assert source.line("output", 1, "name") == 13
    assert source.line("dynamic_batching", "preferred_batch_size", 1) == 20


def test_entries_of_a_map_are_found_by_key() -> None:
    source = Source(TEXT)
    assert source.line("parameters", source.entry("parameters", "b")) == 16
    level = source.entry("priority_queue_policy", 7, "dynamic_batching")
    assert source.line("dynamic_batching", "priority_queue_policy", level, "value") == 22


def test_a_field_that_is_not_said_is_on_the_line_of_the_one_around_it() -> None:
    source = Source(TEXT)
    assert source.line("input", 1, "data_type") == 9
    assert source.line("max_batch_size") == 1
    assert not source.has("max_batch_size")
    assert source.has("dynamic_batching", "preferred_batch_size")


def test_an_empty_text_has_one_line() -> None:
    assert Source("").line("name") == 1
    assert Source("# nothing\n").line("input", 3, "name") == 1

"""Where each field stands in the text of a config.pbtxt.

The protobuf library parses the text and decides what it means, but it keeps no positions. So this reads the same text
once more, only far enough to know the nesting:

    input [ { name: "X" dims: [ 1 ] }, { name: "Y" } ]     ->  ("input", 0, "dims")   line 1
    input { name: "X" }
    input { name: "Y" }                                    ->  ("input", 1, "name")   line 2

It runs only on text that the library has accepted.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*)|(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?P<mark>[{}<>\[\]:,;])|(?P<word>[^\s{}<>\[\]:,;"'\#]+)""",
    re.VERBOSE,
)
_QUOTES = "\"'"
_OPEN = {"{": "}", "<": ">"}

Path = tuple[str | int, ...]


@dataclass
class Node:
    """A field of a message: its line, and its own fields where it is a message."""

    name: str
    line: int
    value: str = ""
    children: list["Node"] = field(default_factory=list)

    def child(self, name: str, index: int = 0) -> "Node | None":
        found = [child for child in self.children if child.name == name]
        return found[index] if index < len(found) else None


class Source:
    """The fields of one config.pbtxt by their place in the text."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._next = 0
        self._root = Node("", 1, children=self._fields(None))

    def line(self, *path: str | int) -> int:
        """The line of the field at `path`, or of the nearest field around it that the text has."""
        return self._walk(path)[0].line

    def entry(self, name: str, key: object, *around: str | int) -> int:
        """The index of the entry of a map field (`name { key: ... value ... }`, inside `around`) that has `key`."""
        node, found = self._walk(around)
        entries = [child for child in node.children if child.name == name] if found else []
        for index, entry in enumerate(entries):
            named = entry.child("key")
            if named is not None and named.value == str(key):
                return index
        return 0

    def has(self, *path: str | int) -> bool:
        """Whether the text says the field at all, be it the default value."""
        return self._walk(path)[1]

    def _walk(self, path: Path) -> tuple[Node, bool]:
        node, steps = self._root, list(path)
        while steps:
            name = str(steps.pop(0))
            index = int(steps.pop(0)) if steps and isinstance(steps[0], int) else 0
            child = node.child(name, index)
            if child is None:
                return node, False
            node = child
        return node, True

    def _fields(self, end: str | None) -> list[Node]:
        """Fields up to `end`, which is taken too."""
        fields: list[Node] = []
        while self._next < len(self._tokens):
            token, line = self._take()
            if token == end:
                break
            if token not in (",", ";"):
                fields += self._values(token, line)
        return fields

    def _values(self, name: str, line: int) -> list[Node]:
        """The value or values after a field's name, one node per element of a list of messages."""
        if self._peek() == ":":
            self._take()
        if self._peek() == "[":
            self._take()
            return self._list(name, line)
        return [self._value(name, line)]

    def _list(self, name: str, line: int) -> list[Node]:
        nodes: list[Node] = []
        while self._peek() not in ("]", None):
            if self._peek() in _OPEN:
                nodes.append(self._value(name, self._tokens[self._next][1]))
            else:
                token, place = self._take()
                if token not in (",", ";"):
                    nodes.append(Node(name, place, _unquoted(token)))
        self._take()
        return nodes or [Node(name, line)]

    def _value(self, name: str, line: int) -> Node:
        token, _ = self._take()
        if token in _OPEN:
            return Node(name, line, children=self._fields(_OPEN[token]))
        value = _unquoted(token)
        # Texts that stand side by side are one text.
        while (following := self._peek()) is not None and following[0] in _QUOTES and token[0] in _QUOTES:
            value += _unquoted(self._take()[0])
        return Node(name, line, value)

    def _peek(self) -> str | None:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else None

    def _take(self) -> tuple[str, int]:
        if self._next == len(self._tokens):
            return "", self._tokens[-1][1] if self._tokens else 1
        self._next += 1
        return self._tokens[self._next - 1]


def _unquoted(token: str) -> str:
    return token[1:-1] if token[:1] in ('"', "'") else token


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    line = 1
    for match in _TOKEN.finditer(text):
        if match.lastgroup != "skip":
            yield match.group(), line
        line += match.group().count("\n")

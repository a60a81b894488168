"""Checks the fields of a frozen dataclass against a mapping that came from outside: names, types, ranges.

Each field carries its own rule, so that a name, its default and its limits stand on one line:

    top_p: float = checked(1.0, Number(above=0.0, up_to=1.0))

A rule is a callable (name, value) -> value that raises ValueError with a message naming the field.
`None` means the default, unless the rule says that None is a value.
"""

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Rule = Callable[[str, object], object]


def checked(default: Any, rule: Rule, *, none_is_a_value: bool = False) -> Any:
    """A dataclass field with its default and its rule."""
    return dataclasses.field(default=default, metadata={"rule": rule, "none_is_a_value": none_is_a_value})


def checked_values(cls: type[Any], mapping: Mapping[str, object]) -> dict[str, object]:
    """The checked value of each name in `mapping`; every name must be a field of `cls` that has a rule.

    Raises:
        ValueError: an unknown name (with the nearest known one), or a value that its rule refuses.
    """
    rules = {field.name: field.metadata for field in dataclasses.fields(cls) if "rule" in field.metadata}
    values = {}
    for name, value in mapping.items():
        if name not in rules:
            raise ValueError(unknown_name(name, rules))
        if value is not None:
            values[name] = rules[name]["rule"](name, value)
        elif rules[name]["none_is_a_value"]:
            values[name] = None
    return values


def unknown_name(name: str, known: Iterable[str]) -> str:
    """Says that `name` is unknown, and which known name was probably meant."""
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.6)
    return f"unknown name {str(name)!r}" + (f"; did you mean {near[0]!r}?" if near else "")


@dataclasses.dataclass(frozen=True)
class Integer:
    """A whole number in [at_least, at_most]; "7" and 7.0 are 7 if `coerce`. True and False are no numbers."""

    at_least: int | None = None
    at_most: int | None = None
    coerce: bool = False

    def __call__(self, name: str, value: object) -> int:
        number = self._whole(value)
        if number is None:
            raise ValueError(f"{name} must be a whole number, got {value!r}")
        if (self.at_least is not None and number < self.at_least) or (
            self.at_most is not None and number > self.at_most
        ):
            raise ValueError(f"{name} must be {_interval(self.at_least, self.at_most)}, got {number}")
        return number

    def _whole(self, value: object) -> int | None:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if not self.coerce:
            return None
        if isinstance(value, str):
            try:
                return int(value)
            except ValueError:
                return None
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return None


@dataclasses.dataclass(frozen=True)
class Number:
    """A finite number in the given interval; "0.7" is 0.7 if `coerce`."""

    at_least: float | None = None
    above: float | None = None
    up_to: float | None = None
    coerce: bool = False

    def __call__(self, name: str, value: object) -> float:
        if isinstance(value, str) and self.coerce:
            try:
                value = float(value)
            except ValueError:
                raise ValueError(f"{name} must be a number, got {value!r}") from None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{name} must be a number, got {value!r}")
        try:
            number = float(value)
        except OverflowError:
            raise ValueError(f"{name} is too large") from None
        if not math.isfinite(number):
            raise ValueError(f"{name} must be finite, got {number}")
        if self.at_least is not None and number < self.at_least:
            raise ValueError(f"{name} must be at least {self.at_least}, got {number}")
        if self.above is not None and number <= self.above:
            raise ValueError(f"{name} must be above {self.above}, got {number}")
        if self.up_to is not None and number > self.up_to:
            raise ValueError(f"{name} must be at most {self.up_to}, got {number}")
        return number


@dataclasses.dataclass(frozen=True)
class Flag:
    """true or false; the words "true" and "false" too if `coerce`."""

    coerce: bool = False

    def __call__(self, name: str, value: object) -> bool:
        if isinstance(value, bool):
            return value
        if self.coerce and isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise ValueError(f"{name} must be true or false, got {value!r}")


@dataclasses.dataclass(frozen=True)
class Text:
    """A string that can be written as UTF-8; one of `choices` if there are any."""

    choices: tuple[str, ...] = ()
    longest: int | None = None  # characters

    def __call__(self, name: str, value: object) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError(f"{name} must be a text that is not empty, got {value!r}")
        if self.longest is not None and len(value) > self.longest:
            raise ValueError(f"{name} must have at most {self.longest} characters, got {len(value)}")
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write
            raise ValueError(f"{name} must be Unicode text, got {value!r}") from None
        if self.choices and value not in self.choices:
            raise ValueError(f"{name} must be one of {', '.join(self.choices)}, got {value!r}")
        return value


@dataclasses.dataclass(frozen=True)
class ListOf:
    """A list whose items follow `item`, as a tuple; a single item is a list of one if `one_will_do`."""

    item: Rule
    one_will_do: bool = False
    longest: int | None = None  # items

    def __call__(self, name: str, value: object) -> tuple[Any, ...]:
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            if not self.one_will_do:
                raise ValueError(f"{name} must be a list, got {value!r}")
            value = [value]
        if self.longest is not None and len(value) > self.longest:
            raise ValueError(f"{name} must have at most {self.longest} items, got {len(value)}")
        return tuple(self.item(f"{name}[{index}]", item) for index, item in enumerate(value))


def _interval(at_least: float | None, at_most: float | None) -> str:
    if at_most is None:
        return f"at least {at_least}"
    if at_least is None:
        return f"at most {at_most}"
    return f"from {at_least} to {at_most}"

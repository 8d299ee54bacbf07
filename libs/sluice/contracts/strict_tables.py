"""
Files that people write, as tables read strictly: every mistake names file, key, value and cure.

Takes text or what a parser made of it, never a path; what the keys mean is the business of whoever reads the table.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.contracts.refusals import shorten


class TableError(ValueError):
    """One mistake in a file: `origin`, the `field` at fault, its `value` as written, and what would be right."""

    def __init__(self, origin: str, at: str, value: object, message: str) -> None:
        """Keep the parts, and say them in one sentence."""
        self.origin = origin
        self.field = at
        self.value = shorten(as_written(value))
        self.message = message
        super().__init__(f"{origin}: {at} = {self.value}: {message}" if at else f"{origin}: {message}")


def as_written(value: object) -> str:
    """A value as it stands in TOML, near enough for a person to find it."""
    if value is None:
        return "(not given)"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    try:
        return repr(value)
    except ValueError:  # a number like 0xfff..., whose digits Python does not count out
        return "(a number of thousands of digits)"


def read_toml(text: str, *, origin: str, error: type[TableError] = TableError) -> "Table":
    """The whole document as a table; `origin` is what errors call it, `error` what they are. Raises `error`."""
    try:
        document = tomllib.loads(text)
    except ValueError as wrong:  # TOMLDecodeError, and Python's own limit on the digits of a number
        raise error(origin, "", None, f"not TOML: {wrong}") from None
    except RecursionError:
        raise error(origin, "", None, "not TOML: nested too deeply") from None
    return Table(origin, "", document, error)


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a file, where it is, and typed ways to take its values or complain about them (by `error`)."""

    origin: str
    path: str
    values: Mapping[str, Any]
    error: type[TableError] = TableError

    def at(self, key: str) -> str:
        """Where a key of this table is in the file."""
        return f"{self.path}.{key}" if self.path else key

    def called(self, path: str) -> "Table":
        """The same table under a path that a person finds more easily."""
        return Table(self.origin, path, self.values, self.error)

    def wrong(self, key: str, message: str) -> TableError:
        """The error that says what is wrong with the value of a key."""
        return self.error(self.origin, self.at(key), self.values.get(key), message)

    def only(self, known: tuple[str, ...]) -> None:
        """Refuse every other key."""
        for key in self.values:
            if key not in known:
                raise self.wrong(key, f"unknown key; known here: {', '.join(known)}")

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty; `default` where the key is not given."""
        value = self.values.get(key, default)
        if not isinstance(value, str) or not value:
            raise self.wrong(key, "must be a text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts that are not empty; () where the key is not given."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.wrong(key, "must be a list of texts")
        return tuple(value)

    def whole(self, key: str, default: int, least: int, most: int) -> int:
        """A whole number within bounds."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(key, f"must be a whole number from {least} to {most}")
        return value

    def number(self, key: str, default: float, least: float, most: float) -> float:
        """A number within bounds."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self.wrong(key, f"must be a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "must be true or false")
        return value

    def table(self, key: str) -> "Table":
        """A table within this one; an empty one where the key is not given."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "must be a table")
        return Table(self.origin, self.at(key), value, self.error)

    def tables(self, key: str) -> list["Table"]:
        """A list of tables, counted from 1 in what errors say; empty where the key is not given."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(key, "must be a list of tables")
        return [
            Table(self.origin, f"{self.at(key)}[{number}]", item, self.error)
            for number, item in enumerate(value, start=1)
        ]

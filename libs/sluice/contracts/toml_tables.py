"""Read TOML files that people write, strictly: every error names file, key, value and cure."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.contracts.reasons import shorten

TOML_BYTES_MAX = 4 * 1024 * 1024
"""Of one document: a fleet of 20,000 nodes, each written out. Python's parser reads some MB a second."""
PATH_PARTS_MAX = 32
"""Parts of a dotted key, of which the parser keeps every prefix: 20,000 parts take it 1.5 GiB. Ours have four."""
SHOWN_MAX = 300
"""Characters of a key, and of a parser's error, that are shown."""
_NAME = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_PATH = re.compile(rf"(?<![\w-]){_NAME}(?:[ \t]*+\.[ \t]*+{_NAME}){{{PATH_PARTS_MAX}}}")


class TableError(ValueError):
    """One mistake in a file: `origin`, the `field` at fault, its `value` as written, and what is allowed."""

    def __init__(self, origin: str, at: str, value: object, message: str) -> None:
        self.origin = origin
        self.field = at
        self.value = shorten(toml_text_of(value))
        self.message = message
        where = f"{origin}: {shorten(at, SHOWN_MAX)} = {self.value}" if at else origin
        super().__init__(f"{where}: {message}")


def toml_text_of(value: object) -> str:
    """A value as TOML shows it, near enough for a person to find it."""
    if value is None:
        return "(not given)"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    try:
        return repr(value)
    except ValueError:  # a number like 0xfff..., which Python refuses to print
        return "(a number of thousands of digits)"
    except RecursionError:
        return "(nested too deeply)"


def read_toml(text: str, *, origin: str, error: type[TableError] = TableError) -> "Table":
    """The whole document as a table; errors name `origin` and are of type `error`. Raises `error`."""
    try:
        return Table(origin, "", parse_toml(text), error)
    except ValueError as wrong:
        raise error(origin, "", None, str(wrong)) from None


def parse_toml(text: str) -> dict[str, Any]:
    """A TOML document, in bounded time and memory. Raises ValueError whose text ends the sentence "it is ..."."""
    if len(text) > TOML_BYTES_MAX:
        raise ValueError(f"larger than {TOML_BYTES_MAX} bytes")
    if long_path := _LONG_PATH.search(text):
        line = text.count("\n", 0, long_path.start()) + 1
        raise ValueError(f"not accepted: dots join more than {PATH_PARTS_MAX} names in line {line}")
    try:
        return tomllib.loads(text)
    except ValueError as wrong:  # TOMLDecodeError, and Python's own limit on the digits of a number
        raise ValueError(f"not TOML: {shorten(str(wrong), SHOWN_MAX)}") from None
    except RecursionError:
        raise ValueError("not TOML: nested too deeply") from None


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a file, its path, and typed ways to take its values or reject them (with `error`)."""

    origin: str
    path: str
    values: Mapping[str, Any]
    error: type[TableError] = TableError

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def called(self, path: str) -> "Table":
        """The same table under a path that is easier to find."""
        return Table(self.origin, path, self.values, self.error)

    def wrong(self, key: str, message: str) -> TableError:
        return self.error(self.origin, self.at(key), self.values.get(key), message)

    def only(self, known: tuple[str, ...]) -> None:
        for key in self.values:
            if key not in known:
                raise self.wrong(key, f"unknown key; known here: {', '.join(known)}")

    def text(self, key: str, default: str | None = None) -> str:
        """A non-empty text; `default` where the key is missing."""
        value = self.values.get(key, default)
        if not isinstance(value, str) or not value:
            raise self.wrong(key, "must be a text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.wrong(key, "must be a list of texts")
        return tuple(value)

    def whole(self, key: str, default: int, least: int, most: int) -> int:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(key, f"must be a whole number from {least} to {most}")
        return value

    def number(self, key: str, default: float, least: float, most: float) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self.wrong(key, f"must be a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "must be true or false")
        return value

    def table(self, key: str) -> "Table":
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "must be a table")
        return Table(self.origin, self.at(key), value, self.error)

    def tables(self, key: str) -> list["Table"]:
        """A list of tables, counted from 1 in errors; empty where the key is missing."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(key, "must be a list of tables")
        return [
            Table(self.origin, f"{self.at(key)}[{number}]", item, self.error)
            for number, item in enumerate(value, start=1)
        ]

"""
Typed values of an object from outside: a mapping, a list, a text. Null counts as absent.

Readers name the path of the value; a wrong type raises RequestSyntaxError.
"""

from collections.abc import Mapping
from typing import Any

from sluice.contracts.kube.quantities import parse_whole
from sluice.contracts.reasons import RefusalReason
from sluice.contracts.request_syntax.source_text import RequestSyntaxError, SourceValue, Unquoted, is_null

ENTRIES_MAX = 100
"""Of one list or mapping. They go over the bus, and no real pod has more."""
TEXT_CHARACTERS_MAX = 317
"""A label's key: a domain of at most 253, a slash, and a name of at most 63."""
_TRUE = frozenset({"true", "True", "TRUE"})


def mapping(value: object, path: str) -> Mapping[str, Any]:
    """A mapping; empty if absent."""
    if is_null(value):
        return {}
    if not isinstance(value, dict):
        raise wrong(path, value, "not a mapping", "a mapping")
    _check_length(value, path)
    return value


def sequence(value: object, path: str) -> list[Any]:
    """A list; empty if absent."""
    if is_null(value):
        return []
    if not isinstance(value, list):
        raise wrong(path, value, "no list", "a list")
    _check_length(value, path)
    return value


def text(value: object, path: str) -> str:
    """A text; empty if absent."""
    if is_null(value):
        return ""
    if not isinstance(value, str):
        raise wrong(path, value, "not a string", "a string, in quotes where it looks like a number")
    if len(value) > TEXT_CHARACTERS_MAX:
        raise wrong(path, value, "too long", f"at most {TEXT_CHARACTERS_MAX} characters")
    return value


def texts(value: object, path: str) -> tuple[str, ...]:
    """A list of texts."""
    return tuple(text(each, f"{path}[{at}]") for at, each in enumerate(sequence(value, path)))


def whole(value: object, path: str) -> int:
    """A whole number."""
    number = parse_whole(value.text) if isinstance(value, Unquoted) else value
    if isinstance(number, bool) or not isinstance(number, int):
        raise wrong(path, value, "not a whole number", "a whole number")
    return number


def is_true(value: object) -> bool:
    """Whether a boolean is true; another type is left to the API server."""
    return value is True or (isinstance(value, Unquoted) and value.text in _TRUE)


def choice(value: object, path: str, choices: tuple[str, ...]) -> str:
    """One of these values."""
    word = text(value, path)
    if word not in choices:
        raise wrong(path, value, "there is no such choice", ", ".join(each or '""' for each in choices))
    return word


def wrong(path: str, value: object, why: str, allowed: str) -> RequestSyntaxError:
    """The refusal of a value, to be raised."""
    shown = "a mapping" if isinstance(value, dict) else value
    return SourceValue(path, shown).wrong(RefusalReason.INVALID_VALUE, why, allowed)


def _check_length(value: dict[str, Any] | list[Any], path: str) -> None:
    if len(value) > ENTRIES_MAX:
        why = f"{len(value)} entries"
        raise SourceValue(path, value).wrong(RefusalReason.TOO_LARGE, why, f"at most {ENTRIES_MAX}")

"""Copy between kinds that have fields in common: settings and their configs, requests and their terms."""

from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return getattr(kind, "__struct_fields__", None) or tuple(each.name for each in fields(kind))


@cache
def _shared(kind: Any, source: Any) -> tuple[str, ...]:
    return tuple(name for name in _names(kind) if name in _names(source))


def like(kind: type[T], source: object, /, **others: Any) -> T:
    """A new dataclass or Struct with the fields that `source` has under the same names, and `others`."""
    names = _shared(kind, type(source))  # type: ignore[arg-type]  # classes are hashable
    return kind(**{name: getattr(source, name) for name in names} | others)

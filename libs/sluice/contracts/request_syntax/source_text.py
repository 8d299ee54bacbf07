"""Values as a person wrote them, and their refusal: the field as spelled, the value as it stood, and what is allowed.

`RequestSyntaxError` carries a refusal out of readers, and never leaves the contracts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from sluice.contracts.kube.quantities import parse_quantity
from sluice.contracts.reasons import Refusal, RefusalReason, nearest, shorten

P = ParamSpec("P")
T = TypeVar("T")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_CHOICES_MAX = 50
"""Suggestions are searched among this many names, so that a refusal stays cheap."""


@dataclass(frozen=True, slots=True)
class Unquoted:
    """A value of a manifest that is not a string (`2`, `true`, `null`), as written."""

    text: str


def mapping_of(value: Any) -> dict[str, Any]:
    """A mapping; empty for anything else, which another reader refuses."""
    return value if isinstance(value, dict) else {}


def mappings_in(holder: object, key: str) -> Sequence[Mapping[str, Any]]:
    """The mappings of a list in a mapping; what is neither is left out."""
    listed = holder.get(key) if isinstance(holder, Mapping) else None
    return [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else ()


def is_null(value: object) -> bool:
    return value is None or (isinstance(value, Unquoted) and value.text in _NULLS)


def is_blank(value: object) -> bool:
    """Whether an annotation is unset: null, or an empty text, as charts render an omitted value."""
    return is_null(value) or (isinstance(value, str) and not value.strip())


def is_blank_amount(value: object) -> bool:
    """Whether an amount is unset. Zero is: LimitRanges, charts, and the API server for null write zero for nothing."""
    is_number = isinstance(value, str | Unquoted | int | float) and not isinstance(value, bool)
    return is_blank(value) or (is_number and parse_quantity(source_text_of(value).strip()) == 0)


def requested_amounts(limits: Mapping[str, object], requests: Mapping[str, object]) -> dict[str, object]:
    return {name: size for each in (requests, limits) for name, size in each.items() if not is_blank_amount(size)}


class RequestSyntaxError(Exception):
    """A value cannot be parsed, and why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def never_raising(read: Callable[P, T]) -> Callable[P, T | Refusal]:
    """The same reader, which returns its refusal."""

    @wraps(read)
    def safe(*args: P.args, **kwargs: P.kwargs) -> T | Refusal:
        try:
            return read(*args, **kwargs)
        except RequestSyntaxError as wrong:
            return wrong.refusal

    return safe


def _refusing(reason: RefusalReason) -> "Callable[[SourceValue, str, str], RequestSyntaxError]":
    def refusing(written: "SourceValue", why: str, allowed: str) -> RequestSyntaxError:
        return written.wrong(reason, why, allowed)

    return refusing


def accepted(read: T | Refusal) -> T:
    """What a reader returned, if it is no refusal. Raises RequestSyntaxError."""
    if isinstance(read, Refusal):
        raise RequestSyntaxError(read)
    return read


@dataclass(frozen=True, slots=True)
class SourceValue:
    """One value and its place: `field` is an annotation's key or a resource's name."""

    field: str
    raw: object

    invalid = _refusing(RefusalReason.INVALID_VALUE)
    """As `wrong`, with the reason in the name; so are the next ones."""
    out_of_range = _refusing(RefusalReason.OUT_OF_RANGE)
    contradiction = _refusing(RefusalReason.CONTRADICTION)
    unsupported = _refusing(RefusalReason.UNSUPPORTED_KEY)
    unknown = _refusing(RefusalReason.UNKNOWN_KEY)
    too_large = _refusing(RefusalReason.TOO_LARGE)

    def text(self) -> str:
        """The value of an annotation. Raises RequestSyntaxError when it is not a string."""
        if isinstance(self.raw, str):
            return self.raw
        written = source_text_of(self.raw)
        right = f'"{written}", in quotes' if isinstance(self.raw, Unquoted | int | float) else "a string"
        raise self.invalid("the value of an annotation is a string: put it in quotes", right)

    def number_text(self) -> str:
        """The value of a resource: text, or a number without quotes. Raises RequestSyntaxError when it is neither."""
        is_number = isinstance(self.raw, int | float) and not isinstance(self.raw, bool)
        if isinstance(self.raw, str | Unquoted) or is_number:
            return source_text_of(self.raw)
        raise self.invalid("an amount of a resource is a number", "for instance 1")

    def wrong(self, reason: RefusalReason, why: str, allowed: str) -> RequestSyntaxError:
        """The refusal of this value, to be raised."""
        return RequestSyntaxError(
            Refusal(
                reason=reason,
                message=shorten(why, 400),
                field=shorten(self.field),
                value=shorten(source_text_of(self.raw)),
                allowed=shorten(allowed, 400),
            )
        )

    def contradicts(self, other: "SourceValue", why: str, allowed: str) -> RequestSyntaxError:
        """The refusal of this value beside another one; names both fields."""
        beside = f"contradicts {shorten(other.field)} = {shorten(source_text_of(other.raw), 60)!r}"
        return self.contradiction(f"{beside}: {why}", allowed)


def source_text_of(raw: object) -> str:
    """An outside value as text, whatever its type; no longer than it was."""
    match raw:
        case str():
            return raw
        case Unquoted():
            return raw.text
        case None:
            return "null"
        case bool():
            return "true" if raw else "false"
        case int() if raw.bit_length() > 200:  # printing a long integer is quadratic, and refused by Python
            return "a very large number"
        case int() | float():
            return str(raw)
        case Mapping():
            return "a mapping"
        case _:
            return f"a {type(raw).__name__}"


def did_you_mean(text: str, choices: Sequence[str], *, prefix: str = "") -> str:
    """`; did you mean ...?` when one of the choices is similar, else empty."""
    found = nearest(text[:63], choices[:_CHOICES_MAX])
    return f"; did you mean {prefix}{found}?" if found else ""

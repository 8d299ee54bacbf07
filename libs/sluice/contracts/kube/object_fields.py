"""Read the fields of an object of the API strictly: one that is unknown or of another type is refused with its path."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from sluice.contracts.kube.quantities import NotANumber, parse_quantity, parse_whole
from sluice.contracts.reasons import shorten
from sluice.contracts.request_syntax import source_text
from sluice.contracts.request_syntax.source_text import RequestSyntaxError, SourceValue, Unquoted, did_you_mean, is_null


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping at `path` of its object. Null counts as absent. Every method raises RequestSyntaxError."""

    path: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, path: str, value: object) -> Self:
        if not isinstance(value, dict | Mapping):  # a dict first: the general question costs five times as much
            raise SourceValue(path, value).invalid("not a mapping", "a mapping")
        return cls(path, value)

    def at(self, key: str) -> SourceValue:
        """One value with its path, for a refusal."""
        key_shown = shorten(key, 63)
        return SourceValue(f"{self.path}.{key_shown}" if self.path else key_shown, self.values.get(key))

    def wrong(self, key: str, why: str, allowed: str) -> RequestSyntaxError:
        return self.at(key).invalid(why, allowed)

    def has(self, key: str) -> bool:
        return not is_null(self.values.get(key))

    def only(self, known: Sequence[str]) -> None:
        for key in self.values:
            if key not in known:
                why = f"there is no such field{did_you_mean(str(key), known)}"
                raise SourceValue(self.at(str(key)).field, self.values[key]).unknown(why, ", ".join(known))

    def inside(self, key: str) -> Self:
        """A mapping, empty when it is not set."""
        written = self.at(key)
        return self.of(written.field, {} if is_null(written.raw) else written.raw)

    def listed(self, key: str) -> list[Self]:
        """A list of mappings, empty when it is not set."""
        return [self.of(each.field, each.raw) for each in self.items(key)]

    def texts(self, key: str) -> tuple[SourceValue, ...]:
        """A list of texts, empty when it is not set."""
        found = tuple(self.items(key))
        for each in found:
            if not isinstance(each.raw, str):
                raise each.invalid("not a text", "a text")
        return found

    def text(self, key: str, default: str = "") -> str:
        value = self.values.get(key)
        if is_null(value):
            return default
        if not isinstance(value, str):
            raise self.wrong(key, "not a text", "a text")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str = "") -> str:
        text = self.text(key, default)
        if text not in choices and (text or not default):
            why = f"there is no such choice{did_you_mean(text, choices)}" if text else "it is missing"
            raise self.wrong(key, why, ", ".join(choices))
        return text

    def whole(self, key: str, least: int, most: int) -> int | None:
        """A whole number within bounds; None when it is not set."""
        value = self.values.get(key)
        if is_null(value):
            return None
        right = f"a whole number from {least} to {most}"
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(key, "not a whole number", right)
        if not least <= value <= most:
            raise self.at(key).out_of_range("out of range", right)
        return value

    def truth(self, key: str) -> bool:
        value = self.values.get(key)
        if is_null(value):
            return False
        if not isinstance(value, bool):
            raise self.wrong(key, "neither true nor false", "true or false")
        return value

    def quantity(self, key: str) -> int | None:
        """A quantity, rounded up to a whole number, not negative."""
        value = self.values.get(key)
        if is_null(value):
            return None
        size = parse_quantity(source_text.source_text_of(value))
        if isinstance(size, NotANumber) or size < 0:
            why = size.why if isinstance(size, NotANumber) else "less than zero"
            raise self.wrong(key, why, "a quantity, for instance 10Gi")
        return -(-size.numerator // size.denominator)

    def items(self, key: str) -> list[SourceValue]:
        """What a list holds, each with its path; empty when it is not set."""
        written = self.at(key)
        if is_null(written.raw):
            return []
        if not isinstance(written.raw, list):
            raise self.wrong(key, "not a list", "a list")
        return [SourceValue(f"{written.field}[{at}]", each) for at, each in enumerate(written.raw)]


def named(written: SourceValue, choices: Iterable[str], what: str) -> str:
    """A name that must be one of these."""
    text, listed = str(written.raw), tuple(dict.fromkeys(choices))
    if text not in listed:
        why = f"there is no {what} of this name{did_you_mean(text, listed)}"
        raise written.unknown(why, ", ".join(listed[:10]) or "none")
    return text


ENTRIES_MAX = 100
"""Of one list or mapping of a pod. They go over the bus, and no real pod has more."""
TEXT_CHARACTERS_MAX = 317
"""A label's key: a domain of at most 253, a slash, and a name of at most 63."""
_TRUE = frozenset({"true", "True", "TRUE"})


class PodFields(Fields):
    """Fields of a Pod: bounded in size, and numbers may be as YAML has them."""

    __slots__ = ()

    @classmethod
    def of(cls, path: str, value: object) -> Self:
        found = super().of(path, {} if is_null(value) else value)
        _check_length(path, found.values)
        return found

    def items(self, key: str) -> list[SourceValue]:
        found = super().items(key)
        _check_length(self.at(key).field, found)
        return found

    def text(self, key: str, default: str = "") -> str:
        return _bounded(self.at(key)) or default

    def strings(self, key: str) -> tuple[str, ...]:
        return tuple(_bounded(each) for each in self.items(key))

    def strings_by_key(self) -> dict[str, str]:
        values = self.values.items()
        return {
            _bounded(SourceValue(self.path, key)): _bounded(SourceValue(f"{self.path}.{key}", value))
            for key, value in values
        }

    def choice(self, key: str, choices: Sequence[str], default: str = "") -> str:
        word = self.text(key, default)
        if word not in choices:
            raise self.wrong(key, "there is no such choice", ", ".join(each or '""' for each in choices))
        return word

    def whole(self, key: str, least: int, most: int) -> int | None:
        value = self.values.get(key)
        if is_null(value):
            return None
        number = parse_whole(value.text) if isinstance(value, Unquoted) else value
        if isinstance(number, bool) or not isinstance(number, int):
            raise self.wrong(key, "not a whole number", "a whole number")
        if not least <= number <= most:
            raise self.wrong(key, "out of range", f"{least} to {most}")
        return number

    def truth(self, key: str) -> bool:
        """Whether it is true; another type is left to the API server."""
        value = self.values.get(key)
        return value is True or (isinstance(value, Unquoted) and value.text in _TRUE)


def _bounded(written: SourceValue) -> str:
    if is_null(written.raw):
        return ""
    if not isinstance(written.raw, str):
        raise written.invalid("not a string", "a string, in quotes where it looks like a number")
    if len(written.raw) > TEXT_CHARACTERS_MAX:
        raise written.invalid("too long", f"at most {TEXT_CHARACTERS_MAX} characters")
    return written.raw


def _check_length(path: str, value: Mapping[str, Any] | list[Any]) -> None:
    if len(value) > ENTRIES_MAX:
        raise SourceValue(path, value).too_large(f"{len(value)} entries", f"at most {ENTRIES_MAX}")

"""Read the fields of an object of the API strictly: one that is unknown or of another type is refused with its path."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.contracts.kube.quantities import NotANumber, parse_quantity
from sluice.contracts.reasons import RefusalReason, shorten
from sluice.contracts.request_syntax.source_text import SourceValue, did_you_mean, is_null, source_text_of


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping at `path` of its object. Every method raises RequestSyntaxError."""

    path: str
    values: Mapping[str, Any]

    def at(self, key: str) -> SourceValue:
        """One value with its path, for a refusal."""
        return SourceValue(self._path(key), self.values.get(key))

    def has(self, key: str) -> bool:
        """Whether the field is set."""
        return not is_null(self.values.get(key))

    def only(self, known: Sequence[str]) -> None:
        """Refuse any other field."""
        for key in self.values:
            if key not in known:
                why = f"there is no such field{did_you_mean(str(key), known)}"
                raise SourceValue(self._path(str(key)), self.values[key]).wrong(
                    RefusalReason.UNKNOWN_KEY, why, ", ".join(known)
                )

    def inside(self, key: str) -> "Fields":
        """A mapping, empty when it is not set."""
        value = self.values.get(key)
        if is_null(value):
            return Fields(self._path(key), {})
        return self._mapping(self._path(key), value)

    def listed(self, key: str) -> list["Fields"]:
        """A list of mappings, empty when it is not set."""
        return [self._mapping(f"{self._path(key)}[{at}]", each) for at, each in enumerate(self._list(key))]

    def texts(self, key: str) -> tuple[SourceValue, ...]:
        """A list of texts, empty when it is not set."""
        found = tuple(SourceValue(f"{self._path(key)}[{at}]", each) for at, each in enumerate(self._list(key)))
        for each in found:
            if not isinstance(each.raw, str):
                raise each.wrong(RefusalReason.INVALID_VALUE, "not a text", "a text")
        return found

    def text(self, key: str, default: str = "") -> str:
        """A text."""
        value = self.values.get(key)
        if is_null(value):
            return default
        if not isinstance(value, str):
            raise self.at(key).wrong(RefusalReason.INVALID_VALUE, "not a text", "a text")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str = "") -> str:
        """One of these words."""
        text = self.text(key, default)
        if text not in choices and (text or not default):
            why = f"there is no such choice{did_you_mean(text, choices)}" if text else "it is missing"
            raise self.at(key).wrong(RefusalReason.INVALID_VALUE, why, ", ".join(choices))
        return text

    def whole(self, key: str, least: int, most: int) -> int | None:
        """A whole number."""
        value = self.values.get(key)
        if is_null(value):
            return None
        right = f"a whole number from {least} to {most}"
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.at(key).wrong(RefusalReason.INVALID_VALUE, "not a whole number", right)
        if not least <= value <= most:
            raise self.at(key).wrong(RefusalReason.OUT_OF_RANGE, "out of range", right)
        return value

    def truth(self, key: str) -> bool:
        """True or false; false when it is not set."""
        value = self.values.get(key)
        if is_null(value):
            return False
        if not isinstance(value, bool):
            raise self.at(key).wrong(RefusalReason.INVALID_VALUE, "neither true nor false", "true or false")
        return value

    def quantity(self, key: str) -> int | None:
        """A quantity, rounded up to a whole number, not negative."""
        value = self.values.get(key)
        if is_null(value):
            return None
        size = parse_quantity(source_text_of(value))
        if isinstance(size, NotANumber) or size < 0:
            why = size.why if isinstance(size, NotANumber) else "less than zero"
            raise self.at(key).wrong(RefusalReason.INVALID_VALUE, why, "a quantity, for instance 10Gi")
        return -(-size.numerator // size.denominator)

    def _list(self, key: str) -> list[Any]:
        value = self.values.get(key)
        if is_null(value):
            return []
        if not isinstance(value, list):
            raise self.at(key).wrong(RefusalReason.INVALID_VALUE, "not a list", "a list")
        return value

    @staticmethod
    def _mapping(path: str, value: Any) -> "Fields":
        if not isinstance(value, Mapping):
            raise SourceValue(path, value).wrong(RefusalReason.INVALID_VALUE, "not a mapping", "a mapping")
        return Fields(path, value)

    def _path(self, key: str) -> str:
        key = shorten(key, 63)
        return f"{self.path}.{key}" if self.path else key


def named(written: SourceValue, choices: Iterable[str], what: str) -> str:
    """A name that must be one of these."""
    text, listed = str(written.raw), tuple(dict.fromkeys(choices))
    if text not in listed:
        why = f"there is no {what} of this name{did_you_mean(text, listed)}"
        raise written.wrong(RefusalReason.UNKNOWN_KEY, why, ", ".join(listed[:10]) or "none")
    return text

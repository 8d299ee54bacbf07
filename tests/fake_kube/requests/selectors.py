"""Selectors of lists and watches, and inside objects; refused as a real server refuses. Pure."""

import re
from collections.abc import Callable
from typing import Any

from fake_kube.errors import ApiError, Json

Predicate = Callable[[Json], bool]

_SETS = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)\s*$")
_EQUAL = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s!=,()]*)\s*$")
_EXISTS = re.compile(r"^\s*(?P<no>!?)\s*(?P<key>[^\s!=,()]+)\s*$")


def _meets(labels: dict[str, str], key: str, operator: str, values: list[str]) -> bool:
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    return (key in labels) is (operator == "Exists")


def _requirement(text: str) -> tuple[str, str, list[str]]:
    if found := _SETS.match(text):
        values = [value.strip() for value in found["values"].split(",")]
        return found["key"], "In" if found["op"] == "in" else "NotIn", values
    if found := _EQUAL.match(text):
        return found["key"], "NotIn" if found["op"] == "!=" else "In", [found["value"]]
    if found := _EXISTS.match(text):
        return found["key"], "DoesNotExist" if found["no"] else "Exists", []
    raise ApiError(400, f'unable to parse requirement: found "{text}", expected: a label selector')


def labels(text: str) -> Predicate:
    """A `labelSelector` parameter. Raises ApiError: 400 where it cannot be read."""
    parts = [part for part in re.split(r",(?![^(]*\))", text) if part.strip()]
    wanted = [_requirement(part) for part in parts]

    def matches(obj: Json) -> bool:
        carried = obj["metadata"].get("labels") or {}
        return all(_meets(carried, *each) for each in wanted)

    return matches


def selector(value: Json | None, carried: dict[str, str] | None) -> bool:
    """Whether a LabelSelector object chooses these labels; an empty one chooses all, None none."""
    if value is None:
        return False
    carried = carried or {}
    if any(carried.get(key) != wanted for key, wanted in (value.get("matchLabels") or {}).items()):
        return False
    terms = value.get("matchExpressions") or []
    return all(_meets(carried, term["key"], term["operator"], term.get("values") or []) for term in terms)


def read(obj: Json, path: str) -> Any:
    """The value at a dotted path, or None."""
    value: Any = obj
    for step in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def fields(text: str, allowed: frozenset[str]) -> Predicate:
    """A `fieldSelector` over fields of this kind. Raises ApiError: 400 `field label not supported`."""
    wanted: list[tuple[str, bool, str]] = []
    for part in filter(None, text.split(",")):
        found = re.match(r"^([^!=]+)(==|=|!=)(.*)$", part)
        if found is None:
            raise ApiError(400, f"invalid selector: '{part}'; can't understand '{part}'")
        if found[1] not in allowed:
            raise ApiError(400, f"field label not supported: {found[1]}")
        wanted.append((found[1], found[2] != "!=", found[3]))
    return lambda obj: all(((read(obj, path) or "") == value) is same for path, same, value in wanted)


def name_in(text: str) -> str:
    """The object that a `fieldSelector` names by metadata.name, or ''. Authorisation sees it as the request's name."""
    found = re.search(r"(?:^|,)metadata\.name==?([^,]*)", text)
    return found[1] if found else ""

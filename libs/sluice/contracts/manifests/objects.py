"""The objects of a text of manifests: its documents, and the items of Lists, however Lists are nested."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from sluice.contracts.reasons import Refusal, RefusalReason
from sluice.contracts.request_syntax import Unquoted
from sluice.contracts.request_syntax.source_text import SourceValue, is_null, source_text_of

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
"""YAML 1.1, as kubectl reads it (https://yaml.org/type/bool.html)."""


def as_api_value(value: Any) -> Any:
    """A copy without nulls in its mappings. Its depth is that of the text, which is bounded."""
    match value:
        case dict():
            return {key: as_api_value(each) for key, each in value.items() if not is_null(each)}
        case list():
            return [as_api_value(each) for each in value]
        case Unquoted() if is_null(value):
            return None
        case Unquoted() if _WHOLE.fullmatch(value.text):
            return int(value.text)
        case Unquoted():
            return _TRUTH.get(value.text.lower(), value)
        case _:
            return value


@dataclass(frozen=True, slots=True)
class ManifestObject:
    """One object of a file: a document, or an item of a List. `path` leads to it within its document."""

    value: Any
    line: int
    path: str


def objects_of(value: Any, line: int, path: str = "") -> Iterator[ManifestObject]:
    """The document itself, or the items of a List as `kubectl` splits it. A null item is left out."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind in {"List", "PodList"} and isinstance(value.get("items"), list):
        for at, item in enumerate(value["items"]):
            if not is_null(item):
                yield from objects_of(item, line, f"{path}items[{at}].")
    else:
        yield ManifestObject(as_api_value(value), line, path)


def in_file(item: ManifestObject, refusal: Refusal) -> Refusal:
    """A refusal with the path of its field in the file, unless the field is the name of a key."""
    if not item.path or not refusal.field.startswith(("spec", "metadata.")):
        return refusal
    return msgspec.structs.replace(refusal, field=item.path + refusal.field)


def wrong(item: ManifestObject, field: str, value: Any, why: str, allowed: str) -> Refusal:
    return SourceValue(item.path + field, _words(value)).invalid(why, allowed).refusal


def not_a_pod(item: ManifestObject, field: str, why: str, value: Any, allowed: str) -> Refusal:
    """The refusal of an object of an unknown kind, or of one that is not a pod."""
    path = (item.path + field).rstrip(".")
    return SourceValue(path, _words(value)).wrong(RefusalReason.NOT_A_POD, why, allowed).refusal


def _words(value: Any) -> str:
    return "" if value is None else source_text_of(value)

"""The objects of a text of manifests: its documents, and the items of Lists, however Lists are nested."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sluice.contracts.manifests.api_values import as_api_value
from sluice.contracts.request_syntax.source_text import is_null

LIST_KINDS = frozenset({"List", "PodList"})


@dataclass(frozen=True, slots=True)
class ManifestObject:
    """One object of a file: a document, or an item of a List. `path` leads to it within its document."""

    value: Any
    line: int
    path: str


def objects_of(value: Any, line: int, path: str = "") -> Iterator[ManifestObject]:
    """The document itself, or the items of a List as `kubectl` splits it. A null item is left out."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind in LIST_KINDS and isinstance(value.get("items"), list):
        for at, item in enumerate(value["items"]):
            if not is_null(item):
                yield from objects_of(item, line, f"{path}items[{at}].")
    else:
        yield ManifestObject(as_api_value(value), line, path)

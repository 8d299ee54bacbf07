"""Refuse one object of a file of manifests, with the field's path in the file and its value as written."""

from typing import Any

import msgspec

from sluice.contracts.manifests.objects import ManifestObject
from sluice.contracts.reasons import Refusal, RefusalReason, shorten
from sluice.contracts.request_syntax import Unquoted
from sluice.contracts.request_syntax.source_text import source_text_of


def in_file(item: ManifestObject, refusal: Refusal) -> Refusal:
    """A refusal with the path of its field in the file, unless the field is the name of a key."""
    if not item.path or not refusal.field.startswith(("spec", "metadata.")):
        return refusal
    return msgspec.structs.replace(refusal, field=item.path + refusal.field)


def wrong(item: ManifestObject, field: str, value: Any, why: str, allowed: str) -> Refusal:
    """The refusal of a field's value."""
    return Refusal(
        reason=RefusalReason.INVALID_VALUE,
        message=why,
        field=item.path + field,
        value=shorten(_words(value)),
        allowed=allowed,
    )


def not_a_pod(item: ManifestObject, field: str, why: str, value: Any, allowed: str) -> Refusal:
    """The refusal of an object of an unknown kind, or of one that is not a pod."""
    path = (item.path + field).rstrip(".")
    return Refusal(
        reason=RefusalReason.NOT_A_POD, message=why, field=path, value=shorten(_words(value)), allowed=allowed
    )


def _words(value: Any) -> str:
    """A value as written, if it is short; else its type."""
    match value:
        case str():
            return value
        case Unquoted() | bool() | int():
            return source_text_of(value)
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case _:
            return ""

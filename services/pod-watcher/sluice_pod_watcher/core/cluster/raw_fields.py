"""Fields of an object of the API server, where a missing one, or one of another shape, is empty."""

from collections.abc import Mapping
from typing import Any


def mapping_in(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The map under a key."""
    found = holder.get(key)
    return found if isinstance(found, dict) else {}


def mappings_in(holder: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The maps in the list under a key."""
    found = holder.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

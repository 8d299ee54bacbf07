"""Read Kubernetes objects as `kubectl get -o json` prints them, without trust: any field may be missing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Object = Mapping[str, Any]


def at(of: Object, *path: str) -> Any:
    """The value at a path, or None."""
    found: Any = of
    for part in path:
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def items(of: Object, *path: str) -> list[Any]:
    """The list at a path; empty if missing."""
    found = at(of, *path)
    return list(found) if isinstance(found, list) else []


def name(of: Object) -> str:
    """An object's name."""
    return str(at(of, "metadata", "name") or "")


def namespace(of: Object) -> str:
    """An object's namespace."""
    return str(at(of, "metadata", "namespace") or "")


def full_name(of: Object) -> str:
    """`namespace/name`."""
    return f"{namespace(of)}/{name(of)}"


def labels(of: Object) -> Mapping[str, str]:
    """An object's labels."""
    return at(of, "metadata", "labels") or {}


def condition(of: Object, kind: str) -> Object | None:
    """One condition of an object's status."""
    return next((each for each in items(of, "status", "conditions") if at(each, "type") == kind), None)


def is_so(of: Object, kind: str) -> bool:
    """Whether a condition is present and True."""
    found = condition(of, kind)
    return found is not None and found.get("status") == "True"


def by_name(objects: Sequence[Object]) -> dict[str, Object]:
    """Objects of a cluster-wide kind."""
    return {name(each): each for each in objects}


def containers(spec: Object) -> Iterator[Object]:
    """All containers of a pod's spec, init containers included."""
    yield from items(spec, "initContainers")
    yield from items(spec, "containers")


def selects(selector: Object, of: Mapping[str, str]) -> bool:
    """Whether a label selector matches these labels (In, NotIn, Exists, DoesNotExist: all operators)."""
    for key, value in (at(selector, "matchLabels") or {}).items():
        if of.get(key) != value:
            return False
    for each in items(selector, "matchExpressions"):
        key, values = each.get("key"), each.get("values") or []
        there = {
            "In": key in of and of[key] in values,
            "NotIn": key not in of or of[key] not in values,
            "Exists": key in of,
            "DoesNotExist": key not in of,
        }
        if not there.get(str(each.get("operator")), False):
            return False
    return True

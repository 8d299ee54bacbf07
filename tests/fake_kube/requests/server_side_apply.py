"""Server-side apply: fields by manager, of appliers only (README: where it differs). Changes only the owners."""

from typing import Any

from fake_kube.errors import ApiError, Json
from fake_kube.requests.patch_formats import MERGE_KEYS, MERGED_SETS, clone

Path = tuple[Any, ...]
Owners = dict[str, frozenset[Path]]
"""Paths to leaves by field manager. A step into a keyed list is `(key, value)`."""

IDENTITY = frozenset({("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace"), ("metadata", "uid")})
"""Required in an applied object, and owned by no manager."""


def leaves(value: Any, at: Path = ()) -> dict[Path, Any]:
    """Every leaf of an applied object by its path. An empty keyed list owns nothing: so it removes nothing."""
    found: dict[Path, Any] = {}
    if isinstance(value, dict):
        for key, each in value.items():
            found |= leaves(each, (*at, key))
        return found if value else {at: {}}
    if isinstance(value, list) and at[-1] in MERGE_KEYS and all(isinstance(each, dict) for each in value):
        key = MERGE_KEYS[at[-1]]
        for each in value:
            found |= leaves(each, (*at, (key, each.get(key))))
        return found
    if isinstance(value, list) and at[-1] in MERGED_SETS:
        return {(*at, ("", each)): each for each in value}
    return {at: value}


def owned(applied: Json) -> dict[Path, Any]:
    """The leaves that an applied object claims."""
    return {path: value for path, value in leaves(applied).items() if path not in IDENTITY}


def _element(items: list[Any], step: tuple[str, Any], *, make: bool) -> Any:
    key, wanted = step
    for each in items:
        if (each == wanted) if not key else each.get(key) == wanted:
            return each
    if not make:
        return None
    items.append({key: wanted} if key else wanted)
    return items[-1]


def _read(root: Any, path: Path) -> Any:
    for step in path:
        if root is None:
            return None
        root = _element(root, step, make=False) if isinstance(step, tuple) else root.get(step)
    return root


def _write(root: Any, path: Path, value: Any) -> None:
    for step, after in zip(path, (*path[1:], None), strict=True):
        if isinstance(step, tuple):
            root = _element(root, step, make=True)
        elif after is None:
            root[step] = clone(value)
        else:
            if root.get(step) is None:
                root[step] = [] if isinstance(after, tuple) else {}
            root = root[step]


def _drop(root: Any, path: Path) -> None:
    parent = _read(root, path[:-1])
    last = path[-1]
    if isinstance(parent, dict):
        parent.pop(last, None)
    elif isinstance(parent, list) and (found := _element(parent, last, make=False)) is not None:
        parent.remove(found)
    if isinstance(parent, dict) and path[:-1] and isinstance(path[-2], tuple) and set(parent) <= {path[-2][0]}:
        _drop(root, path[:-1])


def _is_key(path: Path) -> bool:
    """Whether a leaf is the key of its list's element: it goes last, for the element is found by it."""
    return len(path) > 1 and isinstance(path[-2], tuple) and path[-1] == path[-2][0]


def apply(live: Json, applied: Json, owners: Owners, *, manager: str, force: bool) -> tuple[Json, Owners]:
    """The object after an apply, and its owners. Raises ApiError: 409: another's field, unless forced."""
    wanted = owned(applied)
    merged = clone(live)
    clashes = [
        (other, path)
        for other, paths in owners.items()
        if other != manager
        for path in wanted.keys() & paths
        if _read(live, path) != wanted[path]
    ]
    if clashes and not force:
        other, path = clashes[0]
        field = "." + ".".join(str(step) for step in path)
        raise ApiError(409, f'Apply failed with {len(clashes)} conflict: conflict with "{other}": {field}')
    foreign = set().union(*(paths for other, paths in owners.items() if other != manager))
    for path in sorted(owners.get(manager, frozenset()) - wanted.keys() - foreign, key=_is_key):
        _drop(merged, path)
    for path, value in wanted.items():
        _write(merged, path, value)
    lost = {path for _, path in clashes}
    after = {other: paths - lost for other, paths in owners.items() if other != manager}
    return merged, {**after, manager: frozenset(wanted)}

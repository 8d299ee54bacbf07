"""JSON patch (RFC 6902), merge patch (RFC 7386) and Kubernetes' strategic merge, as new values. Pure."""

from typing import Any

from fake_kube.errors import ApiError, Json, rejected_patch

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "schedulingGates": "name",
    "conditions": "type",
    "imagePullSecrets": "name",
    "ports": "containerPort",
    "ownerReferences": "uid",
    "addresses": "type",
    "readinessGates": "conditionType",
    "topologySpreadConstraints": "topologyKey",
    "hostAliases": "ip",
    "webhooks": "name",
    "secrets": "name",
}
"""
Lists that a strategic merge merges by element, with their key (`patchMergeKey` in the API's types). Tolerations, taints
and affinity terms are replaced as a whole.
"""
MERGED_SETS = ("finalizers",)
"""Lists of strings that a strategic merge adds to."""


def clone(value: Any) -> Any:
    """A deep copy of JSON; several times faster than copy.deepcopy."""
    if isinstance(value, dict):
        return {key: clone(each) for key, each in value.items()}
    return [clone(each) for each in value] if isinstance(value, list) else value


# -- JSON patch -------------------------------------------------------------------------------------------------------


def _tokens(pointer: Any) -> list[str]:
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise rejected_patch()
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]


def _index(token: str, size: int) -> int:
    # A negative one counts from the end, as a real server was seen to do.
    if not (token.isascii() and token.removeprefix("-").isdigit()) or not -size <= int(token) < size:
        raise rejected_patch()
    return int(token) % size


def _step(value: Any, token: str) -> Any:
    if isinstance(value, dict) and token in value:
        return value[token]
    if isinstance(value, list):
        return value[_index(token, len(value))]
    raise rejected_patch()


def _find(root: Any, tokens: list[str]) -> Any:
    for token in tokens:
        root = _step(root, token)
    return root


def _add(root: Any, tokens: list[str], value: Any) -> Any:
    if not tokens:
        return value
    parent, last = _find(root, tokens[:-1]), tokens[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        parent.insert(len(parent) if last == "-" else _index(last, len(parent) + 1), value)
    else:
        raise rejected_patch()
    return root


def _remove(root: Any, tokens: list[str]) -> Any:
    if not tokens:
        raise rejected_patch()
    parent, last = _find(root, tokens[:-1]), tokens[-1]
    value = _step(parent, last)
    del parent[last if isinstance(parent, dict) else int(last)]
    return value


def _holds(root: Any, tokens: list[str], value: Any) -> bool:
    """Whether a `test` passes; absent keys and values count as null, as on a real server (not in the RFC)."""
    if not tokens:
        return value is not None and bool(root == value)
    parent = _find(root, tokens[:-1])
    found = parent.get(tokens[-1]) if isinstance(parent, dict) else _step(parent, tokens[-1])
    return bool(found == value)


def json_patch(document: Json, operations: Any) -> Json:
    """The document after all operations. Raises ApiError: 422: one does not fit; 400: no patch."""
    if not isinstance(operations, list):
        raise ApiError(400, "json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    root = clone(document)
    for operation in operations:
        root = _operate(root, operation)
    return root


def _operate(root: Any, operation: Json) -> Any:
    kind, path = operation.get("op"), _tokens(operation.get("path"))
    if kind == "test":
        if not _holds(root, path, operation.get("value")):
            raise rejected_patch()
    elif kind == "add":
        return _add(root, path, clone(operation.get("value")))
    elif kind == "remove":
        _remove(root, path)
    elif kind == "replace":
        _find(root, path)
        if path:
            _remove(root, path)
        return _add(root, path, clone(operation.get("value")))
    elif kind in {"copy", "move"}:
        source = _tokens(operation.get("from"))
        value = clone(_find(root, source))
        if kind == "move":
            _remove(root, source)
        return _add(root, path, value)
    else:
        raise rejected_patch()
    return root


# -- merge patch ------------------------------------------------------------------------------------------------------


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null deletes, lists are replaced as a whole."""
    if not isinstance(patch, dict):
        return clone(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


# -- strategic merge --------------------------------------------------------------------------------------------------


def strategic_merge(target: Any, patch: Any) -> Any:
    """Kubernetes' merge by keys, null deletes, `$patch`. Raises ApiError: 400: an element without its key."""
    if not isinstance(patch, dict):
        return clone(patch)
    if patch.get("$patch") == "replace":
        return clone({key: value for key, value in patch.items() if key != "$patch"})
    if patch.get("$patch") == "delete":
        return {}
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            merged[name] = [each for each in merged.get(name, []) if each not in value]
        elif key.startswith("$"):
            continue  # $setElementOrder and $retainKeys: the order of lists and unions is not kept here
        elif value is None:
            merged.pop(key, None)
        elif isinstance(value, list) and key in MERGE_KEYS and _keyed(key, value):
            merged[key] = _merge_list(merged.get(key) or [], value, key)
        elif isinstance(value, list) and key in MERGED_SETS:
            merged[key] = [*merged.get(key, []), *(each for each in value if each not in merged.get(key, []))]
        else:
            merged[key] = strategic_merge(merged.get(key), value)
    return merged


def _keyed(key: str, value: list[Any]) -> bool:
    # `secrets`, `ports` and the like have other meanings in other kinds: only lists of objects are merged by key.
    return all(isinstance(each, dict) for each in value) and key in MERGE_KEYS


def _merge_list(target: list[Json], patch: list[Json], field: str) -> list[Json]:
    key = MERGE_KEYS[field]
    if any(each.get("$patch") == "replace" and len(each) == 1 for each in patch):
        return clone([each for each in patch if "$patch" not in each])
    merged = list(target)
    for each in patch:
        if key not in each:
            raise ApiError(400, f"map: {each} does not contain declared merge key: {key}")
        if each.get("$patch") == "delete":
            merged = [other for other in merged if other.get(key) != each[key]]
            continue
        at = next((index for index, other in enumerate(merged) if other.get(key) == each[key]), None)
        if at is None:
            merged.append(strategic_merge({}, each))
        else:
            merged[at] = strategic_merge(merged[at], each)
    return merged

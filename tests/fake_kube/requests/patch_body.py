"""Apply a PATCH body to an object, and check which patch types a resource accepts."""

import json

import yaml
from fake_kube.errors import ApiError, Json
from fake_kube.requests import server_side_apply
from fake_kube.requests.patch_formats import json_patch, merge_patch, strategic_merge
from fake_kube.resource_types import Resource

JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


def accepted(resource: Resource) -> list[str]:
    """The content types that a resource's patches may have."""
    return [JSON_PATCH, MERGE, APPLY] if resource.custom else [JSON_PATCH, MERGE, STRATEGIC, APPLY]


def check_type(kind: str, resource: Resource) -> None:
    """Refuse a kind of patch that the resource does not take. Raises ApiError: 415."""
    if kind not in accepted(resource):
        told = ", ".join(accepted(resource))
        raise ApiError(
            415, f"the body of the request was in an unknown format - accepted media types include: {told}", details={}
        )


def read(kind: str, body: bytes) -> Json | list[Json]:
    """The patch itself. Raises ApiError: 400 for what is no JSON (or YAML, for apply)."""
    try:
        patch = yaml.safe_load(body) if kind == APPLY else json.loads(body)
    except (ValueError, yaml.YAMLError) as fault:
        raise ApiError(400, f"error decoding patch: {fault}") from fault
    if kind != JSON_PATCH and not isinstance(patch, dict):
        raise ApiError(400, "cannot restore slice from map")
    return patch


class Patcher:
    """Applies patches, and remembers who applied what for server-side apply."""

    def __init__(self) -> None:
        """Start without owners."""
        self._owners: dict[tuple[str, str], server_side_apply.Owners] = {}

    def patched(self, kind: str, live: Json, patch: Json | list[Json], *, part: str, manager: str, force: bool) -> Json:
        """The object that a patch wants; `part` has owners of its own. Raises ApiError: 400, 409 or 422."""
        if kind == JSON_PATCH:
            return json_patch(live, patch)
        assert isinstance(patch, dict)
        if kind == MERGE:
            return merge_patch(live, patch)
        if kind == STRATEGIC:
            return strategic_merge(live, patch)
        if not manager:
            told = "metadata.managedFields.fieldManager: Required value: is required for apply patch"
            raise ApiError(422, f'PatchOptions.meta.k8s.io "" is invalid: {told}')
        key = (live["metadata"].get("uid", ""), part)
        merged, owners = server_side_apply.apply(live, patch, self._owners.get(key, {}), manager=manager, force=force)
        if key[0]:
            self._owners[key] = owners
        return merged

    def created(self, uid: str, applied: Json, manager: str) -> None:
        """An apply made an object: what it said is its manager's."""
        self._owners[uid, ""] = {manager: frozenset(server_side_apply.owned(applied))}

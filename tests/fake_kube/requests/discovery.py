"""Discovery: versions, groups and resources. Pure. Enough for kubectl and the official client; no OpenAPI."""

from fake_kube.errors import Json
from fake_kube.resource_types import POD_SUBRESOURCES, Resource

VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.2",
    "platform": "linux/amd64",
    "compiler": "gc",
    "goVersion": "go1.26",
}
VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
SHORT = {
    "pods": ["po"],
    "nodes": ["no"],
    "namespaces": ["ns"],
    "events": ["ev"],
    "customresourcedefinitions": ["crd"],
    "deployments": ["deploy"],
}


def document(path: str, resources: list[Resource]) -> Json | None:
    """What is served at a path of discovery, or None."""
    steps = [step for step in path.split("/") if step]
    if steps == ["version"]:
        return VERSION
    if steps == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if steps == ["apis"]:
        groups = dict.fromkeys(resource.group for resource in resources if resource.group)
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name, resources) for name in groups]}
    if len(steps) == 2 and steps[0] == "apis" and any(resource.group == steps[1] for resource in resources):
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(steps[1], resources)}
    served = {("api", "v1"): ""} if steps[:1] == ["api"] else {("apis", *steps[1:2], *steps[2:3]): "".join(steps[1:2])}
    group = served.get(tuple(steps))
    found = [each for each in resources if group is not None and each.group == group and each.version == steps[-1]]
    if not found:
        return None
    listed = [entry for resource in found for entry in _entries(resource)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": found[0].api_version, "resources": listed}


def _group(name: str, resources: list[Resource]) -> Json:
    versions = dict.fromkeys(resource.version for resource in resources if resource.group == name)
    told = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": told, "preferredVersion": told[0]}


def _entries(resource: Resource) -> list[Json]:
    base = {"namespaced": resource.namespaced, "kind": resource.kind}
    singular = {"singularName": resource.kind.lower(), "shortNames": SHORT.get(resource.plural, [])}
    entries: list[Json] = [{"name": resource.plural, **singular, **base, "verbs": VERBS}]
    subresources = POD_SUBRESOURCES if resource.full_name == "pods" else ("status",) if resource.status else ()
    kinds = {"binding": ("Binding", "", "v1"), "eviction": ("Eviction", "policy", "v1")}
    for name in subresources:
        kind, group, version = kinds.get(name, (resource.kind, resource.group, resource.version))
        verbs = ["create"] if name in kinds else ["get", "patch", "update"]
        entry = {**base, "name": f"{resource.plural}/{name}", "singularName": "", "kind": kind, "verbs": verbs}
        entries.append({**entry, **({"group": group, "version": version} if name in kinds else {})})
    return entries

"""A few pods as a real API server was seen to answer to JSON patches of gated pods; shares no code with the core."""

import copy
import itertools
from dataclasses import dataclass, field
from typing import Any

GATE = "sluice.dev/slice"
_TERMS = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")


class RefusedError(Exception):
    def __init__(self, status: int, message: str = "the server rejected our request") -> None:
        super().__init__(message)
        self.status, self.message = status, message


def new_pod(
    name: str,
    uid: str,
    *,
    profile: str = "1g.5gb",
    gates: tuple[str, ...] = (GATE,),
    owner: str = "",
    spec: dict[str, Any] | None = None,
    stored: str | None = None,
) -> dict[str, Any]:
    """A pod as admission leaves it: label, gate and the stored ask."""
    ask = f'{{"version":1,"first":"main","annotations":{{"sluice.dev/profile":"{profile}"}}}}'
    owners = [{"kind": owner, "name": "o", "uid": "o1", "controller": True}] if owner else []
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": uid,
            "generation": 1,
            "labels": {"sluice.dev/managed": "true"},
            "annotations": {"sluice.dev/request": ask if stored is None else stored},
            **({"ownerReferences": owners} if owners else {}),
        },
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
            **({"schedulingGates": [{"name": gate} for gate in gates]} if gates else {}),
            **(spec or {}),
        },
        "status": {"phase": "Pending"},
    }


def new_node(
    name: str, version: int = 1, *, cpu: str = "8", labels: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    room = {"cpu": cpu, "memory": "16Gi", "pods": "10", "nvidia.com/gpu": "8", "example.com/nic": "2"}
    meta = {"name": name, "resourceVersion": str(version), "labels": labels or {"zone": "a"}}
    return {"metadata": meta, "spec": spec, "status": {"allocatable": room}}


FINALIZER = "resource.kubernetes.io/delete-protection"


def handed_over_pod(name: str, uid: str, claim: str, **how: Any) -> dict[str, Any]:
    """A pod as admission leaves it where the kubelet hands devices over."""
    pod = new_pod(name, uid, **how)
    pod["spec"]["resourceClaims"] = [{"name": "sluice", "resourceClaimName": claim}]
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "sluice", "request": "main"}]
    return pod


def device_class(name: str, *, managed: bool = True, **spec: Any) -> dict[str, Any]:
    labels = {"sluice.dev/managed": "true"} if managed else {}
    return {"metadata": {"name": name, "uid": name, "labels": labels, "resourceVersion": "7"}, "spec": spec}


def allocation_of(request: str, device: str, node: str) -> dict[str, Any]:
    result = {"request": request, "driver": "gpu.sluice.dev", "pool": node, "device": device}
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    return {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]}}


@dataclass
class Claims:
    """A few ResourceClaims, with the rules of kubernetes v1.37.2 (pkg/apis/resource/validation)."""

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    uids: itertools.count = field(default_factory=lambda: itertools.count(1))
    versions: itertools.count = field(default_factory=lambda: itertools.count(500))
    refuses: tuple[int, str] | None = None
    """How every write is refused."""
    writes: list[str] = field(default_factory=list)
    """What was carried out, in order."""

    def _check(self) -> None:
        if self.refuses is not None:
            raise RefusedError(*self.refuses)

    def store(self, claim: dict[str, Any]) -> dict[str, Any]:
        claim = copy.deepcopy(claim)
        claim["metadata"]["resourceVersion"] = str(next(self.versions))
        self.objects[claim["metadata"]["name"]] = claim
        return copy.deepcopy(claim)

    def create(self, body: Any) -> dict[str, Any]:
        self._check()
        claim = copy.deepcopy(dict(body))
        if claim["metadata"]["name"] in self.objects:
            raise RefusedError(409, "already exists")
        claim["metadata"]["uid"] = f"claim-{next(self.uids)}"
        self.writes.append("create")
        return self.store(claim | {"status": {}})

    def protect(self, name: str, patch: Any) -> dict[str, Any]:
        self._check()
        claim = copy.deepcopy(self._found(name))
        for each in patch:
            if each["path"] == "/metadata/resourceVersion" and each["value"] != claim["metadata"]["resourceVersion"]:
                raise RefusedError(409, "modified")
            if each["op"] == "test" and claim["metadata"]["uid"] != each["value"]:
                raise RefusedError(422)
            if each["path"] == "/metadata/finalizers":
                claim["metadata"]["finalizers"] = list(each["value"])
        self.writes.append("protect")
        return self.store(claim)

    def merge_status(self, name: str, body: Any) -> dict[str, Any]:
        self._check()
        claim = copy.deepcopy(self._found(name))
        if body["metadata"]["resourceVersion"] != claim["metadata"]["resourceVersion"]:
            raise RefusedError(409, "modified")
        if body["metadata"]["uid"] != claim["metadata"]["uid"]:
            raise RefusedError(422, "field is immutable")
        before, after = claim["status"], dict(claim["status"])
        for key, value in body["status"].items():
            if value is None:
                after.pop(key, None)
            else:
                after[key] = copy.deepcopy(value)
        if before.get("allocation") and after.get("allocation") not in (None, before["allocation"]):
            raise RefusedError(422, "status.allocation: field is immutable")
        if after.get("reservedFor") and not after.get("allocation"):
            raise RefusedError(422, "may not be specified when `allocated` is not set")
        if claim["metadata"].get("deletionTimestamp") and after.get("reservedFor"):
            raise RefusedError(422, "new entries may not be added")
        self.writes.append("allocate" if after.get("allocation") else "deallocate")
        return self.store(claim | {"status": after})

    def _found(self, name: str) -> dict[str, Any]:
        if name not in self.objects:
            raise RefusedError(404)
        return self.objects[name]


@dataclass
class ApiModel:
    """Pods by namespace and name, and every version of each that a watch may show (again)."""

    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    """UIDs of pods whose gate was opened, in order."""
    object_writes: dict[str, int] = field(default_factory=dict)
    conditions: list[tuple[str, str, str]] = field(default_factory=list)
    evictions: list[str] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    claims: Claims = field(default_factory=Claims)
    classes: dict[str, dict[str, Any]] = field(default_factory=lambda: {"sluice.dev": device_class("sluice.dev")})
    versions: itertools.count = field(default_factory=lambda: itertools.count(100))

    @property
    def version(self) -> str:
        return self.history[-1][1]["metadata"]["resourceVersion"] if self.history else "99"

    def store(self, pod: dict[str, Any], kind: str = "") -> dict[str, Any]:
        name = pod["metadata"]["name"]
        kind = kind or ("MODIFIED" if name in self.pods else "ADDED")
        pod = copy.deepcopy(pod)
        pod["metadata"]["resourceVersion"] = str(next(self.versions))
        if kind == "DELETED":
            self.pods.pop(name, None)
        else:
            self.pods[name] = pod
        self.history.append((kind, copy.deepcopy(pod)))
        return pod

    def find(self, uid: str) -> dict[str, Any] | None:
        return next((copy.deepcopy(pod) for pod in self.pods.values() if pod["metadata"]["uid"] == uid), None)

    def found(self, uid: str) -> dict[str, Any]:
        """A copy of a pod that is there. Raises RefusedError."""
        if (pod := self.find(uid)) is None:
            raise RefusedError(404)
        return pod

    def patch(self, name: str, operations: Any) -> dict[str, Any]:
        """Carry out one JSON patch, whole or not at all. Raises RefusedError."""
        if name not in self.pods:
            raise RefusedError(404)
        before, pod = self.pods[name], copy.deepcopy(self.pods[name])
        for operation in operations:
            _apply(pod, operation)
        _check_update(before, pod)
        uid = pod["metadata"]["uid"]
        if before["spec"].get("schedulingGates") and not pod["spec"].get("schedulingGates"):
            self.opened.append(uid)
        if pod["spec"] != before["spec"]:
            pod["metadata"]["generation"] += 1
        self.object_writes[uid] = self.object_writes.get(uid, 0) + 1
        return self.store(pod)


def _apply(pod: dict[str, Any], operation: dict[str, Any]) -> None:
    *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
    holder: Any = pod
    for part in parents:
        key = int(part) if isinstance(holder, list) else part
        if isinstance(holder, dict) and key not in holder:
            raise RefusedError(422)
        holder = holder[key]
    match operation["op"]:
        case "test":
            if holder.get(last) != operation["value"]:
                raise RefusedError(422)
        case "add":
            holder[int(last) if isinstance(holder, list) else last] = copy.deepcopy(operation["value"])
        case "remove" | "replace" if last not in holder:
            raise RefusedError(422)
        case "remove":
            del holder[last]
        case "replace":
            holder[last] = copy.deepcopy(operation["value"])
        case _:
            raise AssertionError(operation)


def _check_update(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Terms may be added where there were none, and matchFields to a term that has none; while gated, never after."""
    old, new = terms_of(before), terms_of(after)
    if before["spec"].get("affinity") != after["spec"].get("affinity") and not before["spec"].get("schedulingGates"):
        raise RefusedError(422, "pod updates may not change fields other than ...")
    if old and len(old) != len(new):
        raise RefusedError(422, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
    for one, other in zip(old, new, strict=False):
        if one.get("matchFields") and one["matchFields"] != other.get("matchFields"):
            raise RefusedError(422, "only additions are allowed")
        if one.get("matchExpressions") != other.get("matchExpressions"):
            raise RefusedError(422, "only additions are allowed")


def terms_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    found: Any = pod["spec"]
    for key in _TERMS:
        found = found.get(key) if isinstance(found, dict) else None
    return found or []

"""The bodies of our writes to ResourceClaims. Rules of the API server (k8s.io/kubernetes 1.37,
pkg/apis/resource/validation, pkg/registry/resource): a spec never changes, nor an allocation, which is cleared with all
reservations; metadata and status are written apart. The claim controller deallocates only with its finalizer."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sluice.contracts.dra.names import DEVICE_CLASS, DRIVER, FINALIZER, POD_CLAIM, POD_CLAIM_ANNOTATION, device_names
from sluice.contracts.ids import AllocationId
from sluice.contracts.kube.names import ANNOTATION_REQUEST, LABEL_MANAGED, MANAGED, RESOURCE_GROUP
from sluice.contracts.messages import Bound, ResourceClaimRef
from sluice_pod_watcher.core.cluster.claims.claim_view import ClaimView, Device
from sluice_pod_watcher.core.cluster.events import Patch
from sluice_pod_watcher.core.cluster.pods.pod_view import PodView

API_VERSION = f"{RESOURCE_GROUP}/v1"


def new_claim(view: PodView, requests: Iterable[str]) -> dict[str, Any]:
    """The claim that admission named for a pod: a request per container with devices. What it asks for is an
    annotation: with opaque parameters no JSON patch of a claim is accepted (tried on 1.37.2)."""
    names = sorted(requests)
    wanted = [{"name": name, "exactly": {"deviceClassName": DEVICE_CLASS, "count": 1}} for name in names]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": view.name, "uid": str(view.uid)}
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {
            "name": view.pod_claim,
            "namespace": view.namespace,
            "labels": {LABEL_MANAGED: MANAGED},
            "annotations": {POD_CLAIM_ANNOTATION: POD_CLAIM, ANNOTATION_REQUEST: view.request},
            "finalizers": [FINALIZER],
            "ownerReferences": [owner | {"controller": True}],
        },
        "spec": {"devices": {"requests": wanted}},
    }


def protection(claim: ClaimView) -> Patch:
    """Add the finalizer, which is metadata: a status write drops it. Others stay, under the version that was seen."""
    guard = {"op": "test", "path": "/metadata/uid", "value": claim.uid}
    version = {"op": "replace", "path": "/metadata/resourceVersion", "value": claim.resource_version}
    add = {"op": "add", "path": "/metadata/finalizers", "value": [*claim.finalizers, FINALIZER]}
    return guard, version, add


def wanted_devices(
    allocation: AllocationId, bound: Bound, claims: Iterable[ResourceClaimRef], uid: str
) -> dict[str, Device]:
    """By request of one claim of the pod, its device in that allocation. Requests without a grant have none."""
    claims = tuple(claims)
    names = device_names(allocation, claims)
    granted = {each.container for each in bound.containers}
    return {
        request: (DRIVER, str(bound.node), names[claim.uid, request])
        for claim in claims
        if claim.uid == uid
        for request, container in sorted(claim.requests.items())
        if container in granted
    }


def allocated(
    claim: ClaimView, devices: Mapping[str, Device], node: str, view: PodView, classes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """A merge patch of the status: allocation and reservation in one, under the version that was seen. `classes` are
    the specs of our DeviceClasses, by name: their configurations are copied, as kube-scheduler does
    (k8s.io/dynamic-resource-allocation, structured/internal/stable/allocator_stable.go). The shell adds
    `allocationTimestamp`: without it kube-scheduler would add one, which is refused as a change."""
    results = [
        {"request": request, "driver": driver, "pool": pool, "device": device}
        for request, (driver, pool, device) in devices.items()
    ]
    found: dict[str, Any] = {"results": results}
    configs = [*_of_classes(claim, devices, classes), *_of_claim(claim, devices)]
    if configs:
        found["config"] = configs
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    allocation = {"devices": found, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]}}
    return _status(claim, {"allocation": allocation, "reservedFor": [*claim.reserved, _consumer(view)]})


def _of_classes(
    claim: ClaimView, devices: Mapping[str, Device], classes: Mapping[str, Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    requests: dict[str, list[str]] = {}
    for request, name in claim.classes.items():
        if request in devices:
            requests.setdefault(name, []).append(request)
    for name, those in requests.items():
        for each in classes.get(name, {}).get("config") or ():
            yield {"source": "FromClass", "requests": those, **each}


def _of_claim(claim: ClaimView, devices: Mapping[str, Device]) -> Iterator[Mapping[str, Any]]:
    for each in claim.configs:
        said = each.get("requests") or ()
        if not said or any(request in said or request.partition("/")[0] in said for request in devices):
            yield {"source": "FromClaim", **each}


def reserved(claim: ClaimView, view: PodView) -> dict[str, Any]:
    """A merge patch of the status: one more pod uses an allocated claim."""
    return _status(claim, {"reservedFor": [*claim.reserved, _consumer(view)]})


def deallocated(claim: ClaimView) -> dict[str, Any]:
    """A merge patch of the status: nothing is allocated, and no pod uses it."""
    return _status(claim, {"allocation": None, "reservedFor": None})


def _status(claim: ClaimView, status: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"uid": claim.uid, "resourceVersion": claim.resource_version}, "status": status}


def _consumer(view: PodView) -> dict[str, Any]:
    return {"resource": "pods", "name": view.name, "uid": str(view.uid)}

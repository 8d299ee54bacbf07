"""A ResourceClaim as the API server has validated it, reduced to the fields used (k8s.io/api/resource/v1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.contracts.dra.names import DRIVER, FINALIZER
from sluice.contracts.ids import RequestId
from sluice_pod_watcher.core.cluster.events import Raw, mapping_in, mappings_in
from sluice_pod_watcher.core.cluster.pods.pod_view import version_of

ClaimKey = tuple[str, str]  # namespace and name
Device = tuple[str, str, str]  # Driver, pool and device of one result


@dataclass(frozen=True, slots=True)
class ClaimView:
    """One version of one claim."""

    uid: str
    namespace: str
    name: str
    version: int  # the resourceVersion: newer is larger
    resource_version: str
    dying: bool
    finalizers: tuple[str, ...]
    owner: RequestId  # the UID of the pod that it was made for; empty for a claim of its own
    owner_name: str
    spec: Mapping[str, Any]
    is_allocated: bool
    devices: Mapping[str, Device]  # by request, where it is allocated
    reserved: tuple[Mapping[str, Any], ...]  # `status.reservedFor`

    @property
    def key(self) -> ClaimKey:
        return self.namespace, self.name

    @property
    def configs(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(mappings_in(mapping_in(self.spec, "devices"), "config"))

    @property
    def classes(self) -> Mapping[str, str]:
        """By request, or `request/subrequest`, its DeviceClass."""
        found: dict[str, str] = {}
        for request in mappings_in(mapping_in(self.spec, "devices"), "requests"):
            name, subs = str(request.get("name")), mappings_in(request, "firstAvailable")
            found |= {f"{name}/{each.get('name')}": str(each.get("deviceClassName")) for each in subs}
            if not subs:
                found[name] = str(mapping_in(request, "exactly").get("deviceClassName"))
        return found

    @property
    def is_protected(self) -> bool:
        """Whether it has the finalizer with which the claim controller deallocates it."""
        return FINALIZER in self.finalizers

    @property
    def is_of_our_driver(self) -> bool:
        return self.is_allocated and all(driver == DRIVER for driver, _, _ in self.devices.values())

    def is_used_beside(self, pod: str) -> bool:
        """Whether it is a claim of several pods, and reserved for another one than the pod with this UID."""
        return not self.owner and any(each.get("uid") != pod for each in self.reserved)

    @property
    def node(self) -> str:
        return next((pool for _, pool, _ in self.devices.values()), "")

    def is_reserved_for(self, pod: str) -> bool:
        return any(each.get("uid") == pod for each in self.reserved)


def read_claim_object(raw: Raw) -> ClaimView | None:
    """The view of a claim; None for an object without a usable identity."""
    meta, spec, status = mapping_in(raw, "metadata"), mapping_in(raw, "spec"), mapping_in(raw, "status")
    uid, name = meta.get("uid"), meta.get("name")
    if not isinstance(uid, str) or not isinstance(name, str) or not uid or not name:
        return None
    allocation = status.get("allocation")
    owner = next((each for each in mappings_in(meta, "ownerReferences") if each.get("controller")), {})
    owner = owner if owner.get("kind") == "Pod" else {}
    results = mappings_in(mapping_in(mapping_in(status, "allocation"), "devices"), "results")
    return ClaimView(
        uid=uid,
        namespace=str(meta.get("namespace", "")),
        name=name,
        version=version_of(meta.get("resourceVersion")),
        resource_version=str(meta.get("resourceVersion", "")),
        dying=bool(meta.get("deletionTimestamp")),
        finalizers=tuple(str(each) for each in meta.get("finalizers") or ()),
        owner=RequestId(str(owner.get("uid", ""))),
        owner_name=str(owner.get("name", "")),
        spec=spec,
        is_allocated=isinstance(allocation, dict),
        devices={
            str(each.get("request")): (str(each.get("driver")), str(each.get("pool")), str(each.get("device")))
            for each in results
        },
        reserved=tuple(mappings_in(status, "reservedFor")),
    )

"""Names that a pod's claims, their allocations (the pod-watcher's) and a node's CDI files (its agent's) share."""

from collections.abc import Iterable, Mapping
from hashlib import sha256

from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import ResourceClaimRef

DRIVER = "gpu.sluice.dev"
"""The driver of our allocations, and the kubelet plugin of every agent."""
DEVICE_CLASS = "sluice.dev"
"""Our DeviceClass. Its selector is `false`: no scheduler allocates its claims."""
FINALIZER = "resource.kubernetes.io/delete-protection"
"""With it the claim controller deallocates a claim without consumers (kubernetes, pkg/controller/resourceclaim)."""
POD_CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
"""On a claim that was made for one pod: its name in the pod's spec."""
POD_CLAIM = "sluice"
"""Name, in the pod's spec, of the claim that admission adds for a request in other words."""
CDI_KIND = "k8s.gpu.sluice.dev/claim"
"""Vendor and class of the agent's CDI files."""
_DIGITS = 16


def device_names(allocation: AllocationId, claims: Iterable[ResourceClaimRef]) -> Mapping[tuple[str, str], str]:
    """(UID of a claim, its request) -> the name of its device in pool `<node>`.

    No other allocation ever has the same: the scheduler's set of devices in use is keyed by name, and frees one with
    the first claim that ends (k8s.io/kubernetes, plugins/dynamicresources/allocateddevices.go)."""
    begins = sha256(allocation.encode()).hexdigest()[:_DIGITS]
    wanted = [(claim.uid, request) for claim in claims for request in sorted(claim.requests)]
    return {each: f"{begins}-{number}" for number, each in enumerate(wanted)}


def cdi_device(claim_uid: str, device: str) -> str:
    """The qualified CDI name of a device of a claim (CDI specification, 0.6.0 and later)."""
    return f"{CDI_KIND}={claim_uid}-{device}"


GPU_CLASS, MIG_CLASS, VFIO_CLASS = "gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com"
SERVED_CLASSES = (DEVICE_CLASS, GPU_CLASS, MIG_CLASS)
_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Of the resource of a class (k8s.io/api/resource/v1, ResourceDeviceClassPrefix)."""


def class_of_resource(name: str) -> str:
    """The DeviceClass that a resource of a container stands for, if Sluice serves it; else empty."""
    found = name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else ""
    return found if found in SERVED_CLASSES else ""

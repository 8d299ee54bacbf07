"""The keys that Sluice reads: the names of every vocabulary, without their meaning."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

SLUICE = "sluice.dev"
FASTGSHARE = "fastgshare/"
MIG_RESOURCE = "nvidia.com/mig-"


@dataclass(frozen=True, slots=True)
class VgpuNames:
    """How one family spells the resources of a virtual GPU, and its mode annotation."""

    count: str
    memory: str
    memory_percentage: str
    cores: str
    mode: str
    priority: str = ""

    @property
    def resources(self) -> tuple[str, ...]:
        listed = (self.count, self.memory, self.memory_percentage, self.cores, self.priority)
        return tuple(name for name in listed if name)


HAMI = VgpuNames(
    count="nvidia.com/gpu",
    memory="nvidia.com/gpumem",
    memory_percentage="nvidia.com/gpumem-percentage",
    cores="nvidia.com/gpucores",
    mode="nvidia.com/vgpu-mode",
    priority="nvidia.com/priority",
)
VOLCANO = VgpuNames(
    count="volcano.sh/vgpu-number",
    memory="volcano.sh/vgpu-memory",
    memory_percentage="volcano.sh/vgpu-memory-percentage",
    cores="volcano.sh/vgpu-cores",
    mode="volcano.sh/vgpu-mode",
)
Amount = Literal["gpus", "memory_mib", "memory_percentage", "sm_percentage", "priority", "instances"]
"""What a resource counts; instances have the profile in the resource's name."""


def _amounts(family: VgpuNames) -> dict[str, Amount]:
    amounts: dict[str, Amount] = {
        family.count: "gpus",
        family.memory: "memory_mib",
        family.memory_percentage: "memory_percentage",
        family.cores: "sm_percentage",
    }
    return amounts | ({family.priority: "priority"} if family.priority else {})


AMOUNTS: Mapping[str, Amount] = {**_amounts(HAMI), **_amounts(VOLCANO)}
"""Every resource of ours except those of MIG profiles."""
_IN_QUOTAS = ("requests.", "limits.")
"""Prefixes of a resource in a ResourceQuota, besides the bare name. Kubernetes counts only `requests.` of an extended
resource (https://kubernetes.io/docs/concepts/policy/resource-quotas/#quota-for-extended-resources), HAMi `limits.`
(https://project-hami.io/docs/userguide/nvidia-device/using-resourcequota/), and the API server takes all three."""


def is_sluice_key(key: str) -> bool:
    prefix = key.partition("/")[0]
    return prefix == SLUICE or prefix.endswith(f".{SLUICE}")


def is_our_annotation(key: str) -> bool:
    """Whether an annotation by itself makes a pod a request (or refused)."""
    return key.startswith(FASTGSHARE) or is_sluice_key(key)


def amount_of(resource: str) -> Amount | None:
    return "instances" if resource.startswith(MIG_RESOURCE) else AMOUNTS.get(resource)


def is_gpu_resource(name: str) -> bool:
    """Whether a resource requests GPUs, so that it is a claim and not an extended resource of the node."""
    return amount_of(name) is not None


def resource_in_quota(key: str) -> str:
    prefix = next((each for each in _IN_QUOTAS if key.startswith(each)), "")
    return key.removeprefix(prefix)

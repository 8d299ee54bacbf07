"""Which keys are ours to understand: the names of every vocabulary, and nothing about what they mean."""

from dataclasses import dataclass

SLUICE = "sluice.dev"
FASTGSHARE = "fastgshare/"
MIG_RESOURCE = "nvidia.com/mig-"


@dataclass(frozen=True, slots=True)
class VgpuNames:
    """How one family spells the resources of a virtual GPU, and its annotation of the mode."""

    count: str
    memory: str
    memory_percentage: str
    cores: str
    mode: str
    priority: str = ""

    @property
    def resources(self) -> tuple[str, ...]:
        """Every resource of the family."""
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
_RESOURCES = frozenset((*HAMI.resources, *VOLCANO.resources))


def is_sluice_key(key: str) -> bool:
    """Whether an annotation is of our own vocabulary: `sluice.dev/...` or `<container>.sluice.dev/...`."""
    prefix = key.partition("/")[0]
    return prefix == SLUICE or prefix.endswith(f".{SLUICE}")


def is_our_annotation(key: str) -> bool:
    """Whether an annotation by itself makes a pod ask for something (or be refused)."""
    return key.startswith(FASTGSHARE) or is_sluice_key(key)


def is_gpu_resource(name: str) -> bool:
    """Whether a resource asks for GPUs, so that it is a claim and no countable resource of the node."""
    return name in _RESOURCES or name.startswith(MIG_RESOURCE)

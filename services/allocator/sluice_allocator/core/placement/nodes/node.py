"""What a node has besides GPUs (CPU, memory, pods, extended resources), and what our pods take of it. A node without
reported facts is assumed to have room for everything, and only its host name as a label."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.kube.names import LABEL_HOSTNAME
from sluice.contracts.messages import HostFacts, HostRoom, Mode, Taint
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.placement.spec.config import Weights

if TYPE_CHECKING:
    from sluice_allocator.core.placement.nodes.bucket import Bucket
    from sluice_allocator.core.placement.nodes.gpu import Gpu
    from sluice_allocator.core.placement.nodes.node_shape import NodeShape, ShapeKey

ANY_CPU_PER_GPU = -1  # the value for pods that request no CPU: nodes do not differ for them
UNBOUNDED = 1 << 62  # room on a node without reported facts


def cpu_per_gpu_of(cpu_milli: int, gpu_percent: int) -> int:
    """CPU per GPU, in half octaves: 10 % more or less does not matter. Pods are placed where this is nearest to their
    own ratio, so that neither CPU nor GPUs are stranded. On real traces that decides more than how GPUs are packed
    (docs/performance.md)."""
    each = max(1, max(0, cpu_milli) * 100 // max(1, gpu_percent))
    return (each * each).bit_length()


def labels_of_node(node: NodeName, facts: HostFacts | None) -> Mapping[str, str]:
    """A node's labels. Without a host name label, as a kubelet sets it, the node's name serves."""
    labels = facts.labels if facts is not None else {}
    return labels if LABEL_HOSTNAME in labels else {**labels, LABEL_HOSTNAME: node}


@dataclass(slots=True, eq=False)
class Node:
    """One node: its GPUs, its facts, and its free room. Numbered in order of appearance."""

    number: int
    name: NodeName
    gpus: tuple["Gpu", ...] = ()  # usable GPUs, in index order; empty while the node may not be used
    all_gpus: tuple["Gpu", ...] = ()
    modes: tuple[Mode, ...] = ("exclusive",)
    time_quota: bool = False
    hands_over: bool = False  # whether its kubelet hands devices over by ResourceClaim
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cpu_milli: int = UNBOUNDED  # free now; below zero when overbooked
    memory_mib: int = UNBOUNDED
    pods: int = UNBOUNDED  # how many more pods it takes, by its allocatable and by `pods_max`
    pods_max: int = UNBOUNDED  # most pods with slices that the operator allows on one node
    resources: Mapping[str, int] | None = None
    facts: HostFacts | None = None
    taken: dict[AllocationId, HostRoom] = field(default_factory=dict)  # what our pods take
    buckets: dict["Bucket", int] = field(default_factory=dict)  # its buckets, and the number of its devices on each
    shape: "NodeShape | None" = None  # the shape of its class under which its full capacity counts
    shape_key: "ShapeKey" = ()
    offers: HostRoom | None = None  # the allocatable counted there; None when it reports none
    gpu_percent: int = 0  # the sum of what is free of each GPU (`Gpu.free_percent`)
    cpu_per_gpu: int = 0  # free CPU per free GPU (`cpu_per_gpu_of`); 0 if unknown, or until a pod asks for CPU
    usage: int = 0  # in permille, by the pool's weights; kept only while a policy uses it

    def learn(self, facts: HostFacts | None) -> None:
        """Set the reported facts; None when there are none any more."""
        self.facts = facts
        self.labels = labels_of_node(self.name, facts)
        self.taints = facts.taints if facts is not None else ()
        self._count()

    def take(self, allocation: AllocationId, room: HostRoom) -> None:
        self.taken[allocation] = room
        self.pods -= 1
        if self.facts is not None:
            self.cpu_milli -= room.cpu_milli
            self.memory_mib -= room.memory_mib
            if room.resources:
                self._count()

    def give_back(self, allocation: AllocationId) -> None:
        room = self.taken.pop(allocation, None)
        if room is None:
            return
        self.pods += 1
        if self.facts is not None:
            self.cpu_milli += room.cpu_milli
            self.memory_mib += room.memory_mib
            if room.resources:
                self._count()

    def _count(self) -> None:
        facts = self.facts
        if facts is None:
            self.cpu_milli = self.memory_mib = UNBOUNDED
            self.pods = self.pods_max - len(self.taken)
            self.resources = None
            return
        self.cpu_milli = round(facts.cpu_cores * 1000) - sum(room.cpu_milli for room in self.taken.values())
        self.memory_mib = facts.memory_mib - sum(room.memory_mib for room in self.taken.values())
        self.pods = min(facts.pods_free, self.pods_max) - len(self.taken)
        left = Counter(facts.resources)
        for room in self.taken.values():
            left.subtract(room.resources)
        self.resources = left

    def current_cpu_per_gpu(self) -> int:
        return 0 if self.facts is None else cpu_per_gpu_of(self.cpu_milli, self.gpu_percent)

    def weigh(self, weights: Weights) -> int:
        """How full the node is, in permille; resources without facts do not count."""
        used = [gpu.used() for gpu in self.all_gpus]
        facts, left = self.facts, self.resources or {}
        cpu_milli = round(facts.cpu_cores * 1000) if facts is not None else 0
        room_mib, resources = (facts.memory_mib, facts.resources) if facts is not None else (0, {})
        return weights.node_usage(
            gpu_memory=(sum(memory_mib for memory_mib, _ in used), sum(gpu.memory_mib for gpu in self.all_gpus)),
            gpu_sms=(sum(sms for _, sms in used), sum(gpu.sms for gpu in self.all_gpus)),
            cpu=(cpu_milli - self.cpu_milli, cpu_milli),
            memory=(room_mib - self.memory_mib, room_mib),
            resources={name: (total - left.get(name, 0), total) for name, total in resources.items()},
        )

    @property
    def overbooked(self) -> bool:
        """Whether more is booked besides GPUs than there is: a reservation is booked beside its predecessors."""
        left = (self.cpu_milli, self.memory_mib, self.pods, *(self.resources or {}).values())
        return any(each < 0 for each in left)

    def has_room(self, need: HostRoom) -> bool:
        """Whether a pod with this need fits, GPUs aside."""
        if self.cpu_milli < need.cpu_milli or self.memory_mib < need.memory_mib or self.pods < 1:
            return False
        return not need.resources or self.why_no_room(need) is None

    def would_have_room(self, need: HostRoom, given_back: Sequence[HostRoom]) -> bool:
        """Whether a pod with this need fits, GPUs aside, once pods that take so much have ended."""
        if self.facts is None:
            return self.pods + len(given_back) >= 1
        cpu_milli = self.cpu_milli + sum(room.cpu_milli for room in given_back)
        memory_mib = self.memory_mib + sum(room.memory_mib for room in given_back)
        if cpu_milli < need.cpu_milli or memory_mib < need.memory_mib or self.pods + len(given_back) < 1:
            return False
        have = Counter(self.resources or {})
        for room in given_back if need.resources else ():
            have.update(room.resources)
        return all(have[name] >= count for name, count in need.resources.items())

    def why_no_room(self, need: HostRoom) -> WaitReason | None:
        if self.cpu_milli < need.cpu_milli:
            return WaitReason.NODE_INSUFFICIENT_CPU
        if self.memory_mib < need.memory_mib:
            return WaitReason.NODE_INSUFFICIENT_MEMORY
        if self.pods < 1:
            capped = len(self.taken) >= self.pods_max
            return WaitReason.NODE_PODS_AT_LIMIT if capped else WaitReason.NODE_INSUFFICIENT_PODS
        have = self.resources
        if have is not None and any(have.get(name, 0) < count for name, count in need.resources.items()):
            return WaitReason.NODE_INSUFFICIENT_RESOURCE
        return None

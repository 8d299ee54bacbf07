"""Groups nodes that are alike in everything a request may ask of a node besides room, with the buckets of their
devices. Only labels that requests have selected by tell classes apart: using every label (some differ on every node)
would make every node a class of its own."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.contracts.kube.taints import untolerated
from sluice.contracts.messages import HostNeeds, Mode, Share, Taint
from sluice.contracts.reasons import WaitReason
from sluice.mig.transition_table import State
from sluice_allocator.core.placement.nodes.bucket import Bucket, SortedBuckets
from sluice_allocator.core.placement.nodes.gpu import Gpu
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.core.placement.nodes.node_shape import NodeShape, ShapeKey
from sluice_allocator.core.placement.nodes.shared_device import SharedDevice, SharedDeviceSize, TrustDomain
from sluice_allocator.core.placement.spec.config import PoolConfig
from sluice_allocator.core.placement.spec.place_request import PASSING, meaning_of

ClassKey = tuple[object, ...]
SharedDevicesKey = tuple[TrustDomain, str, str, str | None]
"""Trust domain, mode, kind of GPU, profile of the home (None for a whole GPU)."""


@dataclass(slots=True, eq=False)
class NodeClass:
    """One class of nodes, and where their devices are found."""

    number: int
    key: ClassKey
    words: str  # the class in words for users; empty for nodes with nothing special
    pool: PoolConfig
    modes: tuple[Mode, ...]
    time_quota: bool
    hands_over: bool  # whether their kubelets hand devices over by ResourceClaim
    labels: Mapping[str, str]  # labels that requests have selected by
    taints: tuple[Taint, ...]
    nodes: dict[int, Node] = field(default_factory=dict)  # members with usable GPUs, by number
    shapes: dict[ShapeKey, NodeShape] = field(default_factory=dict)  # all members: what empty ones could serve
    samples: dict[str, Gpu] = field(default_factory=dict)  # one GPU of each kind ever here: all can do the same
    states: dict[str, dict[State, Bucket]] = field(default_factory=dict)  # usable, with MIG; no bucket is empty
    whole: dict[str, Bucket] = field(default_factory=dict)  # idle GPUs without MIG, by kind
    homes: dict[SharedDevicesKey, SortedBuckets] = field(default_factory=dict)  # by what they have left
    booked_whole: dict[str, dict[Gpu, None]] = field(default_factory=dict)  # usable, in use, the longest first
    homes_of: dict[tuple[TrustDomain, str], dict[SharedDevicesKey, None]] = field(default_factory=dict)
    """The keys of `homes` by trust domain and mode."""
    home_sizes: dict[tuple[str, str | None], SharedDeviceSize] = field(default_factory=dict)  # by kind and profile
    home_count: dict[tuple[str, str | None], int] = field(default_factory=dict)  # by kind of GPU and profile

    def in_use(self, kind: str) -> int:
        """How many GPUs of a kind are usable. Walks over layout states, never over GPUs."""
        idle = self.whole.get(kind)
        with_mig = sum(bucket.devices for bucket in self.states.get(kind, {}).values())
        return with_mig + (idle.devices if idle is not None else 0) + len(self.booked_whole.get(kind, ()))

    def why_not(self, needs: HostNeeds) -> WaitReason | None:
        """Why a pod with these needs cannot be on such nodes; None when it can. Labels of single nodes aside. A taint
        set on purpose comes before taints that pass by themselves."""
        if not self.taints:
            return None
        found = [meaning_of(taint) for taint in untolerated(self.taints, needs.tolerations)]
        return next((why for why in found if why not in PASSING), found[0] if found else None)


MEMORY_PARTS = 16  # a bucket holds the memory of a home in sixteenths where its level is of something else


def bucket_number_of(home: SharedDevice) -> int:
    """By what is left in a home: in `mps` mode its free memory in MiB, else its level and its memory in sixteenths.
    Homes on one bucket are alike in what an `mps` share needs; a fractional share may still find time or memory short.
    """
    if home.mode == "mps":
        return 0 if home.full else home.free_memory_mib
    return home.level * (MEMORY_PARTS + 1) + memory_part(home.free_memory_mib, home.size)


def bucket_numbers_for(sorted_buckets: SortedBuckets, share: Share, size: SharedDeviceSize) -> Iterator[int]:
    """The buckets on which a home of this size may have room for the share, fullest first."""
    if share.mode == "mps":
        yield from sorted_buckets.at_least(share.memory_mib)
        return
    needed = memory_part(share.memory_mib, size)
    for bucket_number in sorted_buckets.at_least(size.level_needed(share) * (MEMORY_PARTS + 1)):
        if bucket_number % (MEMORY_PARTS + 1) >= needed:
            yield bucket_number


def memory_part(memory_mib: int, size: SharedDeviceSize) -> int:
    """A home's memory in sixteenths, rounded up; more than all of it (overcommit) counts as all."""
    return min(MEMORY_PARTS, -(-MEMORY_PARTS * max(0, memory_mib) // max(1, size.memory_mib)))


SHAPES_MAX = 32  # most shapes counted per class of nodes; the least recently used one makes room
Count = Callable[[Node], int]


class DeviceCounts:
    """The nodes of one class by how many devices of one shape each could hold."""

    def __init__(self, count: Count, nodes: Sequence[Node]) -> None:
        self._count = count
        self._of: dict[int, int] = {}  # each node's count, by its number
        self.sorted_buckets = SortedBuckets(nodes)

    def put(self, node: Node) -> None:
        now, before = self._count(node), self._of.get(node.number)
        if now == before:
            self.sorted_buckets.by_number[now].look_again(node)
        else:
            self.take(node)
            self._of[node.number] = now
            self.sorted_buckets.bucket_number(now).add(node)

    def take(self, node: Node) -> None:
        before = self._of.pop(node.number, None)
        if before is not None:
            self.sorted_buckets.by_number[before].remove(node)
            self.sorted_buckets.drop_if_empty(before)

    def move(self, node: Node, cpu_per_gpu_before: int) -> None:
        count = self._of.get(node.number)
        if count is not None:
            self.sorted_buckets.by_number[count].move(node, cpu_per_gpu_before)


class DeviceCountCache:
    """All kept counts."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._kept: dict[int, dict[str, DeviceCounts]] = {}

    def of(self, group: NodeClass, shape: str, count: Count) -> DeviceCounts:
        """A class's nodes by how many of `shape` they hold. `count` must depend on the node alone."""
        kept = self._kept.setdefault(group.number, {})
        found = kept.pop(shape, None)
        if found is None:
            if len(kept) >= SHAPES_MAX:
                del kept[next(iter(kept))]
            found = DeviceCounts(count, self._nodes)
            for node in group.nodes.values():
                found.put(node)
        kept[shape] = found
        return found

    def in_class(self, group: NodeClass) -> Iterable[DeviceCounts]:
        return self._kept.get(group.number, {}).values()

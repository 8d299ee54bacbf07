"""How to choose among places that all fit: a policy orders nodes and ranks devices, and never decides whether one fits.
Sources: HAMi's `hami.io/node-scheduler-policy` and `gpu-scheduler-policy` (https://github.com/Project-HAMi/HAMi,
pkg/scheduler/policy) and tensor-fusion (https://github.com/NexusGPU/tensor-fusion, internal/gpuallocator). Ours
compares nodes by the pool's weights, as a ratio, and a GPU by what limits it: memory slices, or what its shares are
counted by."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import msgspec

from sluice.contracts.policy_names import BOTH_LEVELS, invalid_gpu_policy_reason, invalid_node_policy_reason, links_of
from sluice_allocator.core.placement.spec.config import PoolConfig

NodeOrder = Literal["any", "first", "fullest", "emptiest"]
"""`any`: the devices decide, then the node nearest to the pod in CPU per GPU, then the one known first. `first`: the
first node that fits. `fullest`, `emptiest`: by the node's usage before placing (`Weights.node_usage`)."""
_NUMA_UNKNOWN = 1 << 16  # after every NUMA node there is


class DeviceUse(msgspec.Struct, frozen=True):
    """One device that could serve a claim, as it is before placing."""

    used_permille: int
    """How much of it is not free, 0 to 1000: of a GPU's memory slices; of a home, what its shares are counted by."""
    free_slices: int  # free memory slices: of two devices used alike, the smaller one has fewer
    rank: tuple[int, ...]  # how much the place would fragment the device, smallest is best: what ends every tie
    numa: int | None
    order: int  # of the device on its node: the very last tie


Key = Callable[[DeviceUse], tuple[int, ...]]  # ranks a device; the smallest is taken


class GpuRule(msgspec.Struct, frozen=True):
    """One policy's rule for GPUs: how to rank them (`by`; () is no opinion), and which may be taken."""

    by: Key
    idle_only: bool = False
    lowest_start: bool = False
    linked: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """What a search follows. `idle_only`: GPUs on which nothing is booked. `lowest_start`: not the start that keeps
    most possible. `linked`: the GPUs closest to each other (`topology.closest`)."""

    name: str
    nodes: NodeOrder
    key: Key
    idle_only: bool = False
    lowest_start: bool = False
    linked: bool = False
    packs: bool = field(init=False)  # whether full GPUs come before idle ones: then shares fill existing homes
    plain: bool = field(init=False)  # whether it has no opinion on devices, so that only fragmentation counts

    def __post_init__(self) -> None:
        idle, full = (self.key(DeviceUse(used, free, (), None, 0)) for used, free in ((0, 8), (1000, 0)))
        object.__setattr__(self, "packs", full <= idle)
        object.__setattr__(self, "plain", idle == full == (0,))


def _fullest_first(use: DeviceUse) -> tuple[int, ...]:
    return (-use.used_permille, use.free_slices)


def _emptiest_first(use: DeviceUse) -> tuple[int, ...]:
    return (use.used_permille, -use.free_slices)


_NODES: Mapping[str, NodeOrder] = {
    "fragmentation": "any",
    "first-fit": "first",
    "binpack": "fullest",
    "spread": "emptiest",
    "compact-first": "fullest",
    "low-load-first": "emptiest",
    "node-compact-gpu-low-load": "fullest",
}
_GPUS: Mapping[str, GpuRule] = {
    # The default: only the rank, which follows in every policy: for an instance the least loss of what its GPU could
    # still serve (`TransitionTable`).
    "fragmentation": GpuRule(lambda _use: ()),
    # The baseline to compare with, which device plugins and tensor-fusion follow: the first GPU that fits, the lowest
    # free start. On an empty A100 it puts a 1g at start 0, which costs the only 4g placement.
    "first-fit": GpuRule(lambda use: (use.order,), lowest_start=True),
    # HAMi's binpack. Of equally used GPUs the one with fewer free slices, the smaller GPU.
    "binpack": GpuRule(_fullest_first),
    # HAMi's spread. Gives a pod most of a GPU's caches and bandwidth, and leaves no whole GPU for later requests.
    "spread": GpuRule(_emptiest_first),
    # tensor-fusion's CompactFirst, LowLoadFirst, and NodeCompactGPULowLoad (its default, which keeps whole nodes free).
    "compact-first": GpuRule(_fullest_first),
    "low-load-first": GpuRule(_emptiest_first),
    "node-compact-gpu-low-load": GpuRule(_emptiest_first),
    # HAMi's topology-aware: the set of GPUs with the largest sum of pair scores (`search.topology`); for one GPU the
    # worst linked. It ranks no single device: the rest of a chain orders the places within the set.
    "topology-aware": GpuRule(lambda _use: (), linked=True),
    # HAMi's mutex: the pod has the GPU to itself at first; others may join later.
    "mutex": GpuRule(lambda _use: (), idle_only=True),
    # HAMi's numa: GPUs of one NUMA node next to each other, the lowest first, those that report none last. A
    # preference: `numa-bind` is the demand.
    "numa": GpuRule(lambda use: (_NUMA_UNKNOWN if use.numa is None else use.numa,)),
}


def check_names(node_policy: str, gpu_policy: str) -> str | None:
    """Why these are no policies; None when they are. Empty is the pool's own."""
    return invalid_node_policy_reason(node_policy) or invalid_gpu_policy_reason(gpu_policy)


def policy_for(node_policy: str, gpu_policy: str, pool: PoolConfig) -> Policy:
    """What a request follows in a pool: its own policies, and the pool's where it names none. A name of both levels
    given for one only holds for both. Names must have passed `check_names`; raises KeyError on one that has not."""
    if not node_policy and not gpu_policy:
        return _policy(pool.node_policy, pool.gpu_policy)
    if not node_policy:
        node_policy = gpu_policy if gpu_policy in BOTH_LEVELS else pool.node_policy
    elif not gpu_policy:
        gpu_policy = node_policy if node_policy in BOTH_LEVELS else pool.gpu_policy
    return _policy(node_policy, gpu_policy)


@lru_cache(maxsize=1024)
def _policy(node_policy: str, gpu_policy: str) -> Policy:
    rules = [_GPUS[link] for link in links_of(gpu_policy)]
    return Policy(
        name=gpu_policy if node_policy == gpu_policy else f"node={node_policy},gpu={gpu_policy}",
        nodes=_NODES[node_policy],
        key=_chained(tuple(rule.by for rule in rules)),
        idle_only=any(rule.idle_only for rule in rules),
        lowest_start=any(rule.lowest_start for rule in rules),
        linked=any(rule.linked for rule in rules),
    )


def _chained(keys: tuple[Key, ...]) -> Key:
    """One key after the other; then, as in every policy, what fragments least, then the order on the node."""
    if len(keys) == 1:
        first = keys[0]
        return lambda use: (*first(use), *use.rank, use.order)

    def key(use: DeviceUse) -> tuple[int, ...]:
        return (*(part for by in keys for part in by(use)), *use.rank, use.order)

    return key

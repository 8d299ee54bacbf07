"""Selects the policy of a search: the request's, else the pool's; combines a chain into one policy."""

from collections.abc import Mapping
from functools import lru_cache

from sluice.contracts.policy_names import BOTH_LEVELS, invalid_gpu_policy_reason, invalid_node_policy_reason, links_of
from sluice_allocator.core.placement.policies import (
    binpack,
    compact_first,
    first_fit,
    fragmentation,
    low_load_first,
    mutex,
    node_compact_gpu_low_load,
    numa,
    spread,
    topology_aware,
)
from sluice_allocator.core.placement.policies.policy import DeviceUse, GpuRule, Key, NodeOrder, Policy
from sluice_allocator.core.placement.rules import PoolRules

_NODES: Mapping[str, NodeOrder] = {
    "fragmentation": fragmentation.NODES,
    "first-fit": first_fit.NODES,
    "binpack": binpack.NODES,
    "spread": spread.NODES,
    "compact-first": compact_first.NODES,
    "low-load-first": low_load_first.NODES,
    "node-compact-gpu-low-load": node_compact_gpu_low_load.NODES,
}
_GPUS: Mapping[str, GpuRule] = {
    "fragmentation": fragmentation.GPUS,
    "first-fit": first_fit.GPUS,
    "binpack": binpack.GPUS,
    "spread": spread.GPUS,
    "compact-first": compact_first.GPUS,
    "low-load-first": low_load_first.GPUS,
    "node-compact-gpu-low-load": node_compact_gpu_low_load.GPUS,
    "topology-aware": topology_aware.GPUS,
    "mutex": mutex.GPUS,
    "numa": numa.GPUS,
}


def check_names(node_policy: str, gpu_policy: str) -> str | None:
    """Why these are no policies; None when they are. Empty is the pool's own."""
    return invalid_node_policy_reason(node_policy) or invalid_gpu_policy_reason(gpu_policy)


def policy_for(node_policy: str, gpu_policy: str, pool: PoolRules) -> Policy:
    """
    What a request follows in a pool: its own policies, and the pool's where it names none.

    A name of both levels given for one only holds for both. Names must have passed `check_names`; raises KeyError on
    one that has not.
    """
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

"""
What an operator may configure about places: pools, weights, what may be made where. Reads nothing; plain values.

The defaults are what a fleet gets that configures nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import Mode
from sluice.mig.model import GpuModel
from sluice_allocator.core.placement.geometries import (
    KNOWN_GEOMETRIES,
    Geometry,
    chosen_by_memory,
    names_model,
    names_same,
)

DEFAULT_POOL = "default"
"""The pool of nodes without the pool label."""

Amount = tuple[int, int]
"""How much is used, of how much in all; a total of 0 is something that is not there."""


@dataclass(frozen=True, slots=True)
class Weights:
    """
    How much each resource counts in a usage: whole numbers, at least 0, compared with each other only.

    usage = sum(weight * used / total) / sum(weight) over what is there, in permille, rounded down. By default all
    that every node has counts alike; `resources` are countable resources of the user's own, by name.
    """

    gpu_memory: int = 1
    gpu_sms: int = 1
    cpu: int = 1
    memory: int = 1
    resources: Mapping[str, int] = field(default_factory=dict)

    def node_usage(
        self, *, gpu_memory: Amount, gpu_sms: Amount, cpu: Amount, memory: Amount, resources: Mapping[str, Amount]
    ) -> int:
        """A node's usage, 0 to 1000; 0 where nothing that counts is there."""
        parts = [
            (self.gpu_memory, *gpu_memory),
            (self.gpu_sms, *gpu_sms),
            (self.cpu, *cpu),
            (self.memory, *memory),
            *((weight, *resources[name]) for name, weight in self.resources.items() if name in resources),
        ]
        return _usage_permille(parts)


def _usage_permille(parts: list[tuple[int, int, int]]) -> int:
    """Exact, in whole numbers: one fraction over the product of the totals. Over-committed counts as full."""
    top, bottom, weights = 0, 1, 0
    for weight, used, total in parts:
        if weight and total > 0:
            top = top * total + weight * min(max(used, 0), total) * bottom
            bottom *= total
            weights += weight
    return 1000 * top // (bottom * weights) if weights else 0


@dataclass(frozen=True, slots=True)
class PoolRules:
    """What holds for the nodes of one pool."""

    overcommit_percent: int = 100
    """Of a home's memory, how much may be promised to MPS shares in all. Never to other modes."""
    node_policy: str = "fragmentation"
    gpu_policy: str = "fragmentation"
    weights: Weights = field(default_factory=Weights)


@dataclass(frozen=True, slots=True)
class NodeModes:
    """The modes that nodes of this name may serve; `*` in the pattern stands for any text."""

    pattern: str
    modes: tuple[Mode, ...]


@dataclass(frozen=True, slots=True)
class AllowedProfiles:
    """The only profiles that are made on models with one of these parts in their product name, whoever asks."""

    models: tuple[str, ...]
    profiles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlacingRules:
    """All that an operator may say about places."""

    pool_label: str = "sluice.dev/pool"
    """The node label whose value is the node's pool."""
    default: PoolRules = field(default_factory=PoolRules)
    """For every pool that `pools` does not name."""
    pools: Mapping[str, PoolRules] = field(default_factory=dict)
    pods_per_node_max: int | None = None
    """So many pods with slices are put on one node at most; None for as many as there is room for."""
    auto_waste_percent: int = 10
    """`auto` takes an instance only when it gives at most this much more than was asked, of what it gives."""
    shares_quantum_percent: int = 1
    """The smallest part of a GPU into which an amount over several GPUs is split."""
    assumed_uid: int | None = 0
    """The user of containers that do not say theirs; None refuses them where a share is asked for. The default is what
    most images run as, root."""
    geometries: tuple[Geometry, ...] = KNOWN_GEOMETRIES
    """What HAMi's keys may choose, per model; the first that names a model speaks for it."""
    allowed_profiles: tuple[AllowedProfiles, ...] = ()
    """The first that names a model speaks for it; a model that none names may have every profile."""
    node_modes: tuple[NodeModes, ...] = ()
    """The first that matches a node speaks for it; a node that none matches may serve what its agent can."""
    _geometry_of: dict[GpuModel, tuple[str, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _allowed_on: dict[GpuModel, frozenset[str]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was worked out once per model."""

    def pool(self, name: str) -> PoolRules:
        """What holds in a pool."""
        return self.pools.get(name, self.default)

    def modes_of(self, node: NodeName) -> tuple[Mode, ...] | None:
        """The only modes that a node may serve; None when nothing was said about it."""
        return next((rule.modes for rule in self.node_modes if _pattern(rule.pattern).fullmatch(node)), None)

    def geometry_of(self, model: GpuModel) -> tuple[str, ...]:
        """The profiles of `model` that HAMi's keys may choose, by memory, then compute slices; () without MIG."""
        chosen = self._geometry_of.get(model)
        if chosen is None:
            chosen = tuple(name for name in chosen_by_memory(model, self.geometries) if self.allows(model, name))
            self._geometry_of[model] = chosen
        return chosen

    def allows(self, model: GpuModel, profile: str) -> bool:
        """Whether this profile of `model` may be made at all."""
        allowed = self._allowed_on.get(model)
        if allowed is None:
            rule = next((rule for rule in self.allowed_profiles if names_model(model, rule.models)), None)
            allowed = self._allowed_on[model] = frozenset(
                each.name
                for each in model.profiles
                if rule is None or any(names_same(listed, each.name) for listed in rule.profiles)
            )
        return profile in allowed


@lru_cache(maxsize=1024)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")))

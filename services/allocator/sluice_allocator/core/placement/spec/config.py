"""The operator's configuration of placement, as plain values: pools, weights, and allowed profiles. The defaults are
those of a cluster without configuration."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import Claim, Mode
from sluice.mig.model import GpuModel, Profile
from sluice_allocator.core.placement.spec.hami_profiles import (
    KNOWN_GEOMETRIES,
    Geometry,
    chosen_by_memory,
    names_model,
    names_same,
)

DEFAULT_POOL = "default"  # the pool of nodes without the pool label

Amount = tuple[int, int]  # Used, and total; a total of 0 means the node has none of it


@dataclass(frozen=True, slots=True)
class Weights:
    """The weight of each resource in a node's usage: whole numbers, at least 0, relative to each other. usage =
    sum(weight * used / total) / sum(weight) over what the node has, in permille, rounded down. By default all that
    every node has counts alike; `resources` are extended resources, by name."""

    gpu_memory: int = 1
    gpu_sms: int = 1
    cpu: int = 1
    memory: int = 1
    resources: Mapping[str, int] = field(default_factory=dict)

    def node_usage(
        self, *, gpu_memory: Amount, gpu_sms: Amount, cpu: Amount, memory: Amount, resources: Mapping[str, Amount]
    ) -> int:
        """A node's usage, 0 to 1000; 0 where it has nothing that counts."""
        parts = [
            (self.gpu_memory, *gpu_memory),
            (self.gpu_sms, *gpu_sms),
            (self.cpu, *cpu),
            (self.memory, *memory),
            *((weight, *resources[name]) for name, weight in self.resources.items() if name in resources),
        ]
        return _usage_permille(parts)


def _usage_permille(parts: list[tuple[int, int, int]]) -> int:
    """Exact, in whole numbers: one fraction over the product of the totals. Overcommitted counts as full."""
    top, bottom, weights = 0, 1, 0
    for weight, used, total in parts:
        if weight and total > 0:
            top = top * total + weight * min(max(used, 0), total) * bottom
            bottom *= total
            weights += weight
    return 1000 * top // (bottom * weights) if weights else 0


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """The rules of one pool's nodes."""

    overcommit_percent: int = 100  # how much of a home's memory MPS shares may reserve; other modes: 100
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
    """The only profiles made on models with one of these parts in their product name."""

    models: tuple[str, ...]
    profiles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlacementConfig:
    """All rules of placement."""

    pool_label: str = "sluice.dev/pool"  # the node label whose value is the node's pool
    default: PoolConfig = field(default_factory=PoolConfig)  # for every pool that `pools` does not name
    pools: Mapping[str, PoolConfig] = field(default_factory=dict)
    pods_per_node_max: int | None = None  # most pods with slices on one node; None for no limit but the room there is
    auto_waste_percent: int = 10  # `auto` takes an instance only when at most this part of it exceeds the request
    shares_quantum_percent: int = 1  # the smallest part of a GPU into which an amount over several GPUs is split
    assumed_uid: int | None = 0
    """
    The user of containers that name none; None refuses shares for them. The default is what most images run as, root.
    """
    geometries: tuple[Geometry, ...] = KNOWN_GEOMETRIES  # for HAMi's keys; the first that names a model decides
    allowed_profiles: tuple[AllowedProfiles, ...] = ()  # the first that names a model decides; else every profile
    node_modes: tuple[NodeModes, ...] = ()  # the first that matches a node decides; else what its agent can
    _geometry_of: dict[GpuModel, tuple[str, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _allowed_on: dict[GpuModel, frozenset[str]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Computed once per model."""

    def pool(self, name: str) -> PoolConfig:
        return self.pools.get(name, self.default)

    def modes_of(self, node: NodeName) -> tuple[Mode, ...] | None:
        """The only modes that a node may serve; None when no rule names it."""
        return next((rule.modes for rule in self.node_modes if _pattern(rule.pattern).fullmatch(node)), None)

    def geometry_of(self, model: GpuModel) -> tuple[str, ...]:
        """The profiles of `model` that HAMi's keys may choose, by memory, then compute slices; () without MIG."""
        chosen = self._geometry_of.get(model)
        if chosen is None:
            chosen = tuple(name for name in chosen_by_memory(model, self.geometries) if self.allows(model, name))
            self._geometry_of[model] = chosen
        return chosen

    def choosable(self, model: GpuModel, claim: Claim) -> list[Profile]:
        """The profiles of `model` that may be chosen for a claim, by the operator and by the claim's own keys."""
        names = self.geometry_of(model) if claim.known_geometries else None
        profiles = (each for each in model.profiles if names is None or each.name in names)
        return [each for each in profiles if self.allows(model, each.name)]

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

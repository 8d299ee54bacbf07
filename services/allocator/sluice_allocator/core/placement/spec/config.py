"""The operator's configuration of placement as plain values; the defaults are those without any."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import Claim, Mode
from sluice.mig.model import GpuModel, Profile
from sluice.mig.model_names import is_named
from sluice.mig.profile_name import ProfileName, ProfileNameError

ROUNDED_FROM_GB = 20  # in the names of profiles at least this large, one GB more or less is rounding (at most 5 %)


class Geometry(msgspec.Struct, frozen=True):
    """`profiles` that may be chosen on models with one of `models` in their product name."""

    models: tuple[str, ...]
    profiles: tuple[str, ...]


KNOWN_GEOMETRIES = (
    Geometry(("A30",), ("1g.6gb", "2g.12gb", "4g.24gb")),
    Geometry(("A100-SXM4-40GB", "A100-40GB-PCIe", "A100-PCIE-40GB"), ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")),
    Geometry(("A100-SXM4-80GB", "A100-80GB-PCIe", "A100-PCIE-80GB"), ("1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb")),
    Geometry(("H100-PCIE-80GB", "H100-SXM5-80GB"), ("1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb")),
    Geometry(("H100-PCIE-94GB", "H100-SXM5-94GB"), ("1g.12gb", "2g.24gb", "3g.47gb", "7g.94gb")),
    Geometry(("H20", "H100 on GH200"), ("1g.12gb", "2g.24gb", "3g.48gb", "7g.96gb")),
    Geometry(("H200 NVL", "H200-SXM5"), ("1g.18gb", "2g.35gb", "3g.71gb", "7g.141gb")),
    Geometry(("B200",), ("1g.23gb", "2g.45gb", "3g.90gb", "7g.180gb")),
    Geometry(("RTX PRO 6000 Blackwell Server Edition",), ("1g.24gb", "2g.48gb", "4g.96gb")),
)
"""HAMi's own table, `knownMigGeometries` up to 2.9 and `migProfileAllowlist` since 2.10
(https://github.com/Project-HAMi/HAMi, charts/hami/templates/scheduler/device-configmap.yaml)."""


def chosen_by_memory(model: GpuModel, geometries: tuple[Geometry, ...]) -> tuple[str, ...]:
    """The names of the profiles of `model` that may be chosen, in the order of choice: memory, then compute slices. The
    first geometry that names the model and at least one of its profiles decides. Where none does: for each number of
    compute slices the plain profile with the least memory, as the table has for every model in it (except 4g beside 3g,
    which has no more memory and is never chosen)."""
    for geometry in geometries:
        if names_model(model, geometry.models):
            listed = [each for each in model.profiles if any(names_same(name, each.name) for name in geometry.profiles)]
            if listed:
                return tuple(profile.name for profile in sorted(listed, key=_by_memory))
    plain: dict[int, Profile] = {}
    for profile in sorted(model.profiles, key=_by_memory):
        if not _parsed(profile.name).attributes:
            plain.setdefault(profile.compute_slices, profile)
    return tuple(profile.name for profile in sorted(plain.values(), key=_by_memory))


def names_model(model: GpuModel, parts: tuple[str, ...]) -> bool:
    """Whether one of `parts` names the model, in whole words: HAMi's row for H20 also catches every H200."""
    return any(is_named(name, part) for part in parts for name in model.product_names)


def names_same(one: str, other: str) -> bool:
    """Whether two names mean the same profile of one model. The figure in a name is rounded by the driver: an A100-80GB
    has a 7g.79gb or a 7g.80gb. One GB of a small profile is no rounding: 1g.5gb and 1g.6gb are different."""
    if one == other:
        return True
    first, second = _parsed(one), _parsed(other)
    is_like = (first.slices, first.attributes) == (second.slices, second.attributes)
    least, most = sorted((first.memory_gb, second.memory_gb))
    return is_like and least >= ROUNDED_FROM_GB and most - least <= 1


@lru_cache(maxsize=4096)
def _parsed(name: str) -> ProfileName:
    """A profile's name taken apart; an unreadable name equals no other."""
    try:
        return ProfileName.parse(name)
    except ProfileNameError:
        return ProfileName(0, 0, 0, (name,))


def _by_memory(profile: Profile) -> tuple[int, int, str]:
    return (profile.memory_mib, profile.compute_slices, profile.name)


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
        known = ((self.gpu_memory, gpu_memory), (self.gpu_sms, gpu_sms), (self.cpu, cpu), (self.memory, memory))
        named = ((weight, resources[name]) for name, weight in self.resources.items() if name in resources)
        top, bottom, weights = 0, 1, 0  # exact, in whole numbers: one fraction over the product of the totals
        for weight, (used, total) in (*known, *named):
            if weight and total > 0:
                top = top * total + weight * min(max(used, 0), total) * bottom  # overcommitted counts as full
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
    """The user of containers that name none, by default what most images run as, root; None refuses shares for them."""
    geometries: tuple[Geometry, ...] = KNOWN_GEOMETRIES  # for HAMi's keys; the first that names a model decides
    allowed_profiles: tuple[AllowedProfiles, ...] = ()  # the first that names a model decides; else every profile
    node_modes: tuple[NodeModes, ...] = ()  # the first that matches a node decides; else what its agent can
    _geometry_of: dict[GpuModel, tuple[str, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _allowed_on: dict[GpuModel, frozenset[str]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Computed once per model."""

    def pool(self, name: str) -> PoolConfig:
        return self.pools.get(name, self.default)

    def modes_of(self, node: NodeName) -> tuple[Mode, ...] | None:
        return next((rule.modes for rule in self.node_modes if _pattern(rule.pattern).fullmatch(node)), None)

    def geometry_of(self, model: GpuModel) -> tuple[str, ...]:
        """The profiles of `model` that HAMi's keys may choose, by memory, then compute slices; () without MIG."""
        if model not in self._geometry_of:
            chosen = chosen_by_memory(model, self.geometries)
            self._geometry_of[model] = tuple(name for name in chosen if self.allows(model, name))
        return self._geometry_of[model]

    def choosable(self, model: GpuModel, claim: Claim) -> list[Profile]:
        """The profiles of `model` that may be chosen for a claim, by the operator and by the claim's own keys."""
        names = self.geometry_of(model) if claim.known_geometries else None
        profiles = (each for each in model.profiles if names is None or each.name in names)
        return [each for each in profiles if self.allows(model, each.name)]

    def allows(self, model: GpuModel, profile: str) -> bool:
        allowed = self._allowed_on.get(model)
        if allowed is None:
            rule = next((rule for rule in self.allowed_profiles if names_model(model, rule.models)), None)
            names = {each.name for each in model.profiles}
            if rule is not None:
                names = {name for name in names if any(names_same(listed, name) for listed in rule.profiles)}
            allowed = self._allowed_on[model] = frozenset(names)
        return profile in allowed


@lru_cache(maxsize=1024)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")))

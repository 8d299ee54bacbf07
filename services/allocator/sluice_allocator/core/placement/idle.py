"""
What the whole fleet could hold when empty: whether pods that start together ever can, by counting devices.

A reported shortage is certain; one that is not reported may exist, because nodes, their CPU and shares are not looked
at. Costs one look at each class of nodes per different request, never at single GPUs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from sluice.contracts.messages import Claim
from sluice_allocator.core.placement.asking import Asking
from sluice_allocator.core.placement.empty_gpus import most_exclusive, part_of_one
from sluice_allocator.core.placement.fleet import Fleet
from sluice_allocator.core.placement.gpus import Gpu
from sluice_allocator.core.placement.looking import PASSES, Look, look_for
from sluice_allocator.core.placement.wants import Want

Kind = tuple[int, str]
"""A kind of GPUs in a class of nodes, by its number."""
Held = tuple[tuple[Kind, int], ...]
"""The most devices on each kind of GPUs. Demands with the same kinds compete for them."""
COMPARED_MAX = 64
"""Most sets of kinds compared: more than any fleet has models."""


@dataclass(frozen=True, slots=True)
class TooFew:
    """So many pods take at least so many GPUs, or devices, and the fleet has only so many for them, free or not."""

    pods: int
    takes: int
    there: int
    of: Literal["GPUs", "devices"] = "GPUs"

    @property
    def short(self) -> int:
        """How many are missing."""
        return self.takes - self.there


@dataclass(slots=True)
class _Demand:
    """The demand on one set of GPUs: devices, and the least GPUs for them."""

    memory: Fraction = Fraction(0)
    compute: Fraction = Fraction(0)
    """Of whole GPUs, their memory slices and their compute slices."""
    devices: int = 0
    pods: dict[int, int] = field(default_factory=dict)
    """Number of pods, by the number of their request."""

    def add(self, claim: Claim, part: tuple[Fraction, Fraction], number: int, pods: int) -> None:
        """Add pods whose devices each take at least these parts of a GPU."""
        self.memory += claim.gpus * pods * part[0]
        self.compute += claim.gpus * pods * part[1]
        self.devices += claim.gpus * pods
        self.pods[number] = pods


def too_few_gpus(fleet: Fleet, together: Iterable[tuple[Asking, int]]) -> TooFew | None:
    """
    Whether even an idle fleet is too small for all of these together: each request, and its number of pods.

    None where that is uncertain. Unusable GPUs count too, since they come back. Returns the largest shortage, of the
    fewest pods.
    """
    there = _there(fleet)
    of_kinds: dict[frozenset[Kind], _Demand] = {}
    of_wants: dict[Held, _Demand] = {}
    for number, (asking, pods) in enumerate(together):
        look = look_for(fleet, asking, frozenset())
        for claim, want in zip(asking.claims, look.wants, strict=True):
            samples = _samples(look) if _is_counted(claim) else {}
            most = _most(look, want, samples)
            if most:
                parts = [part_of_one(want, samples[kind], substitute=asking.substitute) for kind in most]
                part = min(memory for memory, _ in parts), min(compute for _, compute in parts)
                for demand in (
                    of_kinds.setdefault(frozenset(most), _Demand()),
                    of_wants.setdefault(tuple(most.items()), _Demand()),
                ):
                    demand.add(claim, part, number, pods)
    found = [*_short_of_gpus(of_kinds, there), *_short_of_devices(of_wants, there)]
    return max(found, key=lambda each: (each.short, -each.pods), default=None)


def _there(fleet: Fleet) -> dict[Kind, int]:
    """The number of GPUs of each kind, usable or not."""
    counted: dict[Kind, int] = {}
    for group in fleet.stock.classes.values():
        for shape in group.shapes.values():
            for gpu, each in shape.gpus:
                kind = (group.number, gpu.kind)
                counted[kind] = counted.get(kind, 0) + each * shape.nodes
    return counted


def _short_of_gpus(demands: dict[frozenset[Kind], _Demand], there: Mapping[Kind, int]) -> Iterable[TooFew]:
    """For each set of kinds: what nothing else can serve has to fit there."""
    everything: frozenset[Kind] = frozenset().union(*demands)
    for kinds in dict.fromkeys([everything, *list(demands)[:COMPARED_MAX]]):
        inside = [demand for of, demand in demands.items() if of <= kinds]
        memory = sum((demand.memory for demand in inside), Fraction(0))
        gpus = max(memory, sum((demand.compute for demand in inside), Fraction(0)))
        pods = {number: many for demand in inside for number, many in demand.pods.items()}
        found = TooFew(sum(pods.values()), -(-gpus.numerator // gpus.denominator), sum(there[kind] for kind in kinds))
        if found.short > 0:
            yield found


def _short_of_devices(
    demands: dict[tuple[tuple[Kind, int], ...], _Demand], there: Mapping[Kind, int]
) -> Iterable[TooFew]:
    """For each want: its devices have to fit on all GPUs that could serve it."""
    for most, demand in demands.items():
        room = sum(there[kind] * held for kind, held in most)
        found = TooFew(sum(demand.pods.values()), demand.devices, room, "devices")
        if found.short > 0:
            yield found


def _is_counted(claim: Claim) -> bool:
    return claim.modes == ("exclusive",) and claim.shares_percent is None


def _samples(look: Look) -> dict[Kind, Gpu]:
    """A GPU of each kind on which the pod's exclusive devices could be."""
    return {
        (group.number, gpu.kind): gpu
        for group in look.fleet.stock.classes.values()
        if "exclusive" in group.modes and look.why_not(group) in {None, *PASSES}
        for shape in group.shapes.values()
        for gpu, _ in shape.gpus
    }


def _most(look: Look, want: Want, samples: Mapping[Kind, Gpu]) -> dict[Kind, int]:
    """The most devices for a want on each kind of GPU, of those that hold any."""
    found = {kind: most_exclusive(want, gpu, substitute=look.asking.substitute) for kind, gpu in samples.items()}
    return {kind: most for kind, most in found.items() if most}

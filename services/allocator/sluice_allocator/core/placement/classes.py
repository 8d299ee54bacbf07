"""
Groups nodes that are alike in everything a request may ask of a node besides room, with the shelves of their devices.

Only labels that requests have selected by tell classes apart: using every label (some differ on every node) would
make every node a class of its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sluice.contracts.kube.selectors import selector_matches
from sluice.contracts.kube.taints import untolerated
from sluice.contracts.messages import HostNeeds, Mode, Share, Taint
from sluice.contracts.reasons import WaitReason
from sluice.mig.transition_table import State
from sluice_allocator.core.placement.capacity import NodeShape, ShapeKey
from sluice_allocator.core.placement.gpus import Gpu
from sluice_allocator.core.placement.homes import Home, HomeSize, TrustDomain, level_needed
from sluice_allocator.core.placement.hosts import Node
from sluice_allocator.core.placement.rules import PoolRules
from sluice_allocator.core.placement.shelf import Ladder, Shelf
from sluice_allocator.core.placement.taints import PASSING, meaning_of

ClassKey = tuple[object, ...]
HomesKey = tuple[TrustDomain, str, str, str | None]
"""Trust domain, mode, kind of GPU, profile of the home (None for a whole GPU)."""


@dataclass(slots=True, eq=False)
class NodeClass:
    """One class of nodes, and where their devices are found."""

    number: int
    key: ClassKey
    words: str
    """The class in words for users; empty for nodes with nothing special."""
    pool: PoolRules
    modes: tuple[Mode, ...]
    time_quota: bool
    hands_over: bool
    """Whether their kubelets hand devices over by ResourceClaim."""
    labels: Mapping[str, str]
    """Labels that requests have selected by."""
    taints: tuple[Taint, ...]
    nodes: dict[int, Node] = field(default_factory=dict)
    """Members with usable GPUs, by number."""
    shapes: dict[ShapeKey, NodeShape] = field(default_factory=dict)
    """All members, by their GPUs: what they could serve when empty."""
    samples: dict[str, Gpu] = field(default_factory=dict)
    """One GPU of each kind that was ever here; all of its kind can do the same."""
    states: dict[str, dict[State, Shelf]] = field(default_factory=dict)
    """Usable GPUs with MIG, by kind and layout state; no shelf is empty."""
    whole: dict[str, Shelf] = field(default_factory=dict)
    """Idle GPUs without MIG, by kind."""
    homes: dict[HomesKey, Ladder] = field(default_factory=dict)
    """Homes of shares, by what they have left (`rung_of`)."""
    booked_whole: dict[str, dict[Gpu, None]] = field(default_factory=dict)
    """Usable GPUs without MIG that are in use, by kind; those in use for longest first."""
    homes_of: dict[tuple[TrustDomain, str], dict[HomesKey, None]] = field(default_factory=dict)
    """The keys of `homes` by trust domain and mode."""
    home_sizes: dict[tuple[str, str | None], HomeSize] = field(default_factory=dict)
    """The size of homes, by kind of GPU and profile."""
    home_count: dict[tuple[str, str | None], int] = field(default_factory=dict)
    """How many homes exist, of any tenant, by kind of GPU and profile."""

    def in_use(self, kind: str) -> int:
        """How many GPUs of a kind are usable. Walks over layout states, never over GPUs."""
        idle = self.whole.get(kind)
        with_mig = sum(shelf.devices for shelf in self.states.get(kind, {}).values())
        return with_mig + (idle.devices if idle is not None else 0) + len(self.booked_whole.get(kind, ()))

    def why_not(self, needs: HostNeeds) -> WaitReason | None:
        """
        Why a pod with these needs cannot be on such nodes; None when it can. Labels of single nodes aside.

        A taint set on purpose comes before taints that pass by themselves.
        """
        if not self.taints:
            return None
        found = [meaning_of(taint) for taint in untolerated(self.taints, needs.tolerations)]
        return next((why for why in found if why not in PASSING), found[0] if found else None)


MEMORY_PARTS = 16
"""A rung holds the memory of a home in sixteenths where its level is of something else."""


def rung_of(home: Home) -> int:
    """
    By what is left in a home: in `mps` mode its free memory in MiB, else its level and its memory in sixteenths.

    Homes on one rung are alike in what an `mps` share needs; a fractional share may still find time or memory short.
    """
    if home.mode == "mps":
        return 0 if home.full else home.free_memory_mib
    return home.level * (MEMORY_PARTS + 1) + memory_part(home.free_memory_mib, home.size)


def rungs_for(ladder: Ladder, share: Share, size: HomeSize) -> Iterator[int]:
    """The rungs on which a home of this size may have room for the share, fullest first."""
    if share.mode == "mps":
        yield from ladder.at_least(share.memory_mib)
        return
    needed = memory_part(share.memory_mib, size)
    for rung in ladder.at_least(level_needed(share, size) * (MEMORY_PARTS + 1)):
        if rung % (MEMORY_PARTS + 1) >= needed:
            yield rung


def memory_part(memory_mib: int, size: HomeSize) -> int:
    """A home's memory in sixteenths, rounded up; more than all of it (overcommit) counts as all."""
    return min(MEMORY_PARTS, -(-MEMORY_PARTS * max(0, memory_mib) // max(1, size.memory_mib)))


# -- matching -----------------------------------------------------------------------------------------------------


def selects(needs: HostNeeds, labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels is among those that the pod selects."""
    if any(labels.get(key) != value for key, value in needs.node_selector.items()):
        return False
    return not needs.affinity or any(selector_matches(term, labels) for term in needs.affinity if term)


def keys_of(needs: HostNeeds) -> list[str]:
    """The labels by which a pod, or one of its volumes, selects nodes."""
    terms = (*needs.affinity, *(term for terms in needs.volumes for term in terms))
    return list(dict.fromkeys([*needs.node_selector, *(each.key for term in terms for each in term)]))

"""
The interface of a policy: how nodes are ordered, and how a free device is ranked.

A policy orders and never decides whether something fits, so no policy can give a slice where there is no room.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

NodeOrder = Literal["any", "first", "fullest", "emptiest"]
"""`any`: the devices decide, ties by the node known first. `first`: the first node that fits. `fullest`, `emptiest`:
by the node's weighted usage before placing (`Weights.node_usage`)."""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device that could serve a claim, as it is before placing."""

    used_permille: int
    """How much of it is not free, 0 to 1000: of a GPU's memory slices; of a home, what its shares are counted by."""
    free_slices: int
    """Free memory slices: of two devices used alike, the smaller one has fewer."""
    rank: tuple[int, ...]
    """How much the place would fragment the device, smallest is best: what ends every tie."""
    numa: int | None
    order: int
    """Of the device on its node: the very last tie."""


Key = Callable[[DeviceUse], tuple[int, ...]]
"""Ranks a device; the smallest is taken."""


@dataclass(frozen=True, slots=True)
class GpuRule:
    """One policy's rule for GPUs: how to rank them (`by`; () is no opinion), and which may be taken."""

    by: Key
    idle_only: bool = False
    lowest_start: bool = False
    linked: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """
    What a search follows.

    `idle_only`: only GPUs on which nothing is booked. `lowest_start`: at the lowest free start of a GPU instead of
    the one that keeps most possible. `linked`: the set of GPUs that are closest to each other (`topology.closest`).
    """

    name: str
    nodes: NodeOrder
    key: Key
    idle_only: bool = False
    lowest_start: bool = False
    linked: bool = False
    packs: bool = field(init=False)
    """Whether it does not prefer idle GPUs over full ones: then shares fill existing homes."""
    plain: bool = field(init=False)
    """Whether it has no opinion on devices, so that only fragmentation counts."""

    def __post_init__(self) -> None:
        """Precompute what is read for every share."""
        idle, full = (self.key(DeviceUse(used, free, (), None, 0)) for used, free in ((0, 8), (1000, 0)))
        object.__setattr__(self, "packs", full <= idle)
        object.__setattr__(self, "plain", idle == full == (0,))

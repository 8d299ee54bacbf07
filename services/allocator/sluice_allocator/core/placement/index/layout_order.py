"""The order in which the layout states of one kind of GPU are tried for a profile, computed once. Every state ever seen
is on the list, and a decision walks it until it meets a state that some GPU is in. The list is as long as a model has
states (some hundreds), however many GPUs there are."""

import bisect
from dataclasses import dataclass, field

from sluice.mig.model import Profile
from sluice.mig.transition_table import PlacementChoice, State
from sluice_allocator.core.placement.nodes.gpu import Gpu
from sluice_allocator.core.placement.spec.policies import DeviceUse, Policy

LayoutChoice = tuple[tuple[int, ...], State, PlacementChoice]  # rank (smallest is best), state, and where it would go


@dataclass(slots=True)
class _Order:
    known: int = 0  # how many of the seen states were considered
    preferences: list[LayoutChoice] = field(default_factory=list)


class LayoutOrders:
    """The lists of all kinds, profiles and policies that were asked for."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[State, None]] = {}
        self._orders: dict[tuple[str, str, str], _Order] = {}

    def saw(self, gpu: Gpu) -> None:
        self._seen.setdefault(gpu.kind, {})[gpu.state] = None

    def of(self, gpu: Gpu, profile: Profile, policy: Policy) -> list[LayoutChoice]:
        """The states in which GPUs of this kind have a place for the profile, best first."""
        key = (gpu.kind, profile.name, policy.name)
        order = self._orders.get(key)
        if order is None:
            order = self._orders[key] = _Order()
        seen = self._seen[gpu.kind]
        if order.known < len(seen):
            for state in list(seen)[order.known :]:
                idle = state == gpu.table.empty
                layout_choice = layout_choice_for(gpu, state, profile, policy) if idle or not policy.idle_only else None
                if layout_choice is not None:
                    bisect.insort(order.preferences, layout_choice, key=lambda each: each[:2])
            order.known = len(seen)
        return order.preferences


def layout_choice_for(
    gpu: Gpu, state: State, profile: Profile, policy: Policy, *, alone: bool = False
) -> LayoutChoice | None:
    """The rank of a GPU of this kind in `state` for one more instance; None when it has no place for it. `alone`: this
    very GPU is meant, so its position on its node counts too."""
    choices = gpu.table.choices(state, profile.name)
    if not choices:
        return None
    choice = min(choices, key=lambda each: each.start) if policy.lowest_start else choices[0]
    free = gpu.table.free_slices(state)
    slices = max(1, gpu.model.memory_slices)
    rank = () if policy.lowest_start else choice.rank
    numa, order = (gpu.report.numa_node, gpu.report.index) if alone else (None, 0)
    use = DeviceUse(1000 * (slices - free) // slices, free, rank, numa, order)
    return policy.key(use), state, choice

"""
Finds one empty device: a place for a MIG instance, or a whole GPU; given exclusively, or made a home.

Shelves are walked in order of preference until one has a node with room. There is one per layout state, however many
GPUs are on it, so the cost does not grow with the fleet.
"""

import msgspec

from sluice.contracts.messages import DeviceGrant, Share
from sluice.mig.model import Profile
from sluice_allocator.core.placement.classes import NodeClass
from sluice_allocator.core.placement.gpus import Gpu, HomeKey
from sluice_allocator.core.placement.hosts import Node
from sluice_allocator.core.placement.looking import Look
from sluice_allocator.core.placement.policies import Policy
from sluice_allocator.core.placement.ranking import (
    full_profile,
    nearness,
    node_key,
    percent_of,
    tail,
    whole_span,
    whole_use,
)
from sluice_allocator.core.placement.shelf import Shelf
from sluice_allocator.core.placement.wants import Want


class Found(msgspec.Struct, frozen=True):
    """One device that serves the claim. `key` ranks it among those found under the same policy; smallest is best."""

    key: tuple[int, ...]
    policy: Policy
    node: Node
    gpu: Gpu
    span: HomeKey
    share: Share | None = None

    def grant(self, container: str) -> DeviceGrant:
        """The device as it is booked."""
        profile, start, size = self.span
        return DeviceGrant(
            container=container, gpu=self.gpu.report.uuid, profile=profile, start=start, size=size, share=self.share
        )


def better(found: Found | None, best: Found | None) -> Found | None:
    """The better of two, whatever the order in which they were found."""
    if found is None or best is None:
        return found or best
    if found.policy is best.policy:
        return found if found.key < best.key else best
    return found if (found.key[:2], found.node.number) < (best.key[:2], best.node.number) else best


def find_whole(look: Look, want: Want, group: NodeClass, kind: str, share: Share | None = None) -> Found | None:
    """An idle GPU without MIG: to be given whole, or to become the home of a share."""
    shelf = group.whole.get(kind)
    if not shelf:
        return None
    policy = look.policy(group)
    wealth = look.wealth(percent_of(group.samples[kind], share) if share is not None else 100)
    found = shelf.find(look.need, policy.nodes, _GpuOn(look, want, shelf), wealth)
    if found is None:
        return None
    node, gpu = found
    near = nearness(policy, node, wealth)
    rank = (near, gpu.memory_mib, *node_key(policy, node), *policy.key(whole_use(gpu)), *tail(wealth, node, gpu))
    return Found(rank, policy, node, gpu, whole_span(gpu), share)


def find_instance(  # noqa: PLR0917  # one step of two searches
    look: Look,
    want: Want,
    group: NodeClass,
    sample: Gpu,
    profile: Profile,
    best: Found | None,
    share: Share | None = None,
) -> Found | None:
    """A place for a MIG instance: the first state on the list in which some GPU with room is."""
    states = group.states.get(sample.kind)
    if not states:
        return None
    policy = look.policy(group)
    any_node = policy.nodes == "any"
    wealth = look.wealth(100 * profile.memory_mib // max(1, sample.memory_mib))
    answer: Found | None = None
    for preference in look.fleet.stock.preferences.of(sample, profile, policy):
        shelf = states.get(preference[1])
        if shelf is None:
            continue
        rank, _, choice = preference
        if any_node and best is not None and best.policy is policy and (0, profile.memory_mib, *rank) >= best.key:
            break
        found = shelf.find(look.need, policy.nodes, _GpuOn(look, want, shelf), wealth)
        if found is None:
            continue
        node, gpu = found
        near = nearness(policy, node, wealth) if want.whole else 0  # a requested size goes before it
        size = _memory_of_home(sample, profile, share)
        key = (near, size, *node_key(policy, node), *rank, *tail(wealth, node, gpu))
        answer = better(Found(key, policy, node, gpu, (profile.name, choice.start, choice.size), share), answer)
        if any_node:
            break
    return answer


def _memory_of_home(gpu: Gpu, profile: Profile, share: Share | None) -> int:
    """The memory of an instance; as the home of a share, one that is all of its GPU comes after a GPU without MIG."""
    full = share is not None and profile.name == full_profile(gpu)
    return max(profile.memory_mib, gpu.report.memory_mib) + 1 if full else profile.memory_mib


class _GpuOn:
    """Finds the first GPU of a node that is on the shelf and may serve the claim."""

    __slots__ = ("_look", "_shelf", "_want")

    def __init__(self, look: Look, want: Want, shelf: Shelf) -> None:
        self._look, self._want, self._shelf = look, want, shelf

    def __call__(self, node: Node) -> Gpu | None:
        if not self._look.admits(node):
            return None
        for gpu in node.gpus:
            if gpu.shelf is self._shelf and self._look.may_use(gpu, self._want):
                return gpu
        return None

"""
Finds one share for one claim: in a home of its trust domain with room, else in a new one.

Homes are on shelves by what they have left, so the best one is found without a look at the others.
"""

from sluice.contracts.messages import Share
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.placement.classes import HomesKey, NodeClass, rungs_for
from sluice_allocator.core.placement.gpus import Gpu, HomeOnGpu
from sluice_allocator.core.placement.homes import Home
from sluice_allocator.core.placement.hosts import Node
from sluice_allocator.core.placement.looking import Look
from sluice_allocator.core.placement.one_instance import Found, better, find_instance, find_whole
from sluice_allocator.core.placement.policies import DeviceUse
from sluice_allocator.core.placement.ranking import full_profile, node_key, percent_of, tail
from sluice_allocator.core.placement.shelf import GivenUp, Shelf
from sluice_allocator.core.placement.wants import Want

HOMES_TRIED_MAX = 64
"""Most homes tried on one shelf: a high enough level may still lack time or memory."""


def find_share(look: Look, want: Want, mode: str) -> Found | None:
    """In an existing home; in a new one where none has room, or where the policy prefers an idle GPU."""
    there = new = None
    groups = [group for group in look.groups() if mode in group.modes]
    for group in groups:
        policy = look.policy(group)
        if policy.idle_only:
            continue
        for key in group.homes_of.get((want.domain, mode), ()):
            sample = group.samples[key[2]]
            share = want.share_on(sample, mode)
            if not isinstance(share, WaitReason):
                there = better(_in_home(look, want, group, key, share), there)
    if there is not None and there.policy.packs:
        return there
    for group in groups:
        for sample in group.samples.values():
            share = want.share_on(sample, mode)
            if not isinstance(share, WaitReason):
                new = better(_in_new_home(look, want, group, sample, share), new)
    if there is None or new is None:
        return there or new
    return new if new.key[2:] < there.key[2:] else there


def _in_home(look: Look, want: Want, group: NodeClass, key: HomesKey, share: Share) -> Found | None:
    """An existing home of the trust domain: the one with least to spare, unless the policy says otherwise."""
    _, _, kind, profile = key
    sample, ladder, policy = group.samples[kind], group.homes[key], look.policy(group)
    size = group.home_sizes[kind, profile]
    wealth = look.wealth(percent_of(sample, share))
    answer: Found | None = None
    for rung in rungs_for(ladder, share, size):
        shelf = ladder.rungs[rung]
        accept = _HomeOn(look, want, shelf, share)
        found: tuple[Node, HomeOnGpu | GivenUp] | None = shelf.find(look.need, policy.nodes, accept, wealth)
        node, at_home = found if found is not None else (None, None)
        if node is None or at_home is None or isinstance(at_home, GivenUp):
            continue
        ahead: tuple[int, ...] = (rung,)
        if not policy.plain:
            used = 1000 - 10 * at_home.home.level
            report = at_home.gpu.report
            ahead = policy.key(DeviceUse(used, 0, (rung,), report.numa_node, report.index))[:-1]
        rank = (0, 0, *node_key(policy, node), *ahead, *tail(wealth, node, at_home.gpu))
        answer = better(Found(rank, policy, node, at_home.gpu, at_home.key, share), answer)
        if policy.nodes == "any" and policy.packs:
            break
    return answer


class _HomeOn:
    """Finds a home on a node that is on the shelf and has room for the share."""

    __slots__ = ("_left", "_look", "_share", "_shelf", "_want")

    def __init__(self, look: Look, want: Want, shelf: Shelf, share: Share) -> None:
        self._look, self._want, self._shelf, self._share = look, want, shelf, share
        self._left = HOMES_TRIED_MAX

    def __call__(self, node: Node) -> HomeOnGpu | GivenUp | None:
        if not self._look.admits(node):
            return None
        for gpu in node.gpus:
            for at_home in gpu.homes.values():
                if at_home.shelf is self._shelf and self._look.may_use(gpu, self._want):
                    if at_home.home.why_not(self._share) is None:
                        return at_home
                    self._left -= 1
        return GivenUp() if self._left <= 0 else None


def _in_new_home(look: Look, want: Want, group: NodeClass, sample: Gpu, share: Share) -> Found | None:
    """A new home for the share: a whole GPU, or an instance of the profile that makes the better home."""
    if not sample.mig:
        size = look.fleet.households.size(sample, None)
        if Home(size, share.mode, want.domain).why_not(share) is not None:
            return None
        return find_whole(look, want, group, sample.kind, share)
    for name in want.home_profiles(sample, share, group.pool.overcommit_percent):
        profile = sample.model.profile(name)
        found = find_instance(look, want, group, sample, profile, None, share) if profile is not None else None
        if found is not None:
            return found
    return None


# -- a part of one GPU --------------------------------------------------------------------------------------------


def find_part(look: Look, want: Want, percent: int) -> Found | None:
    """A percentage of one GPU: one with enough left, else an idle one."""
    if percent > 100 or percent % look.fleet.rules.shares_quantum_percent:
        return None
    best: Found | None = None
    groups = [group for group in look.groups() if "fractional" in group.modes]
    for group in groups:
        for key in group.homes_of.get((want.domain, "fractional"), ()):
            sample = group.samples[key[2]]
            if key[3] == full_profile(sample) and want.admits(sample) is None and not look.policy(group).idle_only:
                best = better(_in_home(look, want, group, key, want.part_of(sample, percent)), best)
    if best is not None:
        return best
    for group in groups:
        for sample in group.samples.values():
            if want.admits(sample) is None:
                best = better(_on_idle(look, want, group, sample, want.part_of(sample, percent)), best)
    return best


def _on_idle(look: Look, want: Want, group: NodeClass, sample: Gpu, share: Share) -> Found | None:
    """An idle GPU, to become a home that is all of it."""
    if not sample.mig:
        return find_whole(look, want, group, sample.kind, share)
    largest = sample.model.profile(full_profile(sample) or "")
    return find_instance(look, want, group, sample, largest, None, share) if largest is not None else None

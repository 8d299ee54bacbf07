"""A trial copy of a node with the devices placed so far, and the ways to place one more."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import msgspec

from sluice.contracts.messages import Share
from sluice.contracts.reasons import WaitReason
from sluice.mig.model import Profile
from sluice.mig.transition_table import State
from sluice_allocator.core.placement.index.layout_order import layout_choice_for
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec, WholeGpu
from sluice_allocator.core.placement.nodes.gpu import Gpu, Span
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.core.placement.nodes.shared_device import SharedDevice
from sluice_allocator.core.placement.search.context import (
    SearchContext,
    home_use,
    instances_fit,
    is_exclusive,
    whole_use,
)
from sluice_allocator.core.placement.spec.policies import Policy


class DeviceUnit(msgspec.Struct, frozen=True):
    """One device to place, or one amount over several devices."""

    claim: int
    spec: DeviceSpec
    split: bool = False


class DeviceOption(msgspec.Struct, frozen=True):
    """One way to serve a unit on one GPU."""

    key: tuple[int, ...]
    gpu: Gpu
    span: Span
    share: Share | None = None
    state_after: State | None = None
    home: SharedDevice | None = None  # the home it joins, existing or on trial; None for a new one, or no share


@dataclass(slots=True)
class TrialNode:
    """A node with the devices placed so far."""

    context: SearchContext
    node: Node
    policy: Policy
    on_numa: dict[int, frozenset[Gpu]]  # per claim that must stay on one NUMA node, the GPUs of that node
    states: dict[Gpu, State] = field(default_factory=dict)
    taken: dict[Gpu, None] = field(default_factory=dict)  # GPUs without MIG that are given whole, or became a home
    homes: dict[tuple[Gpu, Span], SharedDevice] = field(default_factory=dict)
    """Homes made on trial, and copies of homes with trial tenants."""
    placed: list[tuple[DeviceUnit, DeviceOption]] = field(default_factory=list)
    preferred: dict[int, frozenset[Gpu]] = field(default_factory=dict)  # the best linked GPUs, if the policy wants them
    evenly: bool = False  # whether the emptiest GPU is best, so that each gets some of every size
    steps: int = 0

    def state(self, gpu: Gpu) -> State:
        return self.states.get(gpu, gpu.state)

    @property
    def told_apart(self) -> bool:
        """Whether GPUs in the same state still differ: by links, NUMA nodes, a claim's list or homes on one GPU."""
        claims, together = self.context.request.claims, self.context.together
        if self.preferred or self.on_numa or any(spec.picky for spec in self.context.specs):
            return True
        return bool(together) and not all(is_exclusive(claims[number]) for number in together)

    def homes_on(self, gpu: Gpu) -> dict[Span, SharedDevice]:
        return gpu.open_homes() | {span: home for (other, span), home in self.homes.items() if other is gpu}

    def instances_left(self, members: tuple[int, ...], placing: int | None = None) -> list[tuple[DeviceSpec, int]]:
        """Of a group on one GPU, how many devices of each claim are missing, without one of the claim `placing`."""
        there = [unit.claim for unit, _ in self.placed]
        if placing is not None:
            there.append(placing)
        specs, claims = self.context.specs, self.context.request.claims
        return [(specs[number], claims[number].gpus - there.count(number)) for number in members]

    def is_free(self, gpu: Gpu) -> bool:
        return gpu.free_whole and gpu not in self.taken


def options(trial: TrialNode, unit: DeviceUnit) -> Iterator[DeviceOption]:
    """Every way to place the unit on this node. Modes come in their order; `auto` takes what is not snug last."""
    claim = unit.spec.claim
    alike: set[tuple[object, ...]] = set()
    allowed = _allowed(trial, unit) if trial.context.together else trial.on_numa.get(unit.claim)
    placed = next((option for other, option in trial.placed if other.claim == unit.claim), None)
    begun = None if placed is None else placed.share.mode if placed.share is not None else "exclusive"
    for gpu in trial.node.gpus:
        if not trial.context.may_use(gpu, unit.spec) or (allowed is not None and gpu not in allowed):
            continue
        for turn, mode in enumerate(claim.modes):
            if mode not in trial.node.modes or begun not in {None, mode}:
                continue  # all devices of a claim have one mode
            if mode != "exclusive":
                yield from _shared(trial, unit, gpu, mode, turn)
                continue
            late = claim.snug and not unit.spec.is_snug(gpu)
            same = (gpu.kind, trial.state(gpu), trial.is_free(gpu))
            if (late and len(claim.modes) == 1) or (same in alike and not trial.told_apart):
                continue
            alike.add(same)
            yield from _exclusive(trial, unit, gpu, len(claim.modes) if late else turn)


def _allowed(trial: TrialNode, unit: DeviceUnit) -> Collection[Gpu] | None:
    """The only GPUs for a claim: of one NUMA node, or that of its group, or those with room for it; None: any."""
    allowed = trial.on_numa.get(unit.claim)
    members = trial.context.together.get(unit.claim)
    if members is None:
        return allowed
    begun = next((option.gpu for other, option in trial.placed if other.claim in members), None)
    if begun is not None:
        return (begun,) if allowed is None or begun in allowed else ()
    missing = trial.instances_left(members)
    gpus = trial.node.gpus if allowed is None else [gpu for gpu in trial.node.gpus if gpu in allowed]
    return [gpu for gpu in gpus if instances_fit(gpu, trial.state(gpu), missing)]


def _exclusive(trial: TrialNode, unit: DeviceUnit, gpu: Gpu, turn: int) -> Iterator[DeviceOption]:
    shape = unit.spec.shape_on(gpu)
    far = int(gpu not in trial.preferred.get(unit.claim, (gpu,)))
    if isinstance(shape, Profile):
        yield from _instances(trial, unit, gpu, shape, (turn, far))
    elif isinstance(shape, WholeGpu) and trial.is_free(gpu):
        key = (turn, 0, far, gpu.memory_mib, *trial.policy.key(whole_use(gpu)))
        yield DeviceOption(key, gpu, gpu.whole_span)


def _instances(
    trial: TrialNode, unit: DeviceUnit, gpu: Gpu, profile: Profile, before: tuple[int, ...]
) -> Iterator[DeviceOption]:
    state = trial.state(gpu)
    if trial.policy.idle_only and gpu.state != gpu.table.empty:
        return  # idle before this pod: its own devices do not exclude each other
    layout_choice = layout_choice_for(gpu, state, profile, trial.policy, alone=True)
    if layout_choice is None:
        return
    rank, _, best = layout_choice
    members = trial.context.together.get(unit.claim) if trial.context.together else None
    missing = trial.instances_left(members, unit.claim) if members is not None else None
    for choice in gpu.table.choices(state, profile.name):
        if missing is not None and not instances_fit(gpu, choice.state_after, missing):
            continue  # no room beside it for the rest that must be on this GPU
        second = int(choice.start != best.start)
        fullness = -gpu.table.free_slices(state) if trial.evenly else 0
        key = (before[0], second, *before[1:], fullness, profile.memory_mib, *rank, gpu.report.index, -choice.start)
        yield DeviceOption(key, gpu, (profile.name, choice.start, choice.size), None, choice.state_after)


def _shared(trial: TrialNode, unit: DeviceUnit, gpu: Gpu, mode: str, turn: int) -> Iterator[DeviceOption]:
    if any(other.claim == unit.claim and option.gpu is gpu for other, option in trial.placed):
        return
    share = unit.spec.share_on(gpu, mode)
    if isinstance(share, WaitReason):
        return
    for span, home in trial.homes_on(gpu).items() if not trial.policy.idle_only else ():
        if (home.domain, home.mode) == (unit.spec.domain, mode) and home.why_not(share) is None:
            key = (turn, 0, 0, 0, *trial.policy.key(home_use(gpu, home, home.level)))
            yield DeviceOption(key, gpu, span, share, None, home)
    size = trial.context.cluster.tenancy.size(gpu, None)
    if not gpu.mig:
        if trial.is_free(gpu) and size.fits_alone(share):
            fresh = int(trial.policy.packs)  # where the policy likes idle GPUs better they come first by its key
            key = (turn, 0, fresh, 0, *trial.policy.key(whole_use(gpu)), gpu.memory_mib)
            yield DeviceOption(key, gpu, gpu.whole_span, share)
        return
    for place, name in enumerate(unit.spec.home_profiles(gpu, share, size.overcommit_percent)):
        profile = gpu.model.profile(name)
        if profile is not None:
            for option in _instances(trial, unit, gpu, profile, (turn, 1, place)):
                yield DeviceOption(option.key, gpu, option.span, share, option.state_after)

"""A trial copy of a node with the devices placed so far, and the ways to place one more."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from sluice.contracts.messages import Share
from sluice.contracts.reasons import WaitReason
from sluice.mig.model import Profile
from sluice.mig.transition_table import State
from sluice_allocator.core.placement.gpus import Gpu, HomeKey
from sluice_allocator.core.placement.homes import Home
from sluice_allocator.core.placement.hosts import Node
from sluice_allocator.core.placement.looking import Look
from sluice_allocator.core.placement.policies import DeviceUse, Policy
from sluice_allocator.core.placement.preferences import preference_for
from sluice_allocator.core.placement.ranking import whole_span, whole_use
from sluice_allocator.core.placement.same_gpu import instances_fit, is_exclusive
from sluice_allocator.core.placement.wants import Want, WholeGpu


@dataclass(frozen=True, slots=True)
class Unit:
    """One device to place, or one amount over several devices."""

    claim: int
    want: Want
    split: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """One way to serve a unit on one GPU."""

    key: tuple[int, ...]
    gpu: Gpu
    span: HomeKey
    share: Share | None = None
    state_after: State | None = None
    home: Home | None = None
    """The home it joins, existing or made on trial; None for a new one, or when it is no share."""


@dataclass(slots=True)
class TrialNode:
    """A node with the devices placed so far."""

    look: Look
    node: Node
    policy: Policy
    on_numa: dict[int, frozenset[Gpu]]
    """Per claim that must stay on one NUMA node, the GPUs of that node."""
    states: dict[Gpu, State] = field(default_factory=dict)
    taken: dict[Gpu, None] = field(default_factory=dict)
    """GPUs without MIG that are given whole, or became a home."""
    homes: dict[tuple[Gpu, HomeKey], Home] = field(default_factory=dict)
    """Homes made on trial, and copies of homes with trial tenants."""
    placed: list[tuple[Unit, Option]] = field(default_factory=list)
    preferred: dict[int, frozenset[Gpu]] = field(default_factory=dict)
    """Per claim, the best linked GPUs, where the policy wants them."""
    evenly: bool = False
    """Whether the emptiest GPU is best whatever the policy, so that each GPU gets some of every size."""
    steps: int = 0

    def state(self, gpu: Gpu) -> State:
        """The layout of a GPU with MIG."""
        return self.states.get(gpu, gpu.state)

    @property
    def told_apart(self) -> bool:
        """Whether GPUs in the same state still differ: by links, NUMA nodes, a claim's list or homes on one GPU."""
        look = self.look
        if self.preferred or self.on_numa or any(want.picky for want in look.wants):
            return True
        return bool(look.together) and not all(is_exclusive(look.asking.claims[number]) for number in look.together)

    def homes_on(self, gpu: Gpu) -> dict[HomeKey, Home]:
        """The homes of a GPU that may take tenants, with trial tenants."""
        there = {each.key: each.home for each in gpu.homes.values() if gpu.stands(each.key)}
        for (other, span), home in self.homes.items():
            if other is gpu:
                there[span] = home
        return there

    def instances_left(self, members: tuple[int, ...], placing: int | None = None) -> list[tuple[Want, int]]:
        """Of a group on one GPU, how many devices of each claim are missing, without one of the claim `placing`."""
        there = [unit.claim for unit, _ in self.placed]
        if placing is not None:
            there.append(placing)
        look = self.look
        return [(look.wants[number], look.asking.claims[number].gpus - there.count(number)) for number in members]

    def is_free(self, gpu: Gpu) -> bool:
        """Whether a GPU without MIG is empty."""
        return gpu.free_whole and gpu not in self.taken


# -- options ------------------------------------------------------------------------------------------------------


def options(attempt: TrialNode, unit: Unit) -> Iterator[Option]:
    """Every way to place the unit on this node. Modes come in their order; `auto` takes what is not snug last."""
    claim = unit.want.claim
    alike: set[tuple[object, ...]] = set()
    allowed = _allowed(attempt, unit) if attempt.look.together else attempt.on_numa.get(unit.claim)
    begun = next((_mode_of(option) for other, option in attempt.placed if other.claim == unit.claim), None)
    for gpu in attempt.node.gpus:
        if not attempt.look.may_use(gpu, unit.want) or (allowed is not None and gpu not in allowed):
            continue
        for turn, mode in enumerate(claim.modes):
            if mode not in attempt.node.modes or begun not in {None, mode}:
                continue  # all devices of a claim have one mode
            if mode != "exclusive":
                yield from _shared(attempt, unit, gpu, mode, turn)
                continue
            late = claim.snug and not unit.want.is_snug(gpu)
            same = (gpu.kind, attempt.state(gpu), attempt.is_free(gpu))
            if (late and len(claim.modes) == 1) or (same in alike and not attempt.told_apart):
                continue
            alike.add(same)
            yield from _exclusive(attempt, unit, gpu, len(claim.modes) if late else turn)


def _allowed(attempt: TrialNode, unit: Unit) -> Collection[Gpu] | None:
    """The only GPUs for a claim: of one NUMA node, or that of its group, or those with room for it; None: any."""
    allowed = attempt.on_numa.get(unit.claim)
    members = attempt.look.together.get(unit.claim)
    if members is None:
        return allowed
    begun = next((option.gpu for other, option in attempt.placed if other.claim in members), None)
    if begun is not None:
        return (begun,) if allowed is None or begun in allowed else ()
    missing = attempt.instances_left(members)
    gpus = attempt.node.gpus if allowed is None else [gpu for gpu in attempt.node.gpus if gpu in allowed]
    return [gpu for gpu in gpus if instances_fit(gpu, attempt.state(gpu), missing)]


def _mode_of(option: Option) -> str:
    return option.share.mode if option.share is not None else "exclusive"


def _exclusive(attempt: TrialNode, unit: Unit, gpu: Gpu, turn: int) -> Iterator[Option]:
    shape = unit.want.shape_on(gpu)
    if isinstance(shape, WaitReason):
        return
    far = int(gpu not in attempt.preferred.get(unit.claim, (gpu,)))
    if isinstance(shape, WholeGpu):
        if attempt.is_free(gpu):
            key = (turn, 0, far, gpu.memory_mib, *attempt.policy.key(whole_use(gpu)))
            yield Option(key, gpu, whole_span(gpu))
        return
    yield from _instances(attempt, unit, gpu, shape, (turn, far))


def _instances(attempt: TrialNode, unit: Unit, gpu: Gpu, profile: Profile, before: tuple[int, ...]) -> Iterator[Option]:
    """The best start first; the others only if the rest does not fit then."""
    state = attempt.state(gpu)
    if attempt.policy.idle_only and gpu.state != gpu.table.empty:
        return  # idle before this pod: its own devices do not exclude each other
    preference = preference_for(gpu, state, profile, attempt.policy, alone=True)
    if preference is None:
        return
    rank, _, best = preference
    members = attempt.look.together.get(unit.claim) if attempt.look.together else None
    missing = attempt.instances_left(members, unit.claim) if members is not None else None
    for choice in gpu.table.choices(state, profile.name):
        if missing is not None and not instances_fit(gpu, choice.state_after, missing):
            continue  # no room beside it for the rest that must be on this GPU
        second = int(choice.start != best.start)
        fullness = -gpu.table.free_slices(state) if attempt.evenly else 0
        key = (before[0], second, *before[1:], fullness, profile.memory_mib, *rank, gpu.report.index, -choice.start)
        yield Option(key, gpu, (profile.name, choice.start, choice.size), None, choice.state_after)


def _shared(attempt: TrialNode, unit: Unit, gpu: Gpu, mode: str, turn: int) -> Iterator[Option]:
    """A share in an existing home (or a trial one), or in a new one. Each device on another GPU."""
    if any(other.claim == unit.claim and option.gpu is gpu for other, option in attempt.placed):
        return
    share = unit.want.share_on(gpu, mode)
    if isinstance(share, WaitReason):
        return
    for span, home in attempt.homes_on(gpu).items() if not attempt.policy.idle_only else ():
        if (home.domain, home.mode) == (unit.want.domain, mode) and home.why_not(share) is None:
            key = (turn, 0, 0, 0, *attempt.policy.key(_use_of(gpu, home)))
            yield Option(key, gpu, span, share, None, home)
    if not gpu.mig:
        size = attempt.look.fleet.households.size(gpu, None)
        if attempt.is_free(gpu) and Home(size, share.mode, unit.want.domain).why_not(share) is None:
            fresh = int(attempt.policy.packs)  # where the policy likes idle GPUs better they come first by its key
            key = (turn, 0, fresh, 0, *attempt.policy.key(whole_use(gpu)), gpu.memory_mib)
            yield Option(key, gpu, whole_span(gpu), share)
        return
    overcommit = attempt.look.fleet.households.size(gpu, None).overcommit_percent
    for place, name in enumerate(unit.want.home_profiles(gpu, share, overcommit)):
        profile = gpu.model.profile(name)
        if profile is not None:
            for option in _instances(attempt, unit, gpu, profile, (turn, 1, place)):
                yield Option(option.key, gpu, option.span, share, option.state_after)


def _use_of(gpu: Gpu, home: Home) -> DeviceUse:
    return DeviceUse(1000 - 10 * home.level, 0, (home.level,), gpu.report.numa_node, gpu.report.index)

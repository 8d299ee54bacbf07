"""
Finds a place by evicting pods of lower priority, at the least loss.

The best place is the one whose most important victim is least important, then the one with fewest victims, then the
one with the least loss; ties go to the node known first. The victims are minimal: the place needs each of them.
`Victims` holds the candidates, and `allows` decides which of them may go together.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice

from sluice.contracts.messages import DeviceGrant, Share
from sluice.contracts.reasons import WaitReason
from sluice.mig.model import Profile
from sluice_allocator.core.placement.asking import Asking, Avoid, anywhere
from sluice_allocator.core.placement.classes import NodeClass
from sluice_allocator.core.placement.clearing import WHOLE_GPU, Loss, loss_of
from sluice_allocator.core.placement.fleet import Fleet
from sluice_allocator.core.placement.gpus import Gpu, HomeKey, HomeOnGpu
from sluice_allocator.core.placement.homes import Home
from sluice_allocator.core.placement.hosts import Node
from sluice_allocator.core.placement.leaving import has_room, leave_home, leave_node
from sluice_allocator.core.placement.looking import Look, Place, look_for
from sluice_allocator.core.placement.markets import Bucket, Seat
from sluice_allocator.core.placement.on_one_node import OneNode
from sluice_allocator.core.placement.ranking import whole_span
from sluice_allocator.core.placement.search import largest_claim, named_nodes
from sluice_allocator.core.placement.victims import NO_LEVEL, Victim
from sluice_allocator.core.placement.wants import Want, WholeGpu

GPUS_TRIED_MAX = 256
"""
Most GPUs tried for one device. The cheapest nearly always fits; only its node's CPU and memory, the guarantees of its
victims' namespaces and the request's own lists can exclude it.
"""
GPUS_PER_BUCKET_MAX = 64
"""Most of those among GPUs with equal cost."""
NODES_TRIED_MAX = 64
"""Most nodes looked at for several devices or for a named node."""
NODES_FILLED_MAX = 4
"""Most of those nodes tried out, each a full fill of the node."""
OWN_TRIED_MAX = 64
"""Most tenants looked at of a namespace at its limits."""
HOMES_COMPARED_MAX = 3
"""Most homes compared in which a share can replace another: those that would have least to spare."""
LOSSES_PER_LEVEL = 1 << 12
"""The cost of several devices on a node is a priority times this, plus the number of victims."""

Allows = Callable[[Sequence[DeviceGrant], Sequence[Victim]], bool]
"""Whether a request may have these devices while these victims go: quotas and guarantees."""


@dataclass(frozen=True, slots=True)
class Displacing:
    """A place, and its victims, the least important first."""

    place: Place
    victims: tuple[Victim, ...]

    @property
    def loss(self) -> Loss:
        """The loss of its victims."""
        return loss_of(victim.who for victim in self.victims)


def find_displacing(
    fleet: Fleet, asking: Asking, priority: int, allows: Allows, avoid: Avoid = frozenset()
) -> Displacing | None:
    """The cheapest place for all claims at this priority; None when evictions do not help."""
    if not fleet.stock.victims:
        return None
    look = look_for(fleet, asking, avoid)
    search = _VictimSearch(look, priority, allows)
    named = named_nodes(look)
    if named is not None:
        search.try_nodes(iter(named))
    elif len(look.wants) == 1 and asking.claims[0].gpus == 1 and asking.claims[0].shares_percent is None:
        search.one_device(look.wants[0])
    else:
        search.several_devices()
    if search.best is None and asking.host.shun:
        return find_displacing(fleet, anywhere(asking), priority, allows, avoid)
    return search.best


def find_displacing_own(
    fleet: Fleet, asking: Asking, priority: int, allows: Allows, avoid: Avoid = frozenset()
) -> Displacing | None:
    """
    The same with victims of the request's own namespace only, for a namespace at its limits.

    Looks at the nodes of a bounded number of its tenants.
    """
    own = islice(fleet.stock.victims.of(asking.namespace), OWN_TRIED_MAX)
    going = [victim for victim in own if victim.priority < priority]
    if not going:
        return None
    look = look_for(fleet, asking, avoid)
    search = _VictimSearch(look, priority, allows, own=True)
    bookings = (fleet.booking(victim.allocation) for victim in sorted(going, key=lambda each: each.who))
    search.try_nodes(fleet.nodes[name] for name in dict.fromkeys(each.node for each in bookings if each is not None))
    if search.best is None and asking.host.shun:
        return find_displacing_own(fleet, anywhere(asking), priority, allows, avoid)
    return search.best


@dataclass(slots=True)
class _VictimSearch:
    look: Look
    priority: int
    allows: Allows
    own: bool = False
    """Whether only victims of the request's own namespace count."""
    best: Displacing | None = None
    _best_key: tuple[int, ...] = ()
    _left: int = field(default=GPUS_TRIED_MAX)
    _filled: int = 0
    _looked_at: int = 0

    def _offer(self, found: Displacing, *tie: int) -> bool:
        """Keep a find that is better than the best so far. Returns whether it is allowed."""
        if not found.victims or not self.allows(found.place.devices, found.victims):
            return False
        key = (*found.loss, *tie)
        if self.best is None or key < self._best_key:
            self.best, self._best_key = found, key
        return True

    def _is_no_better(self, loss: Loss) -> bool:
        """Whether a loss is not below the best so far."""
        return self.best is not None and loss >= self._best_key[:3]

    # -- one device -----------------------------------------------------------------------------------------------

    def one_device(self, want: Want) -> None:
        """One device, on the cheapest GPU."""
        idle_only = any(self.look.policy(group).idle_only for group in self.look.groups())
        if idle_only:  # then the whole GPU has to be emptied
            self.several_devices()
            return
        for mode in want.claim.modes:
            if mode != "exclusive":
                self._in_homes(want, mode)
        offers = [self._offers(source) for source in self._sources(want)]
        for loss, bucket, source in merge(*offers, key=lambda offer: offer[0]):
            if self._is_no_better(loss) or self._left <= 0:
                return
            self._try_bucket(want, loss, bucket, source)
        if self.best is None:  # the GPU may be free while its node's CPU or memory is not
            self.try_nodes(self._nodes_with_victims())

    def _sources(self, want: Want) -> Iterator["_Source"]:
        """What the claim could use, by kind of GPU: an instance, a whole GPU, or a home for a share."""
        for group in self.look.groups():
            for kind, sample in group.samples.items():
                for turn, mode in enumerate(want.claim.modes):
                    if mode not in group.modes:
                        continue
                    late = want.claim.snug and mode == "exclusive" and not want.is_snug(sample)
                    for profile, share in self._shapes(want, group, sample, mode):
                        for strict in (False, True):
                            yield _Source(group, kind, profile, share, len(want.claim.modes) if late else turn, strict)

    def _shapes(self, want: Want, group: NodeClass, sample: Gpu, mode: str) -> Iterator[tuple[str, Share | None]]:
        if mode == "exclusive":
            shape = want.shape_on(sample)
            if isinstance(shape, WholeGpu):
                yield WHOLE_GPU, None
            elif isinstance(shape, Profile):
                yield shape.name, None
            return
        share = want.share_on(sample, mode)
        if isinstance(share, WaitReason):
            return
        if sample.mig:
            for profile in want.home_profiles(sample, share, group.pool.overcommit_percent):
                yield profile, share
        elif Home(self.look.fleet.households.size(sample, None), share.mode, want.domain).why_not(share) is None:
            yield WHOLE_GPU, share

    def _offers(self, source: "_Source") -> Iterator[tuple[Loss, Bucket, "_Source"]]:
        victims = self.look.fleet.stock.victims
        for loss, bucket in victims.cheapest(source.group, source.kind, source.profile, strict=source.strict):
            if loss[0] >= self.priority:
                return
            yield loss, bucket, source

    def _try_bucket(self, want: Want, loss: Loss, bucket: Bucket, source: "_Source") -> None:
        """The first GPU of a bucket that fits; all of them cost the same."""
        seat = bucket.seats.after(None)
        left = GPUS_PER_BUCKET_MAX
        while seat is not None and self._left > 0 and left > 0:
            self._left -= 1
            left -= 1
            found = self._on_gpu(want, source, seat)
            if found is not None and found.loss == loss:
                return
            seat = bucket.seats.after(seat)

    def _on_gpu(self, want: Want, source: "_Source", seat: Seat) -> Displacing | None:
        cleared = self.look.fleet.stock.victims.cleared(seat[2], strict=source.strict)
        gpu, node = cleared.gpu, cleared.node
        if not self.look.admits(node) or not self.look.may_use(gpu, want):
            return None
        way = cleared.clearing.ways[source.profile]
        assert way is not None  # it is in a bucket where room can be made
        goes = self._with_room(node, [cleared.who[number] for number in way.goes], strict=source.strict)
        if goes is None:
            return None
        span = (source.profile, way.start, way.size) if source.profile != WHOLE_GPU else whole_span(gpu)
        found = self._displacing(node, gpu, span, source.share, goes)
        tie = (source.turn, gpu.memory_mib if span[0] is None else span[2], *seat[:2], way.start)
        return found if self._offer(found, *tie) else None

    def _displacing(
        self, node: Node, gpu: Gpu, span: HomeKey, share: Share | None, goes: Sequence[Victim]
    ) -> Displacing:
        container = self.look.asking.claims[0].container
        profile, start, size = span
        device = DeviceGrant(
            container=container, gpu=gpu.report.uuid, profile=profile, start=start, size=size, share=share
        )
        return Displacing(Place(node.name, (device,)), _in_order(goes))

    def _with_room(self, node: Node, goes: Sequence[Victim], *, strict: bool) -> list[Victim] | None:
        """The victims including those for the pod's CPU, memory and other needs; None where it never fits."""
        if has_room(node, goes, self.look.need):
            return list(goes)
        others = self.look.fleet.stock.victims.on(node, self.priority)
        others = [each for each in others if each not in goes and not (strict and each.guarded)]
        return leave_node(node, goes, others, self.look.need)

    # -- one share, in a home that is there -----------------------------------------------------------------------

    def _in_homes(self, want: Want, mode: str) -> None:
        victims = self.look.fleet.stock.victims
        for group in self.look.groups():
            if mode not in group.modes:
                continue
            for key in group.homes_of.get((want.domain, mode), ()):
                share = want.share_on(group.samples[key[2]], mode)
                if isinstance(share, WaitReason):
                    continue
                done = 0
                for level, at_home in victims.homes(group, key, share.memory_mib, self.priority):
                    if self._is_no_better((level, 0, 0)) or self._left <= 0 or done == HOMES_COMPARED_MAX:
                        break
                    self._left -= 1
                    done += self._in_home(want, at_home, share, level)

    def _in_home(self, want: Want, at_home: HomeOnGpu, share: Share, level: int) -> bool:
        gpu = at_home.gpu
        node = self.look.fleet.nodes[gpu.node]
        if not self.look.admits(node) or not self.look.may_use(gpu, want):
            return False
        known = self.look.fleet.stock.victims.known
        there = (known.get(each) for each in {allocation: None for allocation, _ in at_home.home.shares})
        going = [each for each in there if each is not None and each.priority <= level]
        for strict in (False, True):
            allowed = [each for each in going if not (strict and each.guarded)]
            goes = leave_home(at_home.home, share, allowed)
            goes = self._with_room(node, goes, strict=strict) if goes is not None else None
            if goes is not None:
                found = self._displacing(node, gpu, at_home.key, share, goes)
                if self._offer(found, 0, 0, node.number, gpu.report.index, at_home.key[1]):
                    return True
        return False

    # -- several devices of one node ------------------------------------------------------------------------------

    def several_devices(self) -> None:
        """All devices on the node whose most important victim is least important."""
        for group in self.look.groups():
            claim, want = largest_claim(self.look, group)
            counted = self.look.fleet.stock.victims.counted.of(
                group, f"{want.number} {claim.gpus}", self._counting(want, claim.gpus)
            )
            self._filled = self._looked_at = 0
            for level in counted.ladder.at_least(-NO_LEVEL):
                if level // LOSSES_PER_LEVEL >= self.priority or self._filled >= NODES_FILLED_MAX:
                    break
                if self._looked_at >= NODES_TRIED_MAX:
                    break
                guess = (level // LOSSES_PER_LEVEL, level % LOSSES_PER_LEVEL, NO_LEVEL)
                if self._is_no_better(guess):
                    break
                self.try_nodes(iter(counted.ladder.rungs[level].some(NODES_TRIED_MAX)), guess)

    def _counting(self, want: Want, wanted: int) -> Callable[[Node], int]:
        """
        The cost of room for so many devices on a node, as one number: see LOSSES_PER_LEVEL.

        The priority up to which all tenants go is exact for instances and whole GPUs; the number of victims is
        estimated from the cheapest GPUs. For shares only the first victim counts.
        """
        fleet = self.look.fleet
        victims = fleet.stock.victims

        def level_of(node: Node) -> int:
            levels = sorted({victim.priority for victim in victims.on(node, NO_LEVEL)})
            plain = want.claim.modes == ("exclusive",) and want.claim.shares_percent is None
            for level in levels:
                if not plain:
                    return level * LOSSES_PER_LEVEL
                if sum(_count(gpu, level) for gpu in node.gpus) >= wanted:
                    least = min(victims.guess(node, profile_on, wanted), LOSSES_PER_LEVEL - 1)
                    return level * LOSSES_PER_LEVEL + least
            return NO_LEVEL

        def _count(gpu: Gpu, level: int) -> int:
            profile = profile_on(gpu)
            return victims.count_on(gpu, profile, level) if profile is not None else 0

        def profile_on(gpu: Gpu) -> str | None:
            shape = want.shape_on(gpu)
            if isinstance(shape, WaitReason):
                return None
            return shape.name if isinstance(shape, Profile) else WHOLE_GPU

        return level_of

    def _nodes_with_victims(self) -> Iterator[Node]:
        fleet = self.look.fleet
        return (fleet.nodes[name] for name in fleet.stock.victims.nodes())

    def try_nodes(self, nodes: Iterator[Node], guess: Loss | None = None) -> None:
        """The best of some nodes, each filled with all devices; or the first that costs no more than `guess`."""
        for node in islice(nodes, NODES_TRIED_MAX - self._looked_at):
            self._looked_at += 1
            going = self.look.fleet.stock.victims.on(node, self.priority)
            if self.own:
                going = [victim for victim in going if victim.namespace == self.look.asking.namespace]
            one = OneNode(self.look, node, going)
            if self._filled >= NODES_FILLED_MAX or (guess is not None and self._is_no_better(guess)):
                return
            if not has_room(node, going, self.look.need) or not one.may_do():
                continue
            self._filled += 1
            for guarded in (True, False):
                found = one.least(guarded=guarded)
                if found is None:
                    continue
                devices, goes = found
                if self._offer(Displacing(Place(node.name, devices), _in_order(goes)), node.number):
                    break


@dataclass(frozen=True, slots=True)
class _Source:
    """One kind of device that room could be made for. `turn`: the position of its mode in the claim's list."""

    group: NodeClass
    kind: str
    profile: str
    share: Share | None
    turn: int
    strict: bool


def _in_order(victims: Sequence[Victim]) -> tuple[Victim, ...]:
    return tuple(sorted(victims, key=lambda each: (*each.who, each.allocation)))

"""Finds a place by evicting pods of lower priority: where the most important victim is least important, then with
fewest victims, then at least cost, then on the node known first. The place needs each victim; `allows` judges them
together."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice, takewhile

import msgspec

from sluice.contracts.messages import DeviceGrant, Share
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.placement.cluster.cluster_state import ClusterState
from sluice_allocator.core.placement.index.clearing_cost import CostBucket, EvictionCost, GpuKey, eviction_cost_of
from sluice_allocator.core.placement.index.node_class import NodeClass
from sluice_allocator.core.placement.index.victim_index import NO_LEVEL, Victim
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec
from sluice_allocator.core.placement.nodes.gpu import WHOLE_GPU, Gpu, SharedDeviceOnGpu, Span, grant_of
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.core.placement.preempt.minimal_victims import NodeVictims, leave_home, leave_node
from sluice_allocator.core.placement.search.context import Place, SearchContext, prepare
from sluice_allocator.core.placement.search.find import largest_claim, named_nodes
from sluice_allocator.core.placement.spec.larger_profiles import is_exclusive_only
from sluice_allocator.core.placement.spec.place_request import Avoid, PlaceRequest, without_shunned_nodes

GPUS_TRIED_MAX = 256
"""Most GPUs tried for one device. The cheapest nearly always fits; only its node's CPU and memory, the guarantees of
its victims' namespaces and the request's own lists can exclude it."""
GPUS_PER_BUCKET_MAX = 64  # most of those among GPUs with equal cost
NODES_TRIED_MAX = 64  # most nodes looked at for several devices or for a named node
NODES_FILLED_MAX = 4  # most of those nodes tried out, each a full fill of the node
OWN_TRIED_MAX = 64  # most tenants looked at of a namespace at its limits
HOMES_COMPARED_MAX = 3  # most homes compared in which a share can replace another: those that would have least to spare
COSTS_PER_LEVEL = 1 << 12  # the cost of several devices on a node is a priority times this, plus the number of victims

Allows = Callable[[Sequence[DeviceGrant], Sequence[Victim]], bool]  # whether quotas and guarantees allow these devices


class PreemptionPlan(msgspec.Struct, frozen=True):
    """A place, and its victims, the least important first."""

    place: Place
    victims: tuple[Victim, ...]

    @property
    def cost(self) -> EvictionCost:
        return eviction_cost_of(victim.who for victim in self.victims)


def find_preemption(
    cluster: ClusterState, request: PlaceRequest, priority: int, allows: Allows, avoid: Avoid = frozenset()
) -> PreemptionPlan | None:
    """The cheapest place for all claims at this priority; None when evictions do not help."""
    if not cluster.index.victims:
        return None
    context = prepare(cluster, request, avoid)
    search = _VictimSearch(context, priority, allows)
    named = named_nodes(context)
    if named is not None:
        search.try_nodes(iter(named))
    elif len(context.specs) == 1 and request.claims[0].gpus == 1 and request.claims[0].shares_percent is None:
        search.one_device(context.specs[0])
    else:
        search.several_devices()
    if search.best is None and request.host.shun:
        return find_preemption(cluster, without_shunned_nodes(request), priority, allows, avoid)
    return search.best


def find_own_preemption(
    cluster: ClusterState, request: PlaceRequest, priority: int, allows: Allows, avoid: Avoid = frozenset()
) -> PreemptionPlan | None:
    """The same with victims of the request's own namespace, at its limits; looks at a bounded number of nodes."""
    own = islice(cluster.index.victims.of(request.namespace), OWN_TRIED_MAX)
    going = [victim for victim in own if victim.priority < priority]
    if not going:
        return None
    context = prepare(cluster, request, avoid)
    search = _VictimSearch(context, priority, allows, own=True)
    bookings = (cluster.booking(victim.allocation) for victim in sorted(going, key=lambda each: each.who))
    search.try_nodes(cluster.nodes[name] for name in dict.fromkeys(each.node for each in bookings if each is not None))
    if search.best is None and request.host.shun:
        return find_own_preemption(cluster, without_shunned_nodes(request), priority, allows, avoid)
    return search.best


@dataclass(slots=True)
class _VictimSearch:
    context: SearchContext
    priority: int
    allows: Allows
    own: bool = False  # whether only victims of the request's own namespace count
    best: PreemptionPlan | None = None
    _best_key: tuple[int, ...] = ()
    _left: int = field(default=GPUS_TRIED_MAX)
    _filled: int = 0
    _looked_at: int = 0

    def _offer(self, found: PreemptionPlan, *tie: int) -> bool:
        """Keep a find that is better than the best so far. Returns whether it is allowed."""
        if not found.victims or not self.allows(found.place.devices, found.victims):
            return False
        key = (*found.cost, *tie)
        if self.best is None or key < self._best_key:
            self.best, self._best_key = found, key
        return True

    def _is_no_better(self, cost: EvictionCost) -> bool:
        return self.best is not None and cost >= self._best_key[:3]

    def one_device(self, spec: DeviceSpec) -> None:
        if any(self.context.policy(group).idle_only for group in self.context.groups()):
            self.several_devices()  # for then the whole GPU has to be emptied
            return
        for mode in spec.claim.modes:
            if mode != "exclusive":
                self._in_homes(spec, mode)
        offers = [self._offers(source) for source in self._sources(spec)]
        for cost, cost_bucket, source in merge(*offers, key=lambda offer: offer[0]):
            if self._is_no_better(cost) or self._left <= 0:
                return
            self._try_bucket(spec, cost, cost_bucket, source)
        if self.best is None:  # the GPU may be free while its node's CPU or memory is not
            cluster = self.context.cluster
            self.try_nodes(cluster.nodes[name] for name in cluster.index.victims.nodes())

    def _sources(self, spec: DeviceSpec) -> Iterator["_Source"]:
        """What the claim could use, by kind of GPU: an instance, a whole GPU, or a home for a share."""
        modes = spec.claim.modes
        for group in self.context.groups():
            for kind, sample in group.samples.items():
                size = self.context.cluster.tenancy.size(sample, None)
                for mode, profile, share in spec.offers_on(sample, group.pool.overcommit_percent):
                    if mode not in group.modes or (profile == WHOLE_GPU and share and not size.fits_alone(share)):
                        continue
                    late = spec.claim.snug and mode == "exclusive" and not spec.is_snug(sample)
                    turn = len(modes) if late else modes.index(mode)
                    yield from (_Source(group, kind, profile, share, turn, strict) for strict in (False, True))

    def _offers(self, source: "_Source") -> Iterator[tuple[EvictionCost, CostBucket, "_Source"]]:
        victims = self.context.cluster.index.victims
        offers = victims.cheapest(source.group, source.kind, source.profile, strict=source.strict)
        affordable = takewhile(lambda offer: offer[0][0] < self.priority, offers)
        return ((cost, cost_bucket, source) for cost, cost_bucket in affordable)

    def _try_bucket(self, spec: DeviceSpec, cost: EvictionCost, cost_bucket: CostBucket, source: "_Source") -> None:
        """The first GPU of a bucket that fits; all of them cost the same."""
        gpu_key = cost_bucket.gpu_keys.after(None)
        for _ in range(min(GPUS_PER_BUCKET_MAX, self._left)):
            if gpu_key is None:
                return
            self._left -= 1
            found = self._on_gpu(spec, source, gpu_key)
            if found is not None and found.cost == cost:
                return
            gpu_key = cost_bucket.gpu_keys.after(gpu_key)

    def _on_gpu(self, spec: DeviceSpec, source: "_Source", gpu_key: GpuKey) -> PreemptionPlan | None:
        cleared = self.context.cluster.index.victims.cleared(gpu_key[2], strict=source.strict)
        gpu, node = cleared.gpu, cleared.node
        if not self.context.admits(node) or not self.context.may_use(gpu, spec):
            return None
        way = cleared.clearing.ways[source.profile]
        assert way is not None  # it is in a bucket where room can be made
        goes = self._with_room(node, [cleared.who[number] for number in way.goes], strict=source.strict)
        if goes is None:
            return None
        span = (source.profile, way.start, way.size) if source.profile != WHOLE_GPU else gpu.whole_span
        found = self._plan(node, gpu, span, source.share, goes)
        tie = (source.turn, gpu.memory_mib if span[0] is None else span[2], *gpu_key[:2], way.start)
        return found if self._offer(found, *tie) else None

    def _plan(self, node: Node, gpu: Gpu, span: Span, share: Share | None, goes: Sequence[Victim]) -> PreemptionPlan:
        device = grant_of(self.context.request.claims[0].container, gpu, span, share)
        return PreemptionPlan(Place(node.name, (device,)), _in_order(goes))

    def _with_room(self, node: Node, goes: Sequence[Victim], *, strict: bool) -> list[Victim] | None:
        if node.would_have_room(self.context.need, [each.room for each in goes]):
            return list(goes)
        others = self.context.cluster.index.victims.on(node, self.priority)
        others = [each for each in others if each not in goes and not (strict and each.guarded)]
        return leave_node(node, goes, others, self.context.need)

    def _in_homes(self, spec: DeviceSpec, mode: str) -> None:
        victims = self.context.cluster.index.victims
        for group in self.context.groups():
            if mode not in group.modes:
                continue
            for key in group.homes_of.get((spec.domain, mode), ()):
                share = spec.share_on(group.samples[key[2]], mode)
                if isinstance(share, WaitReason):
                    continue
                done = 0
                for level, at_home in victims.homes(group, key, share.memory_mib, self.priority):
                    if self._is_no_better((level, 0, 0)) or self._left <= 0 or done == HOMES_COMPARED_MAX:
                        break
                    self._left -= 1
                    done += self._in_home(spec, at_home, share, level)

    def _in_home(self, spec: DeviceSpec, at_home: SharedDeviceOnGpu, share: Share, level: int) -> bool:
        gpu = at_home.gpu
        node = self.context.cluster.nodes[gpu.node]
        if not self.context.admits(node) or not self.context.may_use(gpu, spec):
            return False
        known = self.context.cluster.index.victims.known
        there = (known.get(each) for each in {allocation: None for allocation, _ in at_home.home.shares})
        going = [each for each in there if each is not None and each.priority <= level]
        for strict in (False, True):
            allowed = [each for each in going if not (strict and each.guarded)]
            goes = leave_home(at_home.home, share, allowed)
            goes = self._with_room(node, goes, strict=strict) if goes is not None else None
            if goes is not None:
                found = self._plan(node, gpu, at_home.key, share, goes)
                if self._offer(found, 0, 0, node.number, gpu.report.index, at_home.key[1]):
                    return True
        return False

    def several_devices(self) -> None:
        """All devices on the node whose most important victim is least important."""
        for group in self.context.groups():
            claim, spec = largest_claim(self.context, group)
            name, counting = f"{spec.number} {claim.gpus}", self._counting(spec, claim.gpus)
            counted = self.context.cluster.index.victims.counted.of(group, name, counting)
            self._filled = self._looked_at = 0
            for level in counted.sorted_buckets.at_least(-NO_LEVEL):
                guess = (*divmod(level, COSTS_PER_LEVEL), NO_LEVEL)
                is_spent = self._filled >= NODES_FILLED_MAX or self._looked_at >= NODES_TRIED_MAX
                if guess[0] >= self.priority or is_spent or self._is_no_better(guess):
                    break
                self.try_nodes(iter(counted.sorted_buckets.by_number[level].some(NODES_TRIED_MAX)), guess)

    def _counting(self, spec: DeviceSpec, wanted: int) -> Callable[[Node], int]:
        """The cost of room for so many devices on a node, as one number (COSTS_PER_LEVEL): the priority up to which all
        tenants go is exact for exclusive devices, the number of victims an estimate."""
        victims = self.context.cluster.index.victims

        def level_of(node: Node) -> int:
            profiles = [(gpu, profile) for gpu in node.gpus if (profile := spec.profile_on(gpu)) is not None]
            for level in sorted({victim.priority for victim in victims.on(node, NO_LEVEL)}):
                if not is_exclusive_only(spec.claim):
                    return level * COSTS_PER_LEVEL
                if sum(victims.count_on(gpu, profile, level) for gpu, profile in profiles) >= wanted:
                    return level * COSTS_PER_LEVEL + min(victims.guess(profiles, wanted), COSTS_PER_LEVEL - 1)
            return NO_LEVEL

        return level_of

    def try_nodes(self, nodes: Iterator[Node], guess: EvictionCost | None = None) -> None:
        """The best of some nodes, each filled with all devices; or the first that costs no more than `guess`."""
        for node in islice(nodes, NODES_TRIED_MAX - self._looked_at):
            self._looked_at += 1
            going = self.context.cluster.index.victims.on(node, self.priority)
            if self.own:
                going = [victim for victim in going if victim.namespace == self.context.request.namespace]
            if self._filled >= NODES_FILLED_MAX or (guess is not None and self._is_no_better(guess)):
                return
            has_room = node.would_have_room(self.context.need, [each.room for each in going])
            if not has_room or not going or not self.context.may_be_on(node):
                continue
            self._filled += 1
            one = NodeVictims(self.context, node, going)
            for guarded in (True, False):
                found = one.least(guarded=guarded)
                plan = PreemptionPlan(Place(node.name, found[0]), _in_order(found[1])) if found is not None else None
                if plan is not None and self._offer(plan, node.number):
                    break


class _Source(msgspec.Struct, frozen=True):
    group: NodeClass
    kind: str
    profile: str
    share: Share | None
    turn: int
    strict: bool


def _in_order(victims: Sequence[Victim]) -> tuple[Victim, ...]:
    return tuple(sorted(victims, key=lambda each: (*each.who, each.allocation)))

"""Finds a place to reserve and the tenants that have to go, among the GPUs with least in the way (by layout state), of
which a bounded number is looked at. The best is tried on a trial cluster of that node by the common search."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.messages import NodeSnapshot
from sluice.mig.layout import Instance
from sluice.mig.model import Placement, Profile
from sluice.mig.transition_table import State
from sluice_allocator.core.placement.cluster.cluster_state import ClusterState
from sluice_allocator.core.placement.index.node_class import NodeClass
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec, WholeGpu
from sluice_allocator.core.placement.nodes.gpu import Gpu
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.core.placement.search.context import Place, SearchContext, prepare
from sluice_allocator.core.placement.search.find import counted_for, find_place_on, largest_claim, named_nodes
from sluice_allocator.core.placement.spec.larger_profiles import is_exclusive_only
from sluice_allocator.core.placement.spec.place_request import Avoid, PlaceRequest, without_shunned_nodes

GPUS_LOOKED_AT_MAX = 256  # most GPUs looked at for one reservation: those with least in the way come first
SPOTS_TRIED_MAX = 4  # most of the best spots tried out: CPU, NUMA or links may still exclude one
NODES_TRIED_MAX = 2  # the same for several devices and for shares, where a whole node is tried
NODES_IN_VAIN_MAX = 6  # most further tries that fail: for shares a quick look is not conclusive
NODES_LOOKED_AT_MAX = 64

WaitFor = Callable[[AllocationId], int | None]  # of an allocation: 0 being revoked, 1 live, None: not to be waited for
OpenTo = Callable[[str], bool]  # whether GPUs of a model may be reserved


@dataclass(frozen=True, slots=True)
class ReservedPlace:
    """A place, and the tenants that have to go before; it needs each of them."""

    place: Place
    after: tuple[AllocationId, ...]


@dataclass(frozen=True, slots=True, order=True)
class _ReservationSpot:
    """A span to reserve, best first: fewest live tenants to wait for, fewest occupied slices, then the order of nodes
    and GPUs; `start` in memory slices."""

    weight: int
    occupied: int
    node_number: int
    index: int
    start: int
    gpu: Gpu = field(compare=False)
    gone: tuple[AllocationId, ...] = field(compare=False)


def find_reservation(
    cluster: ClusterState,
    request: PlaceRequest,
    avoid: Avoid = frozenset(),
    *,
    shown: Mapping[NodeName, NodeSnapshot],
    wait_for: WaitFor,
    open_to: OpenTo,
) -> ReservedPlace | None:
    """The place with fewest tenants to wait for, then with most of it free already. `shown` is the snapshot of each
    node. None when no place may be reserved, or none was found among those looked at."""
    context = prepare(cluster, request, avoid)
    search = _ReservationSearch(context, shown, wait_for, open_to)
    plain = is_exclusive_only(request.claims[0])
    is_one = plain and len(request.claims) == 1 and request.claims[0].gpus == 1
    found = search.one_device(context.specs[0]) if is_one else search.several()
    if found is None and request.host.shun:
        anywhere = without_shunned_nodes(request)
        return find_reservation(cluster, anywhere, avoid, shown=shown, wait_for=wait_for, open_to=open_to)
    return found


@dataclass(slots=True)
class _ReservationSearch:
    context: SearchContext
    shown: Mapping[NodeName, NodeSnapshot]
    wait_for: WaitFor
    open_to: OpenTo
    _large_enough: dict[NodeName, bool] = field(default_factory=dict)

    def one_device(self, spec: DeviceSpec) -> ReservedPlace | None:
        tried = 0
        for spot in sorted(islice(self._spots(spec), GPUS_LOOKED_AT_MAX)):
            node = self.context.cluster.nodes[spot.gpu.node]
            gone = self._with_room(node, spot.gone)
            if gone is None:
                continue
            tried += 1
            promise = self._try(node, gone)
            if promise is not None or tried == SPOTS_TRIED_MAX:
                return promise
        return None

    def _spots(self, spec: DeviceSpec) -> Iterator[_ReservationSpot]:
        best = 1 << 30
        for gpu, profile, least in self._gpus(spec):
            if least > best:
                return  # one with a single tenant was found, and it has more free than any that follows
            spot = self._spot_on(gpu, profile)
            if spot is not None:
                if spot.weight <= 1:
                    best = min(best, spot.occupied)
                yield spot

    def _gpus(self, spec: DeviceSpec) -> Iterator[tuple[Gpu, Profile | None, int]]:
        """GPUs that may serve, with the profile and the least number of slices that are in its way there."""
        buckets: list[tuple[int, int, str, int, NodeClass, Profile | None]] = []
        for group in [group for group in self.context.groups() if "exclusive" in group.modes]:
            for kind, sample in group.samples.items():
                shape = spec.shape_on(sample)
                if not self.open_to(sample.report.model):
                    continue
                if isinstance(shape, Profile):
                    buckets += [
                        (_least_in_the_way(state, shape), group.number, kind, state, group, shape)
                        for state in group.states.get(kind, ())
                    ]
                elif isinstance(shape, WholeGpu) and group.booked_whole.get(kind):
                    buckets.append((max(1, sample.model.memory_slices), group.number, kind, -1, group, None))
        buckets.sort(key=lambda each: each[:4])
        named = named_nodes(self.context)
        for least, _, kind, state, group, profile in buckets:
            for gpu in _in_bucket(group, kind, state):
                node = self.context.cluster.nodes[gpu.node]
                if (named is not None and node not in named) or not self._is_large_enough(node):
                    continue
                if self.context.may_use(gpu, spec) and self.context.admits(node):
                    yield gpu, profile, least

    def _spot_on(self, gpu: Gpu, profile: Profile | None) -> _ReservationSpot | None:
        """The best span on a GPU; None when every span has a tenant that may not be waited for."""
        spans = profile.placements if profile is not None else (Placement(0, max(1, gpu.report.memory_slices)),)
        found = (self._spot_at(gpu, profile, span) for span in spans)
        return min((each for each in found if each is not None), default=None)

    def _spot_at(self, gpu: Gpu, profile: Profile | None, span: Placement) -> _ReservationSpot | None:
        if any(span.mask & each.mask for each in gpu.blocked) or any(span.mask & each.mask for each in gpu.foreign):
            return None
        taken = ((key[0], Placement(grant.start, grant.size).mask) for key, grant in gpu.spans.items())
        there = {allocation: None for allocation, mask in taken if profile is None or span.mask & mask}
        if profile is not None and not _is_made_free(gpu, profile, span, there):
            there = {key[0]: None for key in gpu.spans}  # its engines are used beside the span
            if not _is_made_free(gpu, profile, span, there):
                return None
        weights = [weight for each in there if (weight := self.wait_for(each)) is not None]
        if len(weights) < len(there):
            return None
        occupied = (gpu.state & span.mask).bit_count() if profile is not None else span.size
        number = self.context.cluster.nodes[gpu.node].number
        return _ReservationSpot(sum(weights), occupied, number, gpu.report.index, span.start, gpu, tuple(there))

    def several(self) -> ReservedPlace | None:
        found: list[tuple[int, int, ReservedPlace]] = []
        for node in islice(self._nodes(), NODES_TRIED_MAX + NODES_IN_VAIN_MAX):
            gone = tuple(each for each in node.taken if self.wait_for(each) is not None)
            promise = self._try(node, gone)
            if promise is not None:
                weight = sum(self.wait_for(each) or 0 for each in promise.after)
                found.append((weight, node.number, promise))
            if len(found) == NODES_TRIED_MAX:
                break
        return min(found, key=lambda each: each[:2])[2] if found else None

    def _nodes(self) -> Iterator[Node]:
        """Nodes that would hold it when empty, those that hold most of it now first."""
        named = named_nodes(self.context)
        for node in islice(self._near(), NODES_LOOKED_AT_MAX) if named is None else named:
            if self.context.may_be_on(node) and self._would_hold(node, self.context.cluster.index.class_of(node)):
                yield node

    def _would_hold(self, node: Node, group: NodeClass) -> bool:
        """Whether it might fit without all tenants that may be waited for: a quick look, as most nodes are alike."""
        claim, spec = largest_claim(self.context, group)
        gpus = [gpu for gpu in node.gpus if self.open_to(gpu.report.model) and self.context.may_use(gpu, spec)]
        held = sum(self._held_at_most(gpu, spec) for gpu in gpus)
        if held < (claim.gpus if claim.shares_percent is None else -(-claim.shares_percent // 100)):
            return False
        leaving = [room for each, room in node.taken.items() if self.wait_for(each) is not None]
        return node.would_have_room(self.context.need, leaving)

    def _held_at_most(self, gpu: Gpu, spec: DeviceSpec) -> int:
        """The most devices of a claim on a GPU beside the tenants that may not be waited for."""
        if spec.claim.shares_percent is not None or spec.claim.modes != ("exclusive",):
            return 1
        shape = spec.shape_on(gpu)
        stay = [grant for (allocation, _), grant in gpu.spans.items() if self.wait_for(allocation) is None]
        if isinstance(shape, Profile):
            left = {Instance(grant.profile or "", grant.start, grant.size): None for grant in stay}
            return gpu.table.count(gpu.table.state([*gpu.foreign, *left], blocked=gpu.blocked), shape.name)
        return int(isinstance(shape, WholeGpu) and not stay)

    def _is_large_enough(self, node: Node) -> bool:
        """Whether an empty node has room for the pod: else none of its GPUs helps."""
        if node.name not in self._large_enough:
            self._large_enough[node.name] = node.would_have_room(self.context.need, list(node.taken.values()))
        return self._large_enough[node.name]

    def _near(self) -> Iterator[Node]:
        for group in self.context.groups():
            sorted_buckets = counted_for(self.context, group).sorted_buckets
            for count in reversed(sorted_buckets.order):
                yield from sorted_buckets.by_number[count].some(NODES_LOOKED_AT_MAX)

    def _with_room(self, node: Node, gone: tuple[AllocationId, ...]) -> tuple[AllocationId, ...] | None:
        """The tenants to go so that the node has room for the pod besides; None when that is not enough."""
        # a GPU moved from another node has that node's bookings, which are not in `taken`
        have = [node.taken[each] for each in gone if each in node.taken]
        others = [each for each in node.taken if each not in gone and self.wait_for(each) is not None]
        others.sort(key=lambda each: (self.wait_for(each), -node.taken[each].cpu_milli, -node.taken[each].memory_mib))
        more: list[AllocationId] = []
        while not node.would_have_room(self.context.need, have):
            if not others:
                return None
            more.append(others.pop(0))
            have.append(node.taken[more[-1]])
        return (*gone, *more)

    def _try(self, node: Node, gone: tuple[AllocationId, ...]) -> ReservedPlace | None:
        """The place without these tenants, and those that it needs gone: the others are put back one by one."""
        cluster, request, avoid = self.context.cluster, self.context.request, self.context.avoid
        snapshot = self.shown.get(node.name)
        if snapshot is None:
            return None
        trial = cluster.alone(snapshot)
        for each in gone:
            trial.unbook(each)
        place = find_place_on(trial, request, node.name, avoid)
        if place is None:
            return None
        after: list[AllocationId] = []
        for each in self._in_order(gone):
            booking = cluster.booking(each)
            if booking is None:
                continue
            trial.book(booking)
            still = find_place_on(trial, request, node.name, avoid)
            place = still or place
            if still is None:
                trial.unbook(each)
                after.append(each)
        if not all(self.open_to(cluster.gpus[device.gpu].report.model) for device in place.devices):
            return None
        return ReservedPlace(place, tuple(after))

    def _in_order(self, gone: tuple[AllocationId, ...]) -> list[AllocationId]:
        def key(allocation: AllocationId) -> tuple[int, int]:
            booking = self.context.cluster.booking(allocation)
            devices = booking.devices if booking is not None else ()
            gpus = (self.context.cluster.gpus.get(device.gpu) for device in devices)
            neighbours = max((len(gpu.spans) for gpu in gpus if gpu is not None), default=0)
            return -(self.wait_for(allocation) or 0), -neighbours

        return sorted(gone, key=key)


def _least_in_the_way(state: int, profile: Profile) -> int:
    return min(((state & span.mask).bit_count() for span in profile.placements), default=1 << 30)


def _in_bucket(group: NodeClass, kind: str, state: int) -> Iterable[Gpu]:
    """GPUs of a kind in a layout state, or (-1) those without MIG that are in use."""
    if state < 0:
        return islice(group.booked_whole.get(kind, {}), GPUS_LOOKED_AT_MAX)
    bucket = group.states.get(kind, {}).get(State(state))
    nodes = bucket.some(GPUS_LOOKED_AT_MAX) if bucket is not None else []
    return (gpu for node in nodes for gpu in node.gpus if gpu.bucket is bucket)


def _is_made_free(gpu: Gpu, profile: Profile, span: Placement, gone: Mapping[AllocationId, None]) -> bool:
    stays = [grant for key, grant in gpu.spans.items() if key[0] not in gone]
    left = {Instance(each.profile, each.start, each.size): None for each in stays if each.profile is not None}
    state = gpu.table.state([*gpu.foreign, *left], blocked=gpu.blocked)
    return any(choice.start == span.start for choice in gpu.table.choices(state, profile.name))

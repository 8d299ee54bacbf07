"""
Who lives in which home of shares: what of the bookings is a share moves in, and out again.

A home is there from its first tenant on and goes with its last. Where what is booked contradicts itself (strangers in
one home, or something across it), the home is mixed and takes nobody. It must not decide who gets a share.
"""

from collections.abc import Mapping

from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.messages import Booking, DeviceGrant
from sluice_allocator.core.placement.gpus import Gpu, HomeKey, HomeOnGpu, SpanKey
from sluice_allocator.core.placement.homes import Home, HomeSize
from sluice_allocator.core.placement.hosts import Node
from sluice_allocator.core.placement.rules import DEFAULT_POOL, PlacingRules
from sluice_allocator.core.placement.stock import Stock


class Households:
    """The homes of all GPUs of a fleet."""

    def __init__(
        self,
        rules: PlacingRules,
        nodes: Mapping[NodeName, Node],
        bookings: Mapping[AllocationId, Booking],
        stock: Stock,
    ) -> None:
        """Begin with no home. What is handed in stays the fleet's, which fills it."""
        self._rules = rules
        self._nodes = nodes
        self._bookings = bookings
        self._stock = stock
        self.sizes: dict[tuple[object, ...], HomeSize] = {}
        """How large homes are, by what that depends on: true of any fleet with the same rules."""

    def move_in(self, gpu: Gpu, key: SpanKey, grant: DeviceGrant) -> HomeOnGpu | None:
        """A share gets its place in its home, which is there from its first tenant on."""
        share = grant.share
        if share is None:
            return None
        span = span_of(grant)
        at_home = gpu.homes.get(span)
        domain = (self._bookings[key[0]].namespace, share.uid)
        if at_home is None:
            home = Home(self.size(gpu, grant.profile), share.mode, domain)
            home.mixed = any(_in_each_others_way(grant, other) for other in gpu.spans.values())
            at_home = gpu.homes[span] = HomeOnGpu(gpu, span, home)
        elif (at_home.home.domain, at_home.home.mode) != (domain, share.mode):
            at_home.home.mixed = True
        at_home.home.add(key, share)
        return at_home

    def contest(self, node: Node, gpu: Gpu, grant: DeviceGrant) -> None:
        """Something was booked that is no share of a home that is there: those that it overlaps take nobody."""
        for at_home in gpu.homes.values():
            tenants = (
                other for other in gpu.spans.values() if other.share is not None and span_of(other) == at_home.key
            )
            if not at_home.home.mixed and _in_each_others_way(grant, next(tenants)):
                at_home.home.mixed = True
                self._stock.home_changed(node, at_home)

    def draw_anew(self, node: Node, gpu: Gpu, at_home: HomeOnGpu) -> None:
        """Something went from a GPU with a mixed home: it may be clear now whose it is, and what overlaps it."""
        left = [(k, g) for k, g in gpu.spans.items() if g.share is not None and span_of(g) == at_home.key]
        if any(allocation not in self._bookings for (allocation, _), _ in left):
            return  # of the same pod, and going too
        home = at_home.home
        at_home.home = Home(home.size, home.mode, home.domain)
        del gpu.homes[at_home.key]
        for key, grant in left:
            self.move_in(gpu, key, grant)
        self._stock.home_changed(node, at_home)
        self._stock.home_changed(node, gpu.homes[at_home.key])

    def resize(self, gpu: Gpu) -> None:
        """What a pool allows may differ from what the pool before allowed."""
        if gpu.homes:
            gpu.homes = {}
            for key, grant in gpu.spans.items():
                self.move_in(gpu, key, grant)

    def move_out(self, gpu: Gpu, key: SpanKey, grant: DeviceGrant) -> HomeOnGpu | None:
        """A share leaves its home, which goes with its last tenant. The home, empty or not."""
        at_home = gpu.homes.get(span_of(grant)) if grant.share is not None else None
        if at_home is not None:
            at_home.home.remove(key)
            if at_home.home.empty:
                del gpu.homes[at_home.key]
        return at_home

    def size(self, gpu: Gpu, profile: str | None) -> HomeSize:
        """How large a home of this profile (None: the whole GPU) would be on this GPU; equal sizes are one object."""
        node = self._nodes[gpu.node]
        pool = node.labels.get(self._rules.pool_label, DEFAULT_POOL)
        key = (gpu.kind, profile, pool, node.time_quota)
        size = self.sizes.get(key)
        if size is None:
            percent = self._rules.pool(pool).overcommit_percent
            size = gpu.home_size(profile, taking_turns=node.time_quota, overcommit_percent=percent)
            self.sizes[key] = size
        return size


def span_of(grant: DeviceGrant) -> HomeKey:
    """Where on its GPU the device of a booking is; of a share, which home it is in."""
    return grant.profile, grant.start, grant.size


def _in_each_others_way(one: DeviceGrant, other: DeviceGrant) -> bool:
    """Whether two bookings of one GPU overlap and are not shares of one home."""
    if one.share is not None and other.share is not None and span_of(one) == span_of(other):
        return False
    return one.start < other.start + other.size and other.start < one.start + one.size

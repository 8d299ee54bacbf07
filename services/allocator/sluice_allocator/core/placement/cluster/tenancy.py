"""Keeps the homes of shares up to date: a booked share moves into its home, and out when it is released. A home exists
from its first tenant to its last. If bookings contradict each other (two trust domains in one home, or an overlapping
instance), the home is mixed and takes no more tenants."""

from collections.abc import Mapping

from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.messages import Booking, DeviceGrant
from sluice_allocator.core.placement.index.device_index import DeviceIndex
from sluice_allocator.core.placement.nodes.gpu import Gpu, SharedDeviceOnGpu, overlap, span_of
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.core.placement.nodes.shared_device import DeviceKey, SharedDevice, SharedDeviceSize
from sluice_allocator.core.placement.spec.config import DEFAULT_POOL, PlacementConfig


class Tenancy:
    """The homes of all GPUs of a cluster."""

    def __init__(
        self,
        rules: PlacementConfig,
        nodes: Mapping[NodeName, Node],
        bookings: Mapping[AllocationId, Booking],
        index: DeviceIndex,
    ) -> None:
        self._rules, self._nodes, self._bookings, self._index = rules, nodes, bookings, index
        self.sizes: dict[tuple[object, ...], SharedDeviceSize] = {}  # equal for all clusters with the same rules

    def add_share(self, gpu: Gpu, key: DeviceKey, grant: DeviceGrant) -> SharedDeviceOnGpu | None:
        """Put a share into its home, which its first tenant creates."""
        share = grant.share
        if share is None:
            return None
        span = span_of(grant)
        at_home = gpu.homes.get(span)
        domain = (self._bookings[key[0]].namespace, share.uid)
        if at_home is None:
            home = SharedDevice(self.size(gpu, grant.profile), share.mode, domain)
            home.mixed = any(_conflict(grant, other) for other in gpu.spans.values())
            at_home = gpu.homes[span] = SharedDeviceOnGpu(gpu, span, home)
        elif (at_home.home.domain, at_home.home.mode) != (domain, share.mode):
            at_home.home.mixed = True
        at_home.home.add(key, share)
        return at_home

    def contest(self, node: Node, gpu: Gpu, grant: DeviceGrant) -> None:
        """A booking that is no share of an existing home: homes that it overlaps take no tenants."""
        for at_home in gpu.homes.values():
            tenants = (each for each in gpu.spans.values() if each.share is not None and span_of(each) == at_home.key)
            if not at_home.home.mixed and _conflict(grant, next(tenants)):
                at_home.home.mixed = True
                self._index.home_changed(node, at_home)

    def resolve_mixed(self, node: Node, gpu: Gpu, at_home: SharedDeviceOnGpu) -> None:
        """A booking left a GPU with a mixed home: work out again which domain has it, and what overlaps."""
        left = [(k, g) for k, g in gpu.spans.items() if g.share is not None and span_of(g) == at_home.key]
        if any(allocation not in self._bookings for (allocation, _), _ in left):
            return  # of the same pod, leaving too
        home = at_home.home
        at_home.home = SharedDevice(home.size, home.mode, home.domain)
        del gpu.homes[at_home.key]
        for key, grant in left:
            self.add_share(gpu, key, grant)
        self._index.home_changed(node, at_home)
        self._index.home_changed(node, gpu.homes[at_home.key])

    def resize(self, gpu: Gpu) -> None:
        """Apply the pool's changed limits."""
        if gpu.homes:
            gpu.homes = {}
            for key, grant in gpu.spans.items():
                self.add_share(gpu, key, grant)

    def remove_share(self, gpu: Gpu, key: DeviceKey, grant: DeviceGrant) -> SharedDeviceOnGpu | None:
        """Take a share out of its home, which ends with its last tenant. Returns the home, empty or not."""
        at_home = gpu.homes.get(span_of(grant)) if grant.share is not None else None
        if at_home is not None:
            at_home.home.remove(key)
            if not at_home.home.shares:
                del gpu.homes[at_home.key]
        return at_home

    def size(self, gpu: Gpu, profile: str | None) -> SharedDeviceSize:
        """The size of a home of this profile (None: the whole GPU) on this GPU; equal sizes are one object."""
        node = self._nodes[gpu.node]
        pool = node.labels.get(self._rules.pool_label, DEFAULT_POOL)
        key = (gpu.kind, profile, pool, node.time_quota)
        size = self.sizes.get(key)
        if size is None:
            percent = self._rules.pool(pool).overcommit_percent
            size = gpu.home_size(profile, taking_turns=node.time_quota, overcommit_percent=percent)
            self.sizes[key] = size
        return size


def _conflict(one: DeviceGrant, other: DeviceGrant) -> bool:
    """Whether two bookings of one GPU overlap and are not shares of one home."""
    share_one = one.share is not None and other.share is not None and span_of(one) == span_of(other)
    return not share_one and overlap(one, other)

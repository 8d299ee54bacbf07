"""
Where everything is: what nodes have, what is booked on it, and the shelves on which searches find what is free.

Each fact and each booking moves only what it changes. The fleet knows places, not requests' lives; it must not decide
whether somebody should get one, nor where (that is `search`).
"""

from sluice.contracts.ids import AllocationId, GpuUuid, NodeName
from sluice.contracts.messages import Booking, DeviceGrant, GpuReport, HostFacts, NodeSnapshot
from sluice.contracts.refusals import WaitReason
from sluice.mig.model import GpuModel
from sluice.mig.table import table_of
from sluice_allocator.core.placement.gpus import (
    Gpu,
    HomeKey,
    HomeOnGpu,
    Models,
    SpanKey,
    instances_of_others,
    out_of_use,
)
from sluice_allocator.core.placement.homes import Home, HomeSize
from sluice_allocator.core.placement.hosts import Node
from sluice_allocator.core.placement.rules import DEFAULT_POOL, PlacingRules
from sluice_allocator.core.placement.stock import Stock
from sluice_allocator.core.placement.wants import Wants


class Fleet:
    """All nodes, all GPUs and all bookings."""

    def __init__(self, rules: PlacingRules = PlacingRules()) -> None:  # noqa: B008  # frozen
        """Begin with no node and nothing booked."""
        self.rules = rules
        self.gpus: dict[GpuUuid, Gpu] = {}
        self.nodes: dict[NodeName, Node] = {}
        self.stock = Stock(rules, self.why_unusable)
        self.wants = Wants(rules)
        self.shown: dict[NodeName, None] = {}
        """The nodes whose inventory is there."""
        self._hosts: dict[NodeName, HostFacts] = {}
        self._unusable: dict[NodeName, WaitReason] = {}
        self._cordoned: dict[NodeName, frozenset[GpuUuid]] = {}
        """Single GPUs that an operator said not to use."""
        self._bookings: dict[AllocationId, Booking] = {}
        self._awaited: dict[GpuUuid, dict[SpanKey, DeviceGrant]] = {}
        """Bookings on GPUs that no inventory has shown yet."""
        self._models = Models()
        self._sizes: dict[tuple[object, ...], HomeSize] = {}

    # -- what nodes have ------------------------------------------------------------------------------------------

    def show(self, snapshot: NodeSnapshot) -> None:
        """Take in what a node has. Bookings stay as they are."""
        node = self._node(snapshot.node)
        self.stock.withdraw(node)
        shown = {report.uuid: None for report in snapshot.gpus}
        for gpu in node.all_gpus:
            if gpu.report.uuid not in shown:
                self._lose(gpu)
        modes = self.rules.modes_of(node.name)
        node.modes = tuple(mode for mode in snapshot.modes if modes is None or mode in modes)
        node.time_quota = snapshot.time_quota
        gpus = [self._show_gpu(node.name, report) for report in snapshot.gpus]
        self.shown[node.name] = None
        node.all_gpus = tuple(sorted(gpus, key=lambda gpu: gpu.report.index))
        self.stock.offer(node)

    def _node(self, name: NodeName) -> Node:
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(len(self.stock.nodes), name)
            self.stock.nodes.append(node)
            node.learn(self._hosts.get(name))
        return node

    def _show_gpu(self, node: NodeName, report: GpuReport) -> Gpu:
        model = self._models.of(report)
        kind = f"{model.key} {report.model}{' with MIG' if report.mig_enabled else ''} {report.mps_clients_max}"
        before = self.gpus.get(report.uuid)
        spans = before.spans if before is not None else self._awaited.pop(report.uuid, {})
        gpu = Gpu(node, report, model, table_of(model), kind, out_of_use(report), instances_of_others(report), spans)
        self.gpus[report.uuid] = gpu
        for key, grant in spans.items():
            self._move_in(gpu, key, grant)
        gpu.recompute()
        return gpu

    def _lose(self, gpu: Gpu) -> None:
        if self.gpus.get(gpu.report.uuid) is gpu:  # else another node has shown it since
            del self.gpus[gpu.report.uuid]
            if gpu.spans:
                self._awaited[gpu.report.uuid] = gpu.spans

    def forget_node(self, name: NodeName) -> None:
        """The node's inventory is not there any more."""
        node = self.nodes.get(name)
        if node is not None:
            self.stock.withdraw(node)
            for gpu in node.all_gpus:
                self._lose(gpu)
            node.all_gpus = ()
        self.shown.pop(name, None)
        self._unusable.pop(name, None)
        self._cordoned.pop(name, None)

    def set_host(self, name: NodeName, facts: HostFacts | None) -> bool:
        """What a node has besides GPUs; None when nothing is said of it. True when that changed."""
        if self._hosts.get(name) == facts:
            return False
        if facts is None:
            del self._hosts[name]
        else:
            self._hosts[name] = facts
        node = self.nodes.get(name)
        if node is not None:
            self.stock.withdraw(node)
            node.learn(facts)
            for gpu in node.all_gpus:
                self._resize_homes(gpu)
            self.stock.offer(node)
        return True

    def set_usable(self, name: NodeName, why_not: WaitReason | None) -> bool:
        """Use a node's GPUs for new slices, or do not and say why. True when that changed."""
        if self._unusable.get(name) == why_not and name in self.nodes:
            return False
        if why_not is None:
            self._unusable.pop(name, None)
        else:
            self._unusable[name] = why_not
        self._offer_anew(name)
        return True

    def cordon(self, name: NodeName, gpus: frozenset[GpuUuid]) -> bool:
        """Give nothing more on exactly these GPUs of a node. True when that changed."""
        if self._cordoned.get(name, frozenset()) == gpus:
            return False
        self._cordoned[name] = gpus
        self._offer_anew(name)
        return True

    def _offer_anew(self, name: NodeName) -> None:
        node = self.nodes.get(name)
        if node is not None:
            self.stock.withdraw(node)
            self.stock.offer(node)

    def why_unusable(self, gpu: Gpu) -> WaitReason | None:
        """Why a GPU may not be used for new slices; None when it may."""
        reason = self._unusable.get(gpu.node)
        if reason is not None:
            return reason
        facts = self._hosts.get(gpu.node)
        if (facts is not None and facts.cordoned) or gpu.report.uuid in self._cordoned.get(gpu.node, ()):
            return WaitReason.NODE_CORDONED
        return None if gpu.report.healthy else WaitReason.GPU_UNHEALTHY

    def usable_nodes(self) -> int:
        """How many nodes have a GPU that may be given."""
        return sum(len(each.nodes) for each in self.stock.classes.values())

    def models(self) -> list[GpuModel]:
        """The models that live GPUs have reported."""
        return self._models.all()

    # -- bookings -------------------------------------------------------------------------------------------------

    def book(self, booking: Booking) -> None:
        """These places are taken. Booking the same twice is once."""
        allocation = booking.allocation
        known = self._bookings.get(allocation)
        if known is not None:
            if known is booking or known == booking:
                return
            self.unbook(allocation)
        self._bookings[allocation] = booking
        node = self._node(booking.node)
        node.take(allocation, booking.room)
        for number, grant in enumerate(booking.devices):
            gpu = self.gpus.get(grant.gpu)
            if gpu is None:
                self._awaited.setdefault(grant.gpu, {})[allocation, number] = grant
                continue
            gpu.spans[allocation, number] = grant
            at_home = self._move_in(gpu, (allocation, number), grant)
            if at_home is None or at_home.home.tenants == 1:
                self._contest(node, gpu, grant)
                gpu.step(grant, booked=True)
                self.stock.changed(node, gpu)
            if at_home is not None:
                self.stock.home_changed(node, at_home)
        self.stock.settle(node, more_room=False)

    def unbook(self, allocation: AllocationId) -> bool:
        """These places are free. False when they were not booked."""
        booking = self._bookings.pop(allocation, None)
        if booking is None:
            return False
        node = self._node(booking.node)
        node.give_back(allocation)
        for number, grant in enumerate(booking.devices):
            gpu = self.gpus.get(grant.gpu)
            if gpu is None:
                spans = self._awaited.get(grant.gpu, {})
                spans.pop((allocation, number), None)
                if not spans:
                    self._awaited.pop(grant.gpu, None)
                continue
            gpu.spans.pop((allocation, number), None)
            at_home = self._move_out(gpu, (allocation, number), grant)
            if at_home is None or at_home.home.empty:
                gpu.step(grant, booked=False)
                self.stock.changed(node, gpu)
            if at_home is not None:
                self.stock.home_changed(node, at_home)
            for mixed in [other for other in gpu.homes.values() if other.home.mixed]:
                self._draw_anew(node, gpu, mixed)
        self.stock.settle(node, more_room=booking.room.cpu_milli > 0 or booking.room.memory_mib > 0)
        return True

    def booked(self) -> dict[AllocationId, Booking]:
        """All bookings."""
        return dict(self._bookings)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _move_in(self, gpu: Gpu, key: SpanKey, grant: DeviceGrant) -> HomeOnGpu | None:
        """A share gets its place in its home, which is there from its first tenant on."""
        share = grant.share
        if share is None:
            return None
        span = _span(grant)
        at_home = gpu.homes.get(span)
        domain = (self._bookings[key[0]].namespace, share.uid)
        if at_home is None:
            home = Home(self.home_size(gpu, grant.profile), share.mode, domain)
            home.mixed = any(_in_each_others_way(grant, other) for other in gpu.spans.values())
            at_home = gpu.homes[span] = HomeOnGpu(gpu, span, home)
        elif (at_home.home.domain, at_home.home.mode) != (domain, share.mode):
            at_home.home.mixed = True
        at_home.home.add(key, share)
        return at_home

    def _contest(self, node: Node, gpu: Gpu, grant: DeviceGrant) -> None:
        """Something was booked that is no share of a home that is there: those that it overlaps take nobody."""
        for at_home in gpu.homes.values():
            tenants = (other for other in gpu.spans.values() if other.share is not None and _span(other) == at_home.key)
            if not at_home.home.mixed and _in_each_others_way(grant, next(tenants)):
                at_home.home.mixed = True
                self.stock.home_changed(node, at_home)

    def _draw_anew(self, node: Node, gpu: Gpu, at_home: HomeOnGpu) -> None:
        """Something went from a GPU with a mixed home: it may be clear now whose it is, and what overlaps it."""
        left = [(k, g) for k, g in gpu.spans.items() if g.share is not None and _span(g) == at_home.key]
        if any(allocation not in self._bookings for (allocation, _), _ in left):
            return  # of the same pod, and going too
        home = at_home.home
        at_home.home = Home(home.size, home.mode, home.domain)
        del gpu.homes[at_home.key]
        for key, grant in left:
            self._move_in(gpu, key, grant)
        self.stock.home_changed(node, at_home)
        self.stock.home_changed(node, gpu.homes[at_home.key])

    def _resize_homes(self, gpu: Gpu) -> None:
        """What a pool allows may differ from what the pool before allowed."""
        if gpu.homes:
            gpu.homes = {}
            for key, grant in gpu.spans.items():
                self._move_in(gpu, key, grant)

    def _move_out(self, gpu: Gpu, key: SpanKey, grant: DeviceGrant) -> HomeOnGpu | None:
        at_home = gpu.homes.get(_span(grant)) if grant.share is not None else None
        if at_home is not None:
            at_home.home.remove(key)
            if at_home.home.empty:
                del gpu.homes[at_home.key]
        return at_home

    def home_size(self, gpu: Gpu, profile: str | None) -> HomeSize:
        """How large a home of this profile (None: the whole GPU) would be on this GPU; equal sizes are one object."""
        node = self.nodes[gpu.node]
        pool = node.labels.get(self.rules.pool_label, DEFAULT_POOL)
        key = (gpu.kind, profile, pool, node.time_quota)
        size = self._sizes.get(key)
        if size is None:
            percent = self.rules.pool(pool).overcommit_percent
            size = gpu.home_size(profile, taking_turns=node.time_quota, overcommit_percent=percent)
            self._sizes[key] = size
        return size


def _span(grant: DeviceGrant) -> HomeKey:
    return grant.profile, grant.start, grant.size


def _in_each_others_way(one: DeviceGrant, other: DeviceGrant) -> bool:
    """Whether two bookings of one GPU overlap and are not shares of one home."""
    if one.share is not None and other.share is not None and _span(one) == _span(other):
        return False
    return one.start < other.start + other.size and other.start < one.start + one.size

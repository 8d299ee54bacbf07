"""The state of all nodes: what they have, what is booked on it, and the buckets in which `search` finds what is free.
Each fact and each booking updates only what it changes."""

from collections.abc import Iterable

from sluice.contracts.ids import AllocationId, GpuUuid, NodeName
from sluice.contracts.messages import Booking, DeviceGrant, GpuReport, HostFacts, NodeSnapshot
from sluice.contracts.quotas.usage import Usage, total, usage_of_device
from sluice.contracts.reasons import WaitReason
from sluice.mig.fixed_layout_table import fixed_layout_table_of
from sluice.mig.model import GpuModel
from sluice.mig.transition_table import table_of
from sluice_allocator.core.key_index import drop
from sluice_allocator.core.placement.affinity.peers import Peers
from sluice_allocator.core.placement.cluster.namespace_usage import NamespaceUsage
from sluice_allocator.core.placement.cluster.tenancy import Tenancy
from sluice_allocator.core.placement.index.device_index import DeviceIndex
from sluice_allocator.core.placement.index.victim_index import Victim
from sluice_allocator.core.placement.nodes import gpu as gpus
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpecs
from sluice_allocator.core.placement.nodes.gpu import Gpu, GpuModels, SharedDeviceOnGpu, span_of
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.core.placement.nodes.shared_device import DeviceKey
from sluice_allocator.core.placement.spec.config import PlacementConfig


class ClusterState:
    """All nodes, all GPUs and all bookings."""

    def __init__(self, rules: PlacementConfig = PlacementConfig(), peers: Peers | None = None) -> None:  # noqa: B008  # frozen
        """`peers`: those of another cluster, which this one does not change."""
        self.rules = rules
        self.gpus: dict[GpuUuid, Gpu] = {}
        self.nodes: dict[NodeName, Node] = {}
        self.index = DeviceIndex(rules, self.why_unusable)
        self.namespace_usage = NamespaceUsage()
        self.peers = peers if peers is not None else Peers()
        self._is_trial = peers is not None
        self.specs = DeviceSpecs(rules)
        self.shown: dict[NodeName, None] = {}  # the nodes with an inventory
        self._hosts: dict[NodeName, HostFacts] = {}
        self._unusable: dict[NodeName, tuple[WaitReason, ...]] = {}
        self._cordoned: dict[NodeName, frozenset[GpuUuid]] = {}  # single GPUs that an operator cordoned
        self._bookings: dict[AllocationId, Booking] = {}
        self._awaited: dict[GpuUuid, dict[DeviceKey, DeviceGrant]] = {}  # on GPUs that no inventory shows (yet)
        self._lost: dict[GpuUuid, Gpu] = {}  # such GPUs as they were shown last
        self._models = GpuModels()
        self.tenancy = Tenancy(rules, self.nodes, self._bookings, self.index)

    def show(self, snapshot: NodeSnapshot) -> None:
        """Update a node's GPUs from its snapshot. Bookings stay."""
        node = self._node(snapshot.node)
        self.index.withdraw(node)
        shown = {report.uuid: None for report in snapshot.gpus}
        for gpu in node.all_gpus:
            if gpu.report.uuid not in shown:
                self._lose(gpu)
        modes = self.rules.modes_of(node.name)
        node.modes = tuple(mode for mode in snapshot.modes if modes is None or mode in modes)
        node.time_quota = snapshot.time_quota
        node.hands_over = snapshot.kubelet_hands_over
        all_gpus = [self._show_gpu(node.name, report) for report in snapshot.gpus]
        self.shown[node.name] = None
        self._tell_peers(node.name)
        node.all_gpus = tuple(sorted(all_gpus, key=lambda gpu: gpu.report.index))
        self.index.offer(node)

    def _node(self, name: NodeName) -> Node:
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(len(self.index.nodes), name)
            if self.rules.pods_per_node_max is not None:
                node.pods_max = self.rules.pods_per_node_max
            self.index.nodes.append(node)
            node.learn(self._hosts.get(name))
        return node

    def _show_gpu(self, node: NodeName, report: GpuReport) -> Gpu:
        before = self.gpus.get(report.uuid)
        last = before if before is not None else self._lost.pop(report.uuid, None)
        if not report.memory_mib and last is not None:
            report = gpus.as_known_last(report, last.report)
        model = self._models.of(report)
        kind = f"{model.key} {report.model}{' with MIG' if report.mig_enabled else ''} {report.mps_clients_max}"
        spans = before.spans if before is not None else self._awaited.pop(report.uuid, {})
        layout = gpus.layout_of(report, model)
        table = table_of(model) if layout is None else fixed_layout_table_of(model, layout)
        kind += f" fixed as {' '.join(f'{i.profile}:{i.start}' for i in layout)}" if layout is not None else ""
        gpu = Gpu(node, report, model, table, kind, gpus.out_of_use(report), gpus.instances_of_others(report), spans)
        gpu.layout = layout
        self.gpus[report.uuid] = gpu
        before_model = last.model if last is not None else None
        for key, grant in spans.items():
            if before_model is not model:
                then, now = usage_of_device(grant, before_model), usage_of_device(grant, model)
                self.namespace_usage.change(self._bookings[key[0]].namespace, then, now)
            self.tenancy.add_share(gpu, key, grant)
        gpu.recompute()
        return gpu

    def _lose(self, gpu: Gpu) -> None:
        if self.gpus.get(gpu.report.uuid) is gpu:  # else another node has shown it since
            del self.gpus[gpu.report.uuid]
            if gpu.spans:
                self._awaited[gpu.report.uuid] = gpu.spans
                self._lost[gpu.report.uuid] = gpu

    def forget_node(self, name: NodeName) -> None:
        node = self.nodes.get(name)
        if node is not None:
            self.index.withdraw(node)
            for gpu in node.all_gpus:
                self._lose(gpu)
            node.all_gpus = ()
        self.shown.pop(name, None)
        self._tell_peers(name)
        self._unusable.pop(name, None)
        self._cordoned.pop(name, None)

    def host(self, name: NodeName) -> HostFacts | None:
        return self._hosts.get(name)

    def set_host(self, name: NodeName, facts: HostFacts | None) -> bool:
        """Set a node's facts besides GPUs; None when there are none. True when that changed."""
        if self._hosts.get(name) == facts:
            return False
        if facts is None:
            del self._hosts[name]
        else:
            self._hosts[name] = facts
        self._tell_peers(name)
        node = self.nodes.get(name)
        if node is not None:
            self.index.withdraw(node)
            node.learn(facts)
            for gpu in node.all_gpus:
                self.tenancy.resize(gpu)
            self.index.offer(node)
        return True

    def _tell_peers(self, name: NodeName) -> None:
        if not self._is_trial:
            self.peers.see(name, self._hosts.get(name), is_shown=name in self.shown)

    def set_usable(self, name: NodeName, *why_not: WaitReason) -> bool:
        """Allow new slices on a node's GPUs, or forbid them for all of these reasons, of which the first is shown. True
        when any of them changed."""
        if self._unusable.get(name, ()) == why_not and name in self.nodes:
            return False
        self._unusable.pop(name, None)
        if why_not:
            self._unusable[name] = why_not
        self._offer_anew(name)
        return True

    def cordon(self, name: NodeName, gpus: frozenset[GpuUuid]) -> bool:
        """Cordon exactly these GPUs of a node. True when that changed."""
        if self._cordoned.get(name, frozenset()) == gpus:
            return False
        self._cordoned[name] = gpus
        self._offer_anew(name)
        return True

    def _offer_anew(self, name: NodeName) -> None:
        node = self.nodes.get(name)
        if node is not None:
            self.index.withdraw(node)
            self.index.offer(node)

    def why_unusable(self, gpu: Gpu) -> WaitReason | None:
        """Why a GPU takes no new slices; None when it does."""
        reasons = self._unusable.get(gpu.node)
        return reasons[0] if reasons is not None else self._why_gpu_unusable(gpu)

    def _why_gpu_unusable(self, gpu: Gpu) -> WaitReason | None:
        facts = self._hosts.get(gpu.node)
        if (facts is not None and facts.cordoned) or gpu.report.uuid in self._cordoned.get(gpu.node, ()):
            return WaitReason.NODE_CORDONED
        return None if gpu.report.healthy else WaitReason.GPU_UNHEALTHY

    def is_out_of_use(self, booking: Booking) -> bool:
        """Whether a booked GPU is cordoned or unhealthy, whatever else is the matter with its node."""
        shown = [gpu for device in booking.devices if (gpu := self.gpus.get(device.gpu)) is not None]
        is_cordoned = any(WaitReason.NODE_CORDONED in self._unusable.get(gpu.node, ()) for gpu in shown)
        return is_cordoned or any(map(self._why_gpu_unusable, shown))

    def gpus_of(self, model: str) -> int:
        """How many GPUs of a product are usable. Walks over kinds of GPUs, never over GPUs."""
        samples = ((group, gpu) for group in self.index.classes.values() for gpu in group.samples.values())
        return sum(group.in_use(gpu.kind) for group, gpu in samples if gpu.report.model == model)

    def models_of(self, booking: Booking) -> tuple[str, ...]:
        """The product of each GPU of a booking, as far as they are shown."""
        found = (self.gpus.get(uuid) for uuid in dict.fromkeys(device.gpu for device in booking.devices))
        return tuple(gpu.report.model for gpu in found if gpu is not None)

    def usable_nodes(self) -> int:
        return sum(len(each.nodes) for each in self.index.classes.values())

    def models(self) -> list[GpuModel]:
        return self._models.all

    def book(self, booking: Booking) -> bool:
        """Book these places; repeating it changes nothing. True when it replaced a booking of other places."""
        allocation = booking.allocation
        known = self._bookings.get(allocation)
        is_open = True
        if known is not None:
            if known is booking or known == booking:
                return False
            is_open = self.namespace_usage.is_open(known.namespace, allocation)
            not_shown = {each.gpu: self._lost[each.gpu] for each in booking.devices if each.gpu in self._lost}
            self.unbook(allocation)
            self._lost |= not_shown  # something is still booked there
        self._bookings[allocation] = booking
        self.namespace_usage.book(booking.namespace, allocation, self.usage_of(booking.devices), is_open=is_open)
        node = self._node(booking.node)
        node.take(allocation, booking.room)
        if not self._is_trial:
            self.peers.book(allocation, booking.request, booking.node)
        for number, grant in enumerate(booking.devices):
            gpu = self.gpus.get(grant.gpu)
            if gpu is None:
                self._awaited.setdefault(grant.gpu, {})[allocation, number] = grant
                continue
            there = self.nodes[gpu.node]
            gpu.spans[allocation, number] = grant
            at_home = self.tenancy.add_share(gpu, (allocation, number), grant)
            if at_home is None or len(at_home.home.shares) == 1:
                self.tenancy.contest(there, gpu, grant)
                gpu.step(grant, booked=True)
                self.index.changed(there, gpu)
            self._settle_gpu(node, there, gpu, at_home)
        self.index.settle(node, more_room=False)
        return known is not None and known.devices != booking.devices

    def unbook(self, allocation: AllocationId) -> bool:
        """Free these places. False when they were not booked."""
        self.spare(allocation)
        booking = self._bookings.pop(allocation, None)
        if booking is None:
            return False
        self.namespace_usage.unbook(booking.namespace, allocation, self.usage_of(booking.devices))
        node = self._node(booking.node)
        node.give_back(allocation)
        if not self._is_trial:
            self.peers.unbook(allocation)
        for number, grant in enumerate(booking.devices):
            gpu = self.gpus.get(grant.gpu)
            if gpu is None:
                drop(self._awaited, grant.gpu, (allocation, number))
                if grant.gpu not in self._awaited:
                    self._lost.pop(grant.gpu, None)
                continue
            there = self.nodes[gpu.node]
            gpu.spans.pop((allocation, number), None)
            at_home = self.tenancy.remove_share(gpu, (allocation, number), grant)
            if at_home is None or not at_home.home.shares:
                gpu.step(grant, booked=False)
                self.index.changed(there, gpu)
            if at_home is not None:
                self.index.home_changed(there, at_home)
            for mixed in [other for other in gpu.homes.values() if other.home.mixed]:
                self.tenancy.resolve_mixed(there, gpu, mixed)
            self._settle_gpu(node, there, gpu)
        self.index.settle(node, more_room=booking.room.cpu_milli > 0 or booking.room.memory_mib > 0 or node.pods == 1)
        return True

    def _settle_gpu(self, node: Node, there: Node, gpu: Gpu, at_home: SharedDeviceOnGpu | None = None) -> None:
        """A card that moved to another machine while booked in the first one's ledger counts where it is."""
        if at_home is not None:
            self.index.home_changed(there, at_home)
        self.index.look_at_victims(there, gpu)
        if there is not node:
            self.index.settle(there, more_room=False)

    def offer_victim(self, allocation: AllocationId, priority: int, *, guarded: bool) -> None:
        """Make an allocation a candidate for eviction by requests of higher priority."""
        booking = self._bookings.get(allocation)
        if booking is None:
            return
        memory_mib = self.usage_of(booking.devices).memory_mib
        known = self.index.victims.known.get(allocation)
        if known is None or (known.priority, known.memory_mib, known.guarded) != (priority, memory_mib, guarded):
            victim = Victim(allocation, priority, booking.namespace, memory_mib, booking.room, guarded)
            self.index.victims.offer(victim, booking.node)
            self._look_at_victims(booking)

    def spare(self, allocation: AllocationId) -> None:
        if allocation in self.index.victims.known:
            booking = self._bookings[allocation]
            self.index.victims.withdraw(allocation, booking.node)
            self._look_at_victims(booking)

    def _look_at_victims(self, booking: Booking) -> None:
        node = self._node(booking.node)
        for uuid in dict.fromkeys(grant.gpu for grant in booking.devices):
            gpu = self.gpus.get(uuid)
            if gpu is not None and gpu in node.gpus:
                self.index.victims.look_at(node, self.index.class_of(node), gpu)
        if node.gpus:
            for counted in self.index.victims.counted.in_class(self.index.class_of(node)):
                counted.put(node)

    def without_nodes(self) -> "ClusterState":
        """A trial cluster under the same rules and beside the same pods, to which nodes may be added."""
        trial = ClusterState(self.rules, self.peers)
        trial.specs, trial._models = self.specs, self._models  # true of any cluster
        trial.tenancy.sizes = self.tenancy.sizes
        return trial

    def alone(self, snapshot: NodeSnapshot) -> "ClusterState":
        """A trial cluster of one node as shown here, with all its bookings. Costs what the node's bookings cost;
        changes to it do not affect this cluster. Pods removed there still count for other pods' terms (`peers`)."""
        name, trial = snapshot.node, self.without_nodes()
        trial.set_host(name, self._hosts.get(name))
        trial.show(snapshot)
        trial.set_usable(name, *self._unusable.get(name, ()))
        trial.cordon(name, self._cordoned.get(name, frozenset()))
        there = self.nodes[name]
        moved = {allocation: None for gpu in there.all_gpus for allocation, _ in gpu.spans}
        for allocation in {**there.taken, **moved}:
            trial.book(self._bookings[allocation])
        return trial

    def has_room_beside(self, booking: Booking) -> bool:
        """Whether booked shares fit in their homes, and their pod on its node, beside all other bookings there. False
        for what is no share."""
        node = self.nodes.get(booking.node)
        if node is None or node.overbooked:
            return False
        return all(self._has_home_room(device) for device in booking.devices)

    def _has_home_room(self, grant: DeviceGrant) -> bool:
        gpu = self.gpus.get(grant.gpu)
        at_home = gpu.homes.get(span_of(grant)) if gpu is not None and grant.share is not None else None
        return at_home is not None and not at_home.home.overbooked

    def booked(self) -> dict[AllocationId, Booking]:
        return dict(self._bookings)

    def booking(self, allocation: AllocationId) -> Booking | None:
        return self._bookings.get(allocation)

    def usage_of(self, devices: Iterable[DeviceGrant]) -> Usage:
        parts = []
        for grant in devices:
            gpu = self.gpus.get(grant.gpu) or self._lost.get(grant.gpu)
            parts.append(usage_of_device(grant, gpu.model if gpu is not None else None))
        return parts[0] if len(parts) == 1 else total(parts)

    def memory_mib(self, allocations: Iterable[AllocationId]) -> int:
        """The memory of all devices of these bookings, in MiB; 0 for what is not booked."""
        bookings = (self._bookings.get(allocation) for allocation in allocations)
        return sum(self.usage_of(booking.devices).memory_mib for booking in bookings if booking is not None)

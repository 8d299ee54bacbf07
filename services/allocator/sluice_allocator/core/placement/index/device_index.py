"""Every usable device in the bucket where searches look for its kind. A booking updates one node's buckets."""

from collections.abc import Callable, Iterator
from itertools import chain

from sluice.contracts.ids import GpuUuid, NodeName
from sluice.contracts.kube.names import LABEL_HOSTNAME
from sluice.contracts.kube.taints import KEEPS_OUT
from sluice.contracts.messages import HostNeeds
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.key_index import count, drop, put
from sluice_allocator.core.placement.index import node_class
from sluice_allocator.core.placement.index.layout_order import LayoutOrders
from sluice_allocator.core.placement.index.node_class import (
    ClassKey,
    DeviceCountCache,
    DeviceCounts,
    NodeClass,
    SharedDevicesKey,
)
from sluice_allocator.core.placement.index.victim_index import VictimIndex
from sluice_allocator.core.placement.nodes.bucket import Bucket, SortedBuckets
from sluice_allocator.core.placement.nodes.gpu import Gpu, SharedDeviceOnGpu
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.core.placement.nodes.node_shape import NodeShape, shape_of_gpus
from sluice_allocator.core.placement.spec.config import DEFAULT_POOL, PlacementConfig
from sluice_allocator.core.placement.spec.place_request import PASSING, keys_of, meaning_of

OutClass = tuple[int, WaitReason, str]  # unusable GPUs: the number of their class of nodes, the reason, and their kind
SELECTED_KEYS_MAX = 32  # most labels that tell classes of nodes apart; selections by others check node by node
FEW_VALUES_MAX = 16  # a topology label tells classes apart while it has so few values: zones, not hosts
VALUES_PER_KEY_MAX = 64  # a label with more values belongs to single nodes (a host name): no classes


class DeviceIndex:
    """All nodes by number and class, and the buckets of their devices."""

    def __init__(self, rules: PlacementConfig, why_unusable: Callable[[Gpu], WaitReason | None]) -> None:
        self.nodes: list[Node] = []
        self.classes: dict[ClassKey, NodeClass] = {}
        self.layout_orders = LayoutOrders()
        self.counted = DeviceCountCache(self.nodes)
        self.victims = VictimIndex(self.nodes)
        self.weighed = False  # whether usage is kept: some policy orders nodes by it
        self.measured = False  # whether CPU per GPU is kept: some pod requests CPU
        self._rules, self._why_unusable = rules, why_unusable
        self._class_of: dict[NodeName, NodeClass] = {}
        self._numbered = 0  # how many classes were created; no number is used twice
        self._selected_by: dict[str, dict[str | None, None]] = {}  # labels that tell classes apart, with their values
        self._single: dict[str, dict[str, dict[Node, None]]] = {}
        """Nodes by value of labels that tell no classes apart, as far as requests selected by them."""
        self._of_hosts: dict[str, None] = {}  # topology labels that are checked on each node
        self._out: dict[OutClass, dict[GpuUuid, Gpu]] = {}
        self._out_of: dict[GpuUuid, OutClass] = {}

    def offer(self, node: Node) -> None:
        self._see_values(node)
        group = self._class_of[node.name] = self._sort(node)
        for key, values in self._single.items():
            if key in node.labels:
                put(values, node.labels[key], node)
        _count_in(node, group)
        usable: list[Gpu] = []
        for gpu in node.all_gpus:
            reason = self._why_unusable(gpu)
            if reason is None:
                usable.append(gpu)
            else:
                self._put_out(group, gpu, reason)
        node.gpus = tuple(usable)
        if usable:
            group.nodes[node.number] = node
        self._measure(node)
        node.cpu_per_gpu = node.current_cpu_per_gpu() if self.measured else 0
        self.weigh(node)
        for gpu in usable:
            group.samples.setdefault(gpu.kind, gpu)
            self._put(node, group, gpu)
            for at_home in gpu.homes.values():
                self._put_home(node, group, at_home)
            self.look_at_victims(node, gpu)
        self._touch_counts(node, group)

    def withdraw(self, node: Node) -> None:
        group = self._class_of.pop(node.name, None)
        if group is None:
            return
        for key, values in self._single.items():
            if key in node.labels:
                drop(values, node.labels[key], node)
        for gpu in node.all_gpus:
            self._take(node, group, gpu)
            for at_home in gpu.homes.values():
                self._take_home(node, group, at_home)
            out = self._out_of.pop(gpu.report.uuid, None)
            if out is not None:
                drop(self._out, out, gpu.report.uuid)
            self.victims.forget(gpu)
        node.gpus = ()
        if node.shape is not None:
            node.shape.count(node.offers, -1)
            if not node.shape.nodes:
                del group.shapes[node.shape_key]
            node.shape = None
        group.nodes.pop(node.number, None)
        for counted in self._counts(group):
            counted.take(node)

    def class_of(self, node: Node) -> NodeClass:
        return self._class_of[node.name]

    def changed(self, node: Node, gpu: Gpu) -> None:
        if gpu in node.gpus:
            group = self._class_of[node.name]
            self._take(node, group, gpu)
            self._put(node, group, gpu)
            self._count(node, gpu)

    def home_changed(self, node: Node, at_home: SharedDeviceOnGpu) -> None:
        if at_home.gpu not in node.gpus:
            return
        group = self._class_of[node.name]
        if at_home.bucket is not None and at_home.home.shares:
            self._move_home(node, group, at_home, at_home.bucket)
        else:
            self._take_home(node, group, at_home)
            if at_home.home.shares:
                self._put_home(node, group, at_home)
        self._count(node, at_home.gpu)

    def _move_home(self, node: Node, group: NodeClass, at_home: SharedDeviceOnGpu, bucket: Bucket) -> None:
        bucket_number = node_class.bucket_number_of(at_home.home)
        if bucket_number == at_home.bucket_number:
            return
        sorted_buckets = group.homes[_homes_key(at_home)]
        at_home.bucket = sorted_buckets.bucket_number(bucket_number)
        at_home.bucket.put(node)
        bucket.take(node)
        sorted_buckets.drop_if_empty(at_home.bucket_number)
        at_home.bucket_number = bucket_number

    def look_at_victims(self, node: Node, gpu: Gpu) -> None:
        if self.victims.known and gpu in node.gpus:
            self.victims.look_at(node, self._class_of[node.name], gpu)

    def settle(self, node: Node, *, more_room: bool) -> None:
        if not node.gpus:
            return
        group = self._class_of[node.name]
        if self.weighed:
            self.weigh(node)
        before = node.cpu_per_gpu
        cpu_per_gpu = node.current_cpu_per_gpu() if self.measured else before
        if cpu_per_gpu != before:
            node.cpu_per_gpu = cpu_per_gpu
            for bucket in node.buckets:
                bucket.move(node, before)
            for counted in self._counts(group):
                counted.move(node, before)
        elif more_room or self.weighed:
            for bucket in node.buckets:
                bucket.look_again(node)
        self._touch_counts(node, group)

    def _counts(self, group: NodeClass) -> Iterator[DeviceCounts]:
        return chain(self.counted.in_class(group), self.victims.counted.in_class(group))

    def _touch_counts(self, node: Node, group: NodeClass) -> None:
        if node.number in group.nodes:
            for counted in self._counts(group):
                counted.put(node)

    def _count(self, node: Node, gpu: Gpu) -> None:
        """Keep a node's free GPU total in step with one of its GPUs, where it is used."""
        if self.measured:
            percent = gpu.free_percent
            node.gpu_percent += percent - gpu.counted_percent
            gpu.counted_percent = percent

    def _put(self, node: Node, group: NodeClass, gpu: Gpu) -> None:
        if gpu.mig:
            states = group.states.setdefault(gpu.kind, {})
            bucket = states.get(gpu.state)
            if bucket is None:
                self.layout_orders.saw(gpu)
                bucket = states[gpu.state] = Bucket(self.nodes)
            gpu.bucket_state = gpu.state
        elif gpu.free_whole:
            bucket = group.whole.get(gpu.kind)
            if bucket is None:
                bucket = group.whole[gpu.kind] = Bucket(self.nodes)
        else:
            put(group.booked_whole, gpu.kind, gpu)
            return
        gpu.bucket = bucket
        bucket.put(node)

    def _take(self, node: Node, group: NodeClass, gpu: Gpu) -> None:
        bucket, gpu.bucket = gpu.bucket, None
        if bucket is None:
            if not gpu.mig and gpu in node.gpus:
                drop(group.booked_whole, gpu.kind, gpu)
            return
        bucket.take(node)
        if gpu.mig and not bucket:
            del group.states[gpu.kind][gpu.bucket_state]

    def _put_home(self, node: Node, group: NodeClass, at_home: SharedDeviceOnGpu) -> None:
        if not at_home.gpu.stands(at_home.key):
            return
        key = _homes_key(at_home)
        sorted_buckets = group.homes.get(key)
        if sorted_buckets is None:
            sorted_buckets = group.homes[key] = SortedBuckets(self.nodes)
            group.home_sizes[key[2:]] = at_home.home.size
            put(group.homes_of, key[:2], key)
        at_home.bucket_number = node_class.bucket_number_of(at_home.home)
        at_home.bucket = sorted_buckets.bucket_number(at_home.bucket_number)
        at_home.bucket.put(node)
        count(group.home_count, (at_home.gpu.kind, at_home.key[0]), 1)

    def _take_home(self, node: Node, group: NodeClass, at_home: SharedDeviceOnGpu) -> None:
        bucket, at_home.bucket = at_home.bucket, None
        if bucket is None:
            return
        count(group.home_count, (at_home.gpu.kind, at_home.key[0]), -1)
        bucket.take(node)
        key = _homes_key(at_home)
        group.homes[key].drop_if_empty(at_home.bucket_number)
        if not group.homes[key]:
            del group.homes[key]
            drop(group.homes_of, key[:2], key)

    def weigh(self, node: Node) -> None:
        if self.weighed and node.gpus:
            node.usage = node.weigh(self._class_of[node.name].pool.weights)

    def weigh_all(self) -> None:
        """Start keeping usage: some policy orders nodes by it."""
        if not self.weighed:
            self.weighed = True
            for node in self.nodes:
                if node.name in self._class_of:
                    self.settle(node, more_room=True)

    def keep_cpu_per_gpu(self) -> None:
        if not self.measured:
            self.measured = True
            for node in self.nodes:
                if node.name in self._class_of:
                    self._measure(node)
                    self.settle(node, more_room=True)

    def _measure(self, node: Node) -> None:
        for gpu in node.gpus:
            gpu.counted_percent = gpu.free_percent
        node.gpu_percent = sum(gpu.counted_percent for gpu in node.gpus)

    def _put_out(self, group: NodeClass, gpu: Gpu, reason: WaitReason) -> None:
        key = (group.number, reason, gpu.kind)
        self._out.setdefault(key, {})[gpu.report.uuid] = gpu
        self._out_of[gpu.report.uuid] = key

    def out_of_use(self) -> Iterator[tuple[NodeClass, WaitReason, Gpu, int]]:
        """Unusable GPUs: class of nodes, reason, one of them, and how many."""
        numbered = {each.number: each for each in self.classes.values()}
        for (number, reason, _), members in self._out.items():
            yield numbered[number], reason, next(iter(members.values())), len(members)

    def group_by_labels(self, needs: HostNeeds) -> bool:
        """Tell classes apart by the labels that a pod selects by; a new one regroups all nodes, for at most
        SELECTED_KEYS_MAX labels. True when nodes have to be checked one by one as well."""
        if not needs.node_selector and not needs.affinity and not needs.volumes:
            return False
        keys = keys_of(needs)
        for key in keys:
            if key not in self._selected_by and key not in self._single:
                self._select_by(key)
        return any(key not in self._selected_by for key in keys)

    def tells_apart(self, key: str) -> bool:
        """Whether all nodes of a class have the same value of a label."""
        return key in self._selected_by

    def group_by_topology(self, key: str) -> None:
        """Tell classes apart by a label of large domains, so that a domain that does not fit is skipped as a whole."""
        if key in self._selected_by or key in self._single or key in self._of_hosts:
            return
        if key == LABEL_HOSTNAME or len({node.labels.get(key) for node in self.nodes}) > FEW_VALUES_MAX:
            if len(self._of_hosts) >= SELECTED_KEYS_MAX:
                del self._of_hosts[next(iter(self._of_hosts))]
            self._of_hosts[key] = None
        else:
            self._select_by(key)

    def named_by(self, needs: HostNeeds) -> list[Node] | None:
        """The only nodes that match a pod's labels of single nodes; None when they are more than a few."""
        for key, value in needs.node_selector.items():
            if key in self._single:
                return list(self._single[key].get(value, {}))
        named: dict[Node, None] = {}
        for term in needs.affinity:
            single = [each for each in term if each.key in self._single and each.operator == "In"]
            if not single:
                return None
            for value in single[0].values:
                named |= self._single[single[0].key].get(value, {})
        return list(named) if needs.affinity else None

    def values_of(self, key: str) -> dict[str, None]:
        """The values of a label that some request selected by."""
        if key in self._single:
            return dict.fromkeys(self._single[key])
        return {group.labels[key]: None for group in self.classes.values() if group.shapes and key in group.labels}

    def has_label(self, key: str) -> bool:
        return key in self._of_hosts or bool(self.values_of(key))

    def _select_by(self, key: str) -> None:
        values = {node.labels.get(key) for node in self.nodes}
        if len(self._selected_by) >= SELECTED_KEYS_MAX or len(values) > VALUES_PER_KEY_MAX:
            self._keep_single(key)
            return
        self._selected_by[key] = dict.fromkeys(values)
        if values != {None}:
            self._regroup()

    def _keep_single(self, key: str) -> None:
        if len(self._single) >= SELECTED_KEYS_MAX:
            del self._single[next(iter(self._single))]
        single = self._single[key] = {}
        for node in self.nodes:
            if key in node.labels and node.name in self._class_of:
                put(single, node.labels[key], node)

    def _see_values(self, node: Node) -> None:
        """Drop a label from those that tell classes apart once it has too many values. Otherwise every node would
        become a class of its own, and each decision would look at all of them."""
        for key, values in list(self._selected_by.items()):
            values[node.labels.get(key)] = None
            if len(values) > VALUES_PER_KEY_MAX:
                del self._selected_by[key]
                self._keep_single(key)
                self._regroup()

    def _regroup(self) -> None:
        for node in self.nodes:
            if node.name in self._class_of:
                self.withdraw(node)
                self.offer(node)
        used = {group.number for group in self._class_of.values()} | {number for number, _, _ in self._out}
        self.classes = {key: group for key, group in self.classes.items() if group.number in used}

    def _sort(self, node: Node) -> NodeClass:
        labels = {key: node.labels[key] for key in self._selected_by if key in node.labels}
        pool = node.labels.get(self._rules.pool_label, DEFAULT_POOL)
        taints = tuple(taint for taint in node.taints if taint.effect in KEEPS_OUT)
        told = tuple((taint.key, taint.value, taint.effect) for taint in taints)
        alike = (node.modes, node.time_quota, node.hands_over)
        key = (pool, tuple(sorted(labels.items())), told, *alike)
        found = self.classes.get(key)
        if found is None:
            rules = self._rules.pool(pool)
            kept = [taint for taint in taints if meaning_of(taint) not in PASSING]
            words = [f"pool {pool}"] if pool != DEFAULT_POOL else []
            words += [f"{name}={value}" for name, value in sorted(labels.items())]
            words += [f"tainted {taint.key}={taint.value}:{taint.effect}" for taint in kept]
            found = NodeClass(self._numbered, key, ", ".join(words), rules, *alike, labels, taints)
            self._numbered += 1
            self.classes[key] = found
            if rules.node_policy not in {"fragmentation", "first-fit"}:
                self.weigh_all()
        return found


def _count_in(node: Node, group: NodeClass) -> None:
    node.shape_key, gpus = shape_of_gpus(node.all_gpus)
    node.shape = group.shapes.get(node.shape_key)
    if node.shape is None:
        node.shape = group.shapes[node.shape_key] = NodeShape(gpus)
    node.offers = node.facts.allocatable if node.facts is not None else None
    node.shape.count(node.offers, 1)


def _homes_key(at_home: SharedDeviceOnGpu) -> SharedDevicesKey:
    return (at_home.home.domain, at_home.home.mode, at_home.gpu.kind, at_home.key[0])

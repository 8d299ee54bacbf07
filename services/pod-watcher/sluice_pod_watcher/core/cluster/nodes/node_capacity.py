"""Track nodes besides GPUs: allocatable, less the requests of pods that are not ours, as sums. A node is published at
most once per `host_interval_s`, and only after pods and nodes were both listed; earlier it would promise too much."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import Any

from msgspec.structs import replace

from sluice.contracts.ids import NodeName
from sluice.contracts.kube import quantities, selectors
from sluice.contracts.kube.taints import blocking_predicate
from sluice.contracts.messages import NO_NEEDS, HostFacts, HostNeeds, HostPort, HostRoom, Taint, Toleration
from sluice.contracts.pod_specs import read_host_needs
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import is_gpu_resource
from sluice_pod_watcher.core.cluster import events
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.events import mapping_in
from sluice_pod_watcher.core.cluster.listed_objects import Listing
from sluice_pod_watcher.core.cluster.nodes.affinity_index import (
    OTHERS_MAX,
    PORTS_MAX,
    AffinityIndex,
    PodSignature,
    signature_of,
)
from sluice_pod_watcher.core.cluster.placeholders.placeholders import is_placeholder
from sluice_pod_watcher.core.cluster.pods.pod_view import DONE, node_name_of, uid_of, version_of
from sluice_pod_watcher.core.cluster.pods.volume_claims import VolumeTopologies

_MIB = 1024**2
_NOTHING = Fraction(0)
_AMOUNTS = ("containers", "initContainers", "resources", "overhead")
_READ = (*_AMOUNTS, "affinity", "hostNetwork")
KEPT_MAX = 4096  # how many amounts and specs keep their parsed form: a cluster repeats the same few


@dataclass(slots=True)
class _NodeFacts:
    version: int
    told: tuple[object, ...]  # the raw fields that were read: heartbeats, 500 a second, do not change them
    room: HostRoom
    pods: int
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    cordoned: bool


@dataclass(slots=True)
class _PodUsage:
    version: int
    node: NodeName
    room: HostRoom
    kind: PodSignature
    ports: tuple[HostPort, ...]

    @property
    def told(self) -> tuple[object, ...]:
        return self.node, self.room, self.kind, self.ports


@dataclass(slots=True)
class NodeCapacity:
    """Every node, the usage by other pods, and which nodes have to be published."""

    config: ClusterConfig
    affinity_index: AffinityIndex = field(default_factory=AffinityIndex)  # the terms of pods
    _nodes: dict[NodeName, _NodeFacts] = field(default_factory=dict)
    _taking: dict[str, _PodUsage] = field(default_factory=dict)
    _taken: dict[NodeName, Counter[str]] = field(default_factory=dict)  # what pods take, and how many they are
    _dirty: OrderedDict[NodeName, None] = field(default_factory=OrderedDict)
    _needs: dict[str, HostNeeds] = field(default_factory=dict)  # parsed needs, by what the pods' specs contain
    _gone: dict[NodeName, None] = field(default_factory=dict)
    _unproven: dict[NodeName, None] = field(default_factory=dict)  # our nodes not seen before nodes were listed
    _urgent: dict[NodeName, None] = field(default_factory=dict)  # became (un)schedulable: places are booked there
    _first: dict[NodeName, None] = field(default_factory=dict)  # before requests whose terms match pods there
    _cut: dict[NodeName, None] = field(default_factory=dict)  # with more kinds of pods, or ports, than published
    newly_cut: list[NodeName] = field(default_factory=list)  # nodes that just became so, for the log
    _said_at: dict[NodeName, float] = field(default_factory=dict)
    _listings: dict[str, Listing[str]] = field(default_factory=lambda: {"others": Listing(), "nodes": Listing()})

    def handle(self, event: events.ObjectEvent) -> None:
        """An event about nodes, or about pods that are not ours."""
        is_node = event.what == "nodes"
        match event:
            case events.ListingStarted():
                self._listings[event.what].started(event)
                if event.went_back:
                    for known in self._nodes.values() if is_node else self._taking.values():
                        known.version = 0  # of a history that no longer exists: older than anything
            case events.ListingEnded():
                self._listing_ended(event)
            case events.Seen():
                (self._node_seen if is_node else self._other_seen)(event.object)
            case events.Gone() if is_node:
                self._drop_node(node_name_of(event.object))
            case events.Gone():
                self._take(uid_of(event.object), None)

    def _listing_ended(self, event: events.ListingEnded) -> None:
        is_node, was_listed = event.what == "nodes", self.is_listed
        known: Iterable[tuple[str, _NodeFacts | _PodUsage]] = (self._nodes if is_node else self._taking).items()
        gone = self._listings[event.what].ended(event, ((key, each.version) for key, each in known))
        if self.is_listed and not was_listed:
            self.put_first(self.affinity_index.nodes_that_matter())  # terms indexed earlier could not name them
        for key in gone:
            if is_node:
                self._drop_node(NodeName(key))
            else:
                self._take(key, None)
        self._unproven_are_gone()

    def _node_seen(self, raw: events.Raw) -> None:
        name = node_name_of(raw)
        version = version_of(mapping_in(raw, "metadata").get("resourceVersion"))
        self._listings["nodes"].shows(name)
        known = self._nodes.get(name)
        if not name or (known is not None and known.version >= version > 0):
            return
        told = _told(raw)
        if known is not None and known.told == told:
            known.version = version
            return
        node = _read_node(told, version)
        if known is None or _facts(known) != _facts(node):
            self._dirty[name] = None
        if known is not None and (known.cordoned, known.taints) != (node.cordoned, node.taints):
            self._urgent[name] = None
        self._nodes[name] = node
        self._gone.pop(name, None)  # it was away for less than a turn

    def _other_seen(self, raw: events.Raw) -> None:
        meta, spec = mapping_in(raw, "metadata"), mapping_in(raw, "spec")
        uid, version = uid_of(raw), version_of(meta.get("resourceVersion"))
        self._listings["others"].shows(uid)
        known = self._taking.get(uid)
        if not uid or (known is not None and known.version >= version > 0):
            return
        node = NodeName(str(spec.get("nodeName") or ""))
        has_ended = str(mapping_in(raw, "status").get("phase")) in DONE
        if not node or has_ended or is_placeholder(raw, self.config.namespace):  # one gives way to any pod
            self._take(uid, None)
            return
        needs = self._read(spec, meta)
        self._take(uid, _PodUsage(version, node, needs.room, signature_of(meta, needs), needs.ports))

    def heard(self, name: NodeName, facts: HostFacts) -> None:
        """The bus shows a node. Track one of ours that no longer exists, so that its stale capacity is withdrawn."""
        if facts.source == self.config.source:
            self.named(name)

    @property
    def no_room(self) -> HostFacts:
        return HostFacts(cpu_cores=0.0, memory_mib=0, pods_free=0, cordoned=True, source=self.config.source)

    def named(self, name: NodeName) -> None:
        """A node of ours is referenced; its object may be missing."""
        if name not in self._nodes:
            self._unproven[name] = None
            self._unproven_are_gone()

    def take_gone(self) -> list[NodeName]:
        """Our nodes whose objects are missing, as learnt since the last call."""
        gone, self._gone = list(self._gone), {}
        return gone

    def due(self, now: float) -> list[tuple[NodeName, HostFacts]]:
        if not self.is_listed:
            return []
        found: list[tuple[NodeName, HostFacts]] = []
        for name in self._urgent:
            self._dirty[name] = None
            self._dirty.move_to_end(name, last=False)
        for _ in range(min(self.config.hosts_per_tick, len(self._dirty))):
            name = next(iter(self._dirty))
            is_early = now - self._said_at.get(name, float("-inf")) < self.config.host_interval_s
            if self._urgent.pop(name, True) is not None and is_early:
                self._dirty.move_to_end(name)
                continue
            del self._dirty[name]
            node = self._nodes.get(name)
            if node is None:
                self._said_at.pop(name, None)
                found.append((name, self.no_room))
            else:
                self._said_at[name] = now
                found.append((name, self._said(name, node)))
        return found

    def put_first(self, names: Iterable[NodeName]) -> None:
        """Publish these nodes before waiting requests, whose terms match pods there."""
        self._first |= dict.fromkeys(names)

    def first(self, at_most: int) -> list[tuple[NodeName, HostFacts]]:
        """Nodes to publish before waiting requests, some at a time: a DaemonSet may be on all nodes."""
        if not self.is_listed:
            return []
        chosen = list(islice(self._first, at_most))
        for name in chosen:
            del self._first[name]
        return [(name, self._said(name, node)) for name in chosen if (node := self._nodes.get(name)) is not None]

    @property
    def is_listed(self) -> bool:
        return all(each.was_listed for each in self._listings.values())

    @property
    def are_first(self) -> bool:
        """Whether nodes have to be published before requests, or this is not known yet."""
        return bool(self._first) or not self.is_listed

    def _said(self, name: NodeName, node: _NodeFacts) -> HostFacts:
        """A node whose pods cannot all be published counts as full: an unpublished one may forbid a place."""
        ports, others = self.affinity_index.ports(name), self.affinity_index.others(name)
        facts = replace(_facts(node, self._taken.get(name, _NOTHING_TAKEN)), source=self.config.source)
        if len(ports) > PORTS_MAX or len(others) > OTHERS_MAX:
            if name not in self._cut:
                self.newly_cut.append(name)
            self._cut[name] = None
            return replace(facts, pods_free=0, ports=ports[:PORTS_MAX], others=others[:OTHERS_MAX])
        self._cut.pop(name, None)
        return replace(facts, ports=ports, others=others)

    @property
    def is_urgent(self) -> bool:
        return bool(self._urgent) and self.is_listed

    def why_kept_out(self, name: NodeName, tolerations: Iterable[Toleration], volumes: VolumeTopologies) -> str:
        """What keeps a pod from a node now, as a predicate; empty when nothing does, or the node is not known."""
        node = self._nodes.get(name)
        if node is None:
            return ""
        why = blocking_predicate(_facts(node), tolerations)
        return why or ("" if selectors.volumes_reachable(volumes, node.labels) else "cannot reach a volume of the pod")

    def say_again(self, missing: Iterable[NodeName]) -> None:
        """Compare everything with the bus again, including that nothing fits on the missing nodes."""
        self._dirty |= dict.fromkeys((*self._nodes, *missing))

    def _read(self, spec: Mapping[str, Any], meta: Mapping[str, Any]) -> HostNeeds:
        """The resources that another pod takes, and its anti-affinity. The node terms of its spec are not read. Only
        absurd amounts are refused here, and they fit on no node: such a pod counts as a pod without other resources."""
        asks = {key: spec.get(key) for key in _READ}
        labels = meta.get("labels") if asks["affinity"] else None
        namespace = str(meta.get("namespace", "")) if asks["affinity"] else ""
        known = self._needs.get(text := str((asks, namespace, labels)))
        if known is not None:
            return known
        if len(self._needs) >= KEPT_MAX:
            self._needs.clear()
        needs = read_host_needs(asks, namespace, labels)
        if isinstance(needs, Refusal):
            needs = read_host_needs({key: asks[key] for key in _AMOUNTS})
        found = self._needs[text] = NO_NEEDS if isinstance(needs, Refusal) else needs
        return found

    def _drop_node(self, name: NodeName) -> None:
        if self._nodes.pop(name, None) is not None:
            self._cut.pop(name, None)
            self._dirty[name] = self._gone[name] = None

    def _unproven_are_gone(self) -> None:
        if not self._listings["nodes"].was_listed:
            return
        gone = dict.fromkeys(name for name in self._unproven if name not in self._nodes)
        self._unproven = {}
        self._dirty |= gone
        self._gone |= gone

    def _take(self, uid: str, taking: _PodUsage | None) -> None:
        before = self._taking.pop(uid, None)
        if taking is not None:
            self._taking[uid] = taking
        if before is not None and taking is not None and before.told == taking.told:
            return
        for each, sign in ((before, -1), (taking, 1)):
            if each is None:
                continue
            taken, room = self._taken.setdefault(each.node, Counter()), each.room
            amounts = {"cpu": room.cpu_milli, "memory": room.memory_mib, "pods": 1, **room.resources}
            taken.update({name: sign * amount for name, amount in amounts.items()})
            self.affinity_index.count(each.node, each.kind, each.ports, sign)
            if not taken["pods"]:
                del self._taken[each.node]
            if each.node in self._nodes:
                self._dirty[each.node] = None


_NOTHING_TAKEN: Counter[str] = Counter()


def _facts(node: _NodeFacts, taken: Counter[str] = _NOTHING_TAKEN) -> HostFacts:
    return HostFacts(
        cpu_cores=max(0, node.room.cpu_milli - taken["cpu"]) / 1000,
        memory_mib=max(0, node.room.memory_mib - taken["memory"]),
        pods_free=max(0, node.pods - taken["pods"]),
        resources={name: max(0, size - taken[name]) for name, size in node.room.resources.items()},
        labels=node.labels,
        taints=node.taints,
        cordoned=node.cordoned,
        allocatable=node.room,
    )


def _told(raw: events.Raw) -> tuple[object, ...]:
    spec = mapping_in(raw, "spec")
    return (
        mapping_in(mapping_in(raw, "metadata"), "labels"),
        mapping_in(mapping_in(raw, "status"), "allocatable"),
        spec.get("taints"),
        spec.get("unschedulable"),
    )


def _read_node(told: tuple[object, ...], version: int) -> _NodeFacts:
    labels, allocatable, taints, unschedulable = told
    assert isinstance(labels, Mapping)
    assert isinstance(allocatable, Mapping)
    amounts = {name: _amount(str(text)) for name, text in allocatable.items()}
    others = {name: int(size) for name, size in sorted(amounts.items()) if "/" in name and not is_gpu_resource(name)}
    return _NodeFacts(
        version=version,
        told=told,
        room=HostRoom(
            cpu_milli=int(amounts.get("cpu", _NOTHING) * 1000),
            memory_mib=int(amounts.get("memory", _NOTHING) / _MIB),
            resources=others,
        ),
        pods=int(amounts.get("pods", _NOTHING)),
        labels={str(key): str(text) for key, text in labels.items()},
        taints=tuple(
            Taint(key=str(each.get("key", "")), value=str(each.get("value") or ""), effect=str(each.get("effect", "")))
            for each in (taints if isinstance(taints, list) else ())
            if isinstance(each, dict)
        ),
        cordoned=unschedulable is True,
    )


@lru_cache(maxsize=KEPT_MAX)
def _amount(text: str) -> Fraction:
    size = quantities.parse_quantity(text)
    return _NOTHING if isinstance(size, quantities.NotANumber) else size

"""Reconciles placeholder pods with the nodes that the allocator finds missing: an autoscaler adds a node for each,
where it stays while the node's agent starts. It goes when pods have slices there, or when that node serves nothing."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from sluice.contracts.ids import NodeName
from sluice.contracts.kube.names import LABEL_CAPACITY, LABEL_HOSTNAME, LABEL_MANAGED, MANAGED
from sluice.contracts.messages import NodeInventory, PoolDemand, Taint
from sluice_pod_watcher.core.cluster import events, listed_objects
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.events import Raw, mapping_in
from sluice_pod_watcher.core.workqueue import remember

PREFIX = "sluice-capacity-"
PRIORITY_CLASS = "sluice-capacity"
SHARE_PERCENT = 60  # of a node's room for pods with slices
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def placeholder_pod(
    demand: PoolDemand, number: int, config: ClusterConfig, useless: Iterable[str]
) -> tuple[str, Mapping[str, Any]]:
    """Its name and its object: it fits on a new node of the pool, and on none with pods that have slices. It takes most
    of a node, so that no two share one, but not all: autoscalers estimate what DaemonSets leave. Its priority is the
    lowest for which cluster-autoscaler adds nodes. It goes to none of the `useless` nodes."""
    name = f"{PREFIX}{demand.pool}-{number}"
    room = demand.template.room
    requests = {
        "cpu": f"{room.cpu_milli * SHARE_PERCENT // 100}m",
        "memory": f"{room.memory_mib * SHARE_PERCENT // 100}Mi",
    }
    with_slices = {"matchLabels": {LABEL_MANAGED: MANAGED}}
    apart = {"labelSelector": with_slices, "namespaceSelector": {}, "topologyKey": LABEL_HOSTNAME}
    affinity: dict[str, Any] = {"podAntiAffinity": {_REQUIRED: [apart]}}
    if hosts := sorted(useless):
        elsewhere = {"key": LABEL_HOSTNAME, "operator": "NotIn", "values": hosts}
        affinity["nodeAffinity"] = {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [elsewhere]}]}}
    container = {
        "name": "capacity",
        "image": config.placeholder_image,
        "resources": {"requests": requests, "limits": requests},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "priorityClassName": PRIORITY_CLASS,
        "nodeSelector": dict(demand.selector),
        "tolerations": [_toleration(taint) for taint in demand.template.taints],
        "affinity": affinity,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    metadata = {
        "name": name,
        "namespace": config.namespace,
        "labels": {LABEL_CAPACITY: demand.pool, "app.kubernetes.io/part-of": "sluice"},
        "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    }
    return name, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _toleration(taint: Taint) -> dict[str, str]:
    value = {"operator": "Equal", "value": taint.value} if taint.value else {"operator": "Exists"}
    return {"key": taint.key, **value, "effect": taint.effect}


USELESS_MAX = 50  # most nodes that placeholders are kept off: of more, the earliest are tried again


@dataclass(slots=True)
class _Placeholder:
    uid: str
    pool: str
    node: NodeName
    since: float  # when it was first seen on its node
    leaves: bool = False


@dataclass(slots=True)
class Placeholders:
    """The placeholders of one cluster."""

    config: ClusterConfig
    _pools: dict[str, PoolDemand] = field(default_factory=dict)
    _reading: dict[str, PoolDemand] | None = field(default_factory=dict)  # pools that it has shown; None: no reading
    _here: dict[str, _Placeholder] = field(default_factory=dict)
    _listing: listed_objects.Listing[str] = field(default_factory=listed_objects.Listing)
    _under_way: dict[str, str] = field(default_factory=dict)  # placeholders being created (their pools) or deleted
    _answers: dict[NodeName, float] = field(default_factory=dict)  # nodes whose agents answer, and since when
    _useless: dict[NodeName, None] = field(default_factory=dict)
    _not_before: float = float("-inf")

    def pool(self, demand: PoolDemand) -> None:
        shown = self._pools if self._reading is None else self._reading
        if demand.source in {"", self.config.source}:
            shown[demand.pool] = demand

    def reading_started(self) -> None:
        self._reading = {}

    def stream_read(self) -> None:
        if self._reading is not None:
            self._pools, self._reading = self._reading, None

    def inventory(self, message: NodeInventory, now: float) -> None:
        if message.stale or message.removed:
            self._answers.pop(message.snapshot.node, None)
        else:
            self._answers.setdefault(message.snapshot.node, now)

    def node_gone(self, node: NodeName) -> None:
        self._answers.pop(node, None)
        self._useless.pop(node, None)

    def handle(self, event: events.ObjectEvent, now: float) -> None:
        """An event about pods that are not ours: placeholders are among them."""
        match event:
            case events.Seen():
                self._seen(event.object, now)
            case events.Gone(object=raw):
                meta = mapping_in(raw, "metadata")
                name = str(meta.get("name", ""))
                known = self._here.get(name)
                if is_placeholder(raw, self.config.namespace) and known is not None and known.uid == meta.get("uid"):
                    del self._here[name]
            case events.ListingStarted():
                self._listing.started(event)
            case events.ListingEnded():
                for name in self._listing.ended(event, ((name, 0) for name in self._here)):
                    if name not in self._under_way:
                        del self._here[name]

    def _seen(self, raw: Raw, now: float) -> None:
        if not is_placeholder(raw, self.config.namespace):
            return
        meta = mapping_in(raw, "metadata")
        name, uid = str(meta.get("name", "")), str(meta.get("uid", ""))
        self._listing.shows(name)
        node = NodeName(str(mapping_in(raw, "spec").get("nodeName") or ""))
        known = self._here.get(name)
        if known is not None and known.uid == uid:
            if node and not known.node:
                known.node, known.since = node, now
        else:
            self._here[name] = _Placeholder(uid, str(mapping_in(meta, "labels")[LABEL_CAPACITY]), node, now)
        self._here[name].leaves = self._here[name].leaves or bool(meta.get("deletionTimestamp"))

    def written(self, event: events.Done[events.CreatePlaceholder | events.DeletePlaceholder], now: float) -> None:
        name = event.wanted.name
        self._under_way.pop(name, None)
        if isinstance(event.wanted, events.CreatePlaceholder):
            self._seen(event.answer, now)
        elif name in self._here:
            self._here[name].leaves = True

    def failed(self, name: str, now: float) -> None:
        """The API server refused a write. All pause, as the cause is seldom one object."""
        self._under_way.pop(name, None)
        self._not_before = now + self.config.placeholder_retry_s

    def due(self, now: float) -> Iterator[events.CreatePlaceholder | events.DeletePlaceholder]:
        if self._reading is not None or not self._listing.was_listed or now < self._not_before:
            return
        left = self.config.placeholders_max
        for pool in dict.fromkeys((*self._pools, *(each.pool for each in self._here.values()))):
            demand = self._pools.get(pool)
            missing = min(demand.missing, left) if demand is not None else 0
            left -= missing
            standing = {name: each for name, each in self._here.items() if each.pool == pool and not each.leaves}
            for name, each in list(standing.items()):
                if missing and self._is_useless(each, now):
                    remember(self._useless, each.node, None, at_most=USELESS_MAX)
                    del standing[name]
                    yield from self._delete(name, each)
            surplus = sorted(standing, key=lambda name: (self._worth(standing[name]), name))
            for name in surplus[missing:]:
                yield from self._delete(name, standing[name])
            if demand is not None:
                yield from self._create(demand, missing - len(standing))

    def _is_useless(self, placeholder: _Placeholder, now: float) -> bool:
        since = self._answers.get(placeholder.node) if placeholder.node else None
        return since is not None and now - max(since, placeholder.since) >= self.config.placeholder_settles_s

    def _worth(self, placeholder: _Placeholder) -> int:
        """The order in which placeholders are kept: on a node that is starting, without a node, on one that serves."""
        if not placeholder.node:
            return 1
        return 2 if placeholder.node in self._answers else 0

    def _create(self, demand: PoolDemand, wanted: int) -> Iterator[events.CreatePlaceholder]:
        started = sum(pool == demand.pool for pool in self._under_way.values())
        for number in count():
            if started >= wanted:
                return
            name, body = placeholder_pod(demand, number, self.config, self._useless)
            if name not in self._here and name not in self._under_way:
                self._under_way[name] = demand.pool
                started += 1
                yield events.CreatePlaceholder(self.config.namespace, name, body)

    def _delete(self, name: str, placeholder: _Placeholder) -> Iterator[events.DeletePlaceholder]:
        if name not in self._under_way:
            self._under_way[name] = ""
            yield events.DeletePlaceholder(self.config.namespace, name, placeholder.uid)


def is_placeholder(raw: Raw, namespace: str) -> bool:
    """Whether a pod is a placeholder of ours. In other namespaces the label means nothing: users may write it."""
    meta = mapping_in(raw, "metadata")
    return meta.get("namespace") == namespace and LABEL_CAPACITY in mapping_in(meta, "labels")

"""Counts pods of a kind in each domain of a node label, updated with every pod that comes and goes. A pod updates only
its own term counts, and a domain's count is one lookup: neither cost grows with the cluster."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from sluice.contracts.ids import NodeName, RequestId, SourceName
from sluice.contracts.kube.selectors import selector_matches
from sluice.contracts.kube.taints import untolerated
from sluice.contracts.messages import EVERY_NAMESPACE, HostNeeds, HostPort, PodTerm, Selector, Taint
from sluice_allocator.core.key_index import count, drop, put
from sluice_allocator.core.placement.spec.place_request import selects

Part = tuple[tuple[str, ...], Selector]  # Namespaces, and a selector of labels there
Terms = tuple[object, ...]  # a pod's terms about others, as one value; empty if it has none
T = TypeVar("T")


def terms_of(source: SourceName, namespace: str, host: HostNeeds) -> Terms:
    """A pod's terms: they decide which term counts it reads, and over which nodes those are counted."""
    if not (host.apart or host.beside or host.spread):
        return ()
    over = (_selected(host), host.tolerations) if host.spread else ()
    return (source, namespace, host.apart, host.beside, host.spread, over)


def _selected(host: HostNeeds) -> tuple[object, ...]:
    return (host.node_name, tuple(sorted(host.node_selector.items())), host.affinity)


class PeerPod(msgspec.Struct, frozen=True):
    """A pod, as far as other pods' terms and its own matter."""

    source: SourceName
    namespace: str
    labels: tuple[tuple[str, str], ...] = ()
    apart: tuple[PodTerm, ...] = ()
    ports: tuple[HostPort, ...] = ()
    leaving: bool = False  # it is being deleted, so spreading no longer counts it
    terms: Terms = ()  # its own terms about others, if it is a request's pod

    @property
    def kind_name(self) -> tuple[object, ...]:
        return (self.source, self.namespace, self.labels, self.leaving)


@dataclass(slots=True, eq=False)
class NodePods:
    """A node, and its pods."""

    name: NodeName
    source: SourceName
    is_known: bool = False  # whether the node is known: only then it is a domain for spreading
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    kinds: "dict[PodKind, int]" = field(default_factory=dict)
    held: "dict[TermCount, int]" = field(default_factory=dict)  # Anti-affinity terms of pods there
    ports: dict[HostPort, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class PodKind:
    """Pods that no term can tell apart."""

    peer: PeerPod
    labels: dict[str, str]
    spots: dict[NodePods, int] = field(default_factory=dict)
    term_counts: "dict[TermCount, None]" = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class SpreadDomains:
    """The nodes over which a pod is spread, by their values of one label."""

    key: str
    keys: tuple[str, ...]  # the topology keys of all its constraints: a node that lacks one does not count
    source: SourceName
    needs: HostNeeds
    by_affinity: bool  # whether the pod's node affinity and node name restrict the domains
    by_taints: bool
    spots: dict[NodePods, None] = field(default_factory=dict)
    values: Counter[str] = field(default_factory=Counter)
    term_counts: int = 0  # how many are counted over them

    @property
    def name(self) -> tuple[object, ...]:
        selected = _selected(self.needs) if self.by_affinity else None
        return (self.key, self.keys, self.source, selected, self.needs.tolerations if self.by_taints else None)

    def look_at(self, spot: NodePods) -> None:
        self.forget(spot)
        if self._has(spot):
            self.spots[spot] = None
            self.values[spot.labels[self.key]] += 1

    def forget(self, spot: NodePods) -> None:
        """Drop a node that is about to change or no longer counts."""
        if spot in self.spots:
            del self.spots[spot]
            count(self.values, spot.labels[self.key], -1)

    def _has(self, spot: NodePods) -> bool:
        if not spot.is_known or spot.source not in {"", self.source} or not spot.labels.keys() >= {*self.keys}:
            return False
        if self.by_affinity and (self.needs.node_name not in {"", spot.name} or not selects(self.needs, spot.labels)):
            return False
        return not self.by_taints or not untolerated(spot.taints, self.needs.tolerations)


@dataclass(slots=True, eq=False)
class TermCount:
    """Pods that all parts match, by the values of one label of their nodes."""

    key: str
    source: SourceName
    parts: tuple[Part, ...]
    domains: SpreadDomains | None = None  # only pods on these nodes count; None: on all with the label
    counts: dict[str, int] = field(default_factory=dict)
    levels: Counter[int] = field(default_factory=Counter)  # how many domains have each count
    kinds: dict[PodKind, None] = field(default_factory=dict)
    holders: int = 0  # of an anti-affinity term: how many pods have it, also on nodes without the label
    users: int = 0  # how many different terms use it; unused ones are dropped
    interested: dict[RequestId, None] = field(default_factory=dict)  # requests that found no place because of it

    def has(self, kind: PodKind) -> bool:
        """Whether pods of a kind belong to it. Spreading does not count those being deleted."""
        peer = kind.peer
        if peer.leaving and self.domains is not None:
            return False
        return self.speaks_of(peer.source, peer.namespace, kind.labels)

    def speaks_of(self, source: SourceName, namespace: str, labels: Mapping[str, str]) -> bool:
        return self.source == source and all(_speaks_of(part, namespace, labels) for part in self.parts)

    def add(self, spot: NodePods, more: int) -> bool:
        """Add pods to a node, or remove some. True when that may admit a pod that was kept out."""
        value = spot.labels.get(self.key)
        if value is None or not more or (self.domains is not None and spot not in self.domains.spots):
            return False
        after = count(self.counts, value, more)
        before = after - more
        for level, by in ((before, -1), (after, 1)):
            if level:
                count(self.levels, level, by)
        return self.domains is not None or not before or not after

    def least(self) -> int:
        is_short = self.domains is None or len(self.counts) < len(self.domains.values)
        return 0 if is_short else min(self.levels, default=0)


def _speaks_of(part: Part, namespace: str, labels: Mapping[str, str]) -> bool:
    namespaces, selector = part
    return (namespace in namespaces or EVERY_NAMESPACE in namespaces) and selector_matches(selector, labels)


class LabelIndex(Generic[T]):
    """Indexes term counts by a label that their pods must have, so that a pod checks only those that may match."""

    __slots__ = ("_by_pair", "_rest")

    def __init__(self) -> None:
        self._by_pair: dict[tuple[str, str], dict[T, None]] = {}
        self._rest: dict[T, None] = {}

    def __bool__(self) -> bool:
        return bool(self._by_pair or self._rest)

    def add(self, item: T, parts: tuple[Part, ...]) -> None:
        for pair in label_pairs(parts):
            put(self._by_pair, pair, item)
        if not label_pairs(parts):
            self._rest[item] = None

    def remove(self, item: T, parts: tuple[Part, ...]) -> None:
        for pair in label_pairs(parts):
            drop(self._by_pair, pair, item)
        self._rest.pop(item, None)

    def near(self, labels: Mapping[str, str]) -> Iterator[T]:
        """Items that may match a pod with these labels, each once."""
        if not self:
            return
        found: dict[T, None] = {}
        for pair in labels.items():
            found |= self._by_pair.get(pair, {})
        yield from found
        yield from self._rest


def label_pairs(parts: tuple[Part, ...]) -> list[tuple[str, str]]:
    """Label and value pairs of which a matching pod has one; none if it need not have any."""
    for _, selector in parts:
        for each in selector:
            if each.operator == "In":
                return list(dict.fromkeys((each.key, value) for value in each.values))
    return []

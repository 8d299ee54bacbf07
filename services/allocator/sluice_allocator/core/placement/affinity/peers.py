"""Tracks where pods are that terms of other pods match: ours from their booking until their request is gone, others' as
the pod-watcher reports them. `pod_filters` filters by the term counts. Rules:
https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#inter-pod-affinity-and-anti-affinity."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from sluice.contracts.ids import AllocationId, NodeName, RequestId, SourceName
from sluice.contracts.kube.selectors import host_ports_conflict
from sluice.contracts.messages import AllocationRequested, HostFacts, HostPort, OtherPods, PodTerm, Taint
from sluice_allocator.core.key_index import count, drop, put
from sluice_allocator.core.placement.affinity.census import Census
from sluice_allocator.core.placement.affinity.term_counts import (
    LabelIndex,
    NodePods,
    PeerPod,
    TermCount,
    Terms,
    terms_of,
)
from sluice_allocator.core.placement.nodes.node import labels_of_node
from sluice_allocator.core.placement.spec.place_request import PlaceRequest


def peer_of(asked: AllocationRequested) -> PeerPod:
    labels = tuple(sorted(asked.labels.items())) if asked.labels else ()
    terms = terms_of(asked.source, asked.namespace, asked.host)
    return PeerPod(asked.source, asked.namespace, labels, asked.host.apart, asked.host.ports, terms=terms)


def peer_of_place_request(request: PlaceRequest) -> PeerPod:
    labels = tuple(sorted(request.labels.items()))
    return PeerPod(request.source, request.namespace, labels, request.host.apart, request.host.ports)


class Peers:
    """All pods on all nodes."""

    def __init__(self) -> None:
        self.woken: dict[RequestId, None] = {}  # requests without a place that may find one now: the cycle takes them
        self.quiet = False  # whether waking is off: what is booked now is undone at once
        self._known: dict[RequestId, PeerPod] = {}
        self._unheard: dict[RequestId, None] = {}  # requests with a booking that the bus does not (or no longer) have
        self._booked: dict[AllocationId, tuple[RequestId, NodeName]] = {}
        self._of_request: dict[RequestId, dict[AllocationId, None]] = {}
        self._put: dict[AllocationId, tuple[PeerPod, NodePods]] = {}
        self._interests: dict[RequestId, tuple[TermCount, ...]] = {}  # why each request found no place
        self._others: dict[NodeName, list[PeerPod]] = {}
        self._spots: dict[NodeName, NodePods] = {}
        self.census = Census(self._spots)
        self._held: dict[tuple[SourceName, PodTerm], TermCount] = {}  # existing pods' anti-affinity, by term
        self._held_by = LabelIndex[TermCount]()
        self._by_value: dict[str, dict[str, dict[NodeName, None]]] = {}  # nodes by label value, for labels in use

    def know(self, request: RequestId, peer: PeerPod | None) -> None:
        """Set a request's pod; None when the request is gone: its bookings then keep no pod out."""
        self._unheard.pop(request, None)
        before = self._known.get(request)
        if before == peer:
            return
        if peer is not None:
            self.census.ask(peer.terms)
        if before is not None:
            self._withdraw(before)
        if peer is None:
            del self._known[request]
            self.register(request, ())
        else:
            self._known[request] = peer
        for allocation in self._of_request.get(request, ()):
            self.take(allocation)
            if peer is not None:
                self.put(allocation, self._booked[allocation][1], peer)

    def lose_sight(self, request: RequestId) -> None:
        """The bus no longer has a request, whose pod still counts while a booking exists."""
        if request in self._of_request:
            self._unheard[request] = None
        else:
            self.know(request, None)

    def book(self, allocation: AllocationId, request: RequestId, node: NodeName) -> None:
        self.unbook(allocation)
        self._booked[allocation] = (request, node)
        put(self._of_request, request, allocation)
        peer = self._known.get(request)
        if peer is not None:
            self.put(allocation, node, peer)

    def unbook(self, allocation: AllocationId) -> None:
        found = self._booked.pop(allocation, None)
        if found is None:
            return
        drop(self._of_request, found[0], allocation)
        self.take(allocation)
        if found[0] in self._unheard and found[0] not in self._of_request:
            self.know(found[0], None)

    def put(self, allocation: AllocationId, node: NodeName, peer: PeerPod) -> None:
        spot = self._spot(node)
        self._put[allocation] = (peer, spot)
        self._count(peer, spot, 1)

    def take(self, allocation: AllocationId) -> None:
        found = self._put.pop(allocation, None)
        if found is not None:
            self._count(*found, -1)
            self._forget_spot(found[1])

    @contextmanager
    def without(self, allocations: Iterable[AllocationId]) -> Iterator[None]:
        """Within this context these places keep no pod out: they are reserved for the very pod being placed."""
        kept = [(each, *self._put[each]) for each in allocations if each in self._put]
        before, self.quiet = self.quiet, self.quiet or bool(kept)
        for allocation, _, _ in kept:
            self.take(allocation)
        try:
            yield
        finally:
            for allocation, peer, spot in kept:
                self.put(allocation, spot.name, peer)
            self.quiet = before

    def booked_for(self, request: RequestId) -> Iterable[AllocationId]:
        """A request's own bookings: no pod keeps itself out."""
        return tuple(self._of_request.get(request, ()))

    def see(self, node: NodeName, facts: HostFacts | None, *, is_shown: bool) -> None:
        """Set a node's facts; `is_shown`: whether it has an inventory."""
        others = [each for pods in facts.others for each in _peers_of(pods, facts.source)] if facts is not None else []
        if facts is not None and facts.ports:
            others.append(PeerPod(facts.source, "", ports=facts.ports))
        taints, source = (facts.taints, facts.source) if facts is not None else ((), SourceName(""))
        is_known = is_shown if facts is None else not facts.is_of_no_object
        state = labels_of_node(node, facts), taints, source, is_known
        spot = self._spot(node)
        if (spot.labels, spot.taints, spot.source, spot.is_known) != state:
            self._move(spot, state)
        before = self._others.pop(node, [])
        if others:
            self._others[node] = others
        if others != before:
            for peers, sign in ((before, -1), (others, 1)):
                for peer in peers:
                    self._count(peer, spot, sign)
        self._forget_spot(spot)

    def _spot(self, node: NodeName) -> NodePods:
        spot = self._spots.get(node)
        if spot is None:
            spot = self._spots[node] = NodePods(node, SourceName(""), labels=labels_of_node(node, None))
            for key in self._by_value:
                self._file(spot, key)
        return spot

    def _file(self, spot: NodePods, key: str) -> None:
        if key in spot.labels:
            put(self._by_value[key], spot.labels[key], spot.name)

    def _unfile(self, spot: NodePods, key: str) -> None:
        if key in spot.labels:
            drop(self._by_value[key], spot.labels[key], spot.name)

    def _forget_spot(self, spot: NodePods) -> None:
        if not (spot.is_known or spot.kinds or spot.ports or spot.held):
            for key in self._by_value:
                self._unfile(spot, key)
            del self._spots[spot.name]

    def _move(self, spot: NodePods, state: tuple[Mapping[str, str], tuple[Taint, ...], SourceName, bool]) -> None:
        self._count_all(spot, -1)
        for domains in self.census.all_domains():
            domains.forget(spot)
        for key in self._by_value:
            self._unfile(spot, key)
        spot.labels, spot.taints, spot.source, spot.is_known = state
        for domains in self.census.all_domains():
            domains.look_at(spot)
        for key in self._by_value:
            self._file(spot, key)
        self._count_all(spot, 1)
        for term_count in self.census.spread_term_counts():
            self._wake(term_count)  # there may be more domains than before, or fewer

    def _count_all(self, spot: NodePods, sign: int) -> None:
        for kind, pods in spot.kinds.items():
            for term_count in kind.term_counts:
                self._add(term_count, spot, sign * pods)
        for term_count, pods in spot.held.items():
            self._add(term_count, spot, sign * pods)

    def look_by(self, terms: Terms) -> None:
        """Search by these terms: call before reading any term count."""
        if self.census.look_by(terms):
            self._forget_labels()

    def keeping_out(self, source: SourceName, namespace: str, labels: Mapping[str, str]) -> Iterator[TermCount]:
        """Nodes with pods whose anti-affinity matches such a pod."""
        return (each for each in self._held_by.near(labels) if each.speaks_of(source, namespace, labels))

    def keep_out(self, asked: AllocationRequested) -> bool:
        """Whether existing pods keep out this one, but not every pod with the same request."""
        own = {(each.topology_key, ((each.namespaces, each.selector),)) for each in asked.host.apart}
        found = self.keeping_out(asked.source, asked.namespace, asked.labels)
        return any((term_count.key, term_count.parts) not in own for term_count in found)

    def tells_apart(self, request: PlaceRequest) -> bool:
        """Whether a pod's labels may decide where it can be."""
        host = request.host
        return bool(self._held or host.apart or host.spread or host.beside)

    def is_taken(self, node: NodeName, ports: Iterable[HostPort]) -> bool:
        spot = self._spots.get(node)
        if spot is None or not spot.ports:
            return False
        return any(host_ports_conflict(each, other) for each in ports for other in spot.ports)

    def nodes_with(self, key: str, values: Iterable[str]) -> list[NodeName]:
        """The nodes with one of these values of a label. Walks over them only."""
        by_value = self._by_value.get(key)
        if by_value is None:
            by_value = self._by_value[key] = {}
            for spot in self._spots.values():
                self._file(spot, key)
        return [name for value in values for name in by_value.get(value, ())]

    def register(self, request: RequestId, term_counts: Iterable[TermCount]) -> None:
        """A request found no place because of these term counts only: it is woken when they change in its favour."""
        for term_count in self._interests.pop(request, ()):
            term_count.interested.pop(request, None)
        found = tuple(term_counts)
        for term_count in found:
            term_count.interested[request] = None
        if found:
            self._interests[request] = found

    def _withdraw(self, peer: PeerPod) -> None:
        if peer.terms:
            self.census.withdraw(peer.terms)
            self._forget_labels()

    def _forget_labels(self) -> None:
        for key in [key for key in self._by_value if not self.census.counts_by(key)]:
            del self._by_value[key]

    def _count(self, peer: PeerPod, spot: NodePods, more: int) -> None:
        kind = self.census.kind(peer)
        count(spot.kinds, kind, more)
        count(kind.spots, spot, more)
        for term_count in kind.term_counts:
            self._add(term_count, spot, more)
        if not kind.spots:
            self.census.forget_kind(kind)
        for term in peer.apart:
            held = self._holding(peer.source, term)
            count(spot.held, held, more)
            self._add(held, spot, more)
            held.holders += more
            if not held.holders:
                del self._held[peer.source, term]
                self._held_by.remove(held, held.parts)
        for port in peer.ports:
            count(spot.ports, port, more)

    def _add(self, term_count: TermCount, spot: NodePods, more: int) -> None:
        if term_count.add(spot, more):
            self._wake(term_count)

    def _wake(self, term_count: TermCount) -> None:
        if term_count.interested and not self.quiet:
            self.woken |= term_count.interested
            term_count.interested = {}

    def _holding(self, source: SourceName, term: PodTerm) -> TermCount:
        held = self._held.get((source, term))
        if held is None:
            parts = ((term.namespaces, term.selector),)
            held = self._held[source, term] = TermCount(term.topology_key, source, parts)
            self._held_by.add(held, parts)
        return held


def _peers_of(pods: OtherPods, source: SourceName) -> list[PeerPod]:
    labels = tuple(sorted(pods.labels.items()))
    return [PeerPod(source, pods.namespace, labels, pods.apart, leaving=pods.leaving)] * pods.count

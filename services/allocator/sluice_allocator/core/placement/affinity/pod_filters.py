"""Filter nodes by a pod's terms about other pods, as kube-scheduler does, from the term counts that `peers` keeps. Each
bar reads one label of a node and one table. Conservative in one point: a pod counts until it is gone, even if it could
be evicted or moved, or is about to end. Sources:
https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#inter-pod-affinity-and-anti-affinity,
https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/,
k8s.io/kubernetes/pkg/scheduler/framework/plugins (interpodaffinity, podtopologyspread, nodeports)."""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from sluice.contracts.ids import NodeName
from sluice.contracts.kube.selectors import pod_term_matches
from sluice.contracts.messages import NO_NEEDS
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.placement.affinity.census import Census
from sluice_allocator.core.placement.affinity.peers import Peers
from sluice_allocator.core.placement.affinity.term_counts import SpreadDomains, TermCount, Terms, terms_of
from sluice_allocator.core.placement.spec.place_request import PlaceRequest

_ANY_NUMBER = 1 << 62


class PodFilter(msgspec.Struct, frozen=True):
    """Only domains with a suitable number of the pods that one term counts: a term of the pod, or of others."""

    term_count: TermCount
    reason: WaitReason
    at_least: int = 0
    at_most: int = _ANY_NUMBER
    needs_label: bool = True  # whether nodes without the label are excluded too

    @property
    def key(self) -> str:
        return self.term_count.key

    def why_not(self, value: str | None) -> WaitReason | None:
        """Why no node with this value of the label (None: without it) fits now; None when one does."""
        if value is None:
            return WaitReason.NODE_TOPOLOGY_LABEL_MISSING if self.needs_label else None
        return None if self.at_least <= self.term_count.counts.get(value, 0) <= self.at_most else self.reason


def pod_filters_for(peers: Peers, request: PlaceRequest) -> tuple[PodFilter, ...]:
    """The filters for a pod; empty for one without terms that no other pod's terms match."""
    host = request.host
    terms = terms_of(request.source, request.namespace, host)
    peers.look_by(terms)
    pod_filters = [_apart(each) for each in peers.keeping_out(request.source, request.namespace, request.labels)]
    pod_filters += (
        _apart(peers.census.term_count(terms, request.source, ((each.namespaces, each.selector),), each.topology_key))
        for each in host.apart
    )
    if host.beside:
        pod_filters += _beside(peers.census, request, terms)
    if host.spread:
        pod_filters += _spread(peers.census, request, terms)
    return tuple(pod_filters)


def named_by(
    peers: Peers, pod_filters: Iterable[PodFilter], tells_apart: Callable[[str], bool]
) -> list[NodeName] | None:
    """The only nodes with pods that an affinity requires; None where classes tell that, or without affinity."""
    told = (each for each in pod_filters if each.at_least and not tells_apart(each.key))
    return next((peers.nodes_with(each.key, each.term_count.counts) for each in told), None)


def _apart(term_count: TermCount) -> PodFilter:
    """No domain with a pod that is counted, because of its anti-affinity or theirs."""
    return PodFilter(term_count, WaitReason.NODE_POD_ANTI_AFFINITY, at_most=0, needs_label=False)


def _beside(census: Census, request: PlaceRequest, said: Terms) -> Iterator[PodFilter]:
    """Affinity counts pods that match all terms; if there is none and the pod matches itself, it is the first."""
    terms = request.host.beside
    parts = tuple((each.namespaces, each.selector) for each in terms)
    term_counts = [census.term_count(said, request.source, parts, each.topology_key) for each in terms]
    is_first = not any(term_count.counts for term_count in term_counts) and all(
        pod_term_matches(each, request.namespace, request.labels) for each in terms
    )
    least = 0 if is_first else 1
    return (PodFilter(term_count, WaitReason.NODE_POD_AFFINITY, at_least=least) for term_count in term_counts)


def _spread(census: Census, request: PlaceRequest, said: Terms) -> Iterator[PodFilter]:
    """Spreading uses the pod's node affinity before any pin was added: a pinned pod has one domain only."""
    terms = request.host.spread
    keys = tuple(sorted({each.topology_key for each in terms}))
    for each in terms:
        needs = request.host if each.by_affinity or each.by_taints else NO_NEEDS
        domains = census.domains(
            SpreadDomains(each.topology_key, keys, request.source, needs, each.by_affinity, each.by_taints)
        )
        part = ((request.namespace,), each.selector)
        term_count = census.term_count(said, request.source, (part,), each.topology_key, domains)
        least = term_count.least() if len(domains.values) >= each.min_domains else 0
        itself = int(term_count.speaks_of(request.source, request.namespace, request.labels))
        most = least + each.max_skew - itself
        yield PodFilter(term_count, WaitReason.NODE_TOPOLOGY_SPREAD, at_most=most)

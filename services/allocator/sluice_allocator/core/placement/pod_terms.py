"""
Filter nodes by a pod's terms about other pods, as kube-scheduler does, from the crowds that `peers` keeps.

Each bar reads one label of a node and one table. Conservative in one point: a pod counts until it is gone, even if it
could be evicted or moved, or is about to end.
Sources: https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#inter-pod-affinity-and-anti-affinity,
https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/,
k8s.io/kubernetes/pkg/scheduler/framework/plugins (interpodaffinity, podtopologyspread, nodeports).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sluice.contracts.ids import NodeName
from sluice.contracts.kube.selectors import pod_term_matches
from sluice.contracts.messages import NO_NEEDS
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.placement.asking import Asking
from sluice_allocator.core.placement.census import Census
from sluice_allocator.core.placement.crowds import Crowd, Domains, Terms, terms_of
from sluice_allocator.core.placement.peers import Peers


@dataclass(frozen=True, slots=True)
class Apart:
    """Excludes domains with a pod of the crowd, because of its anti-affinity or theirs."""

    crowd: Crowd

    @property
    def key(self) -> str:
        """The label that it reads."""
        return self.crowd.key

    def why_not(self, value: str | None) -> WaitReason | None:
        """Why no node with this value of the label (None: without it) fits now; None when one does."""
        return WaitReason.NODE_POD_ANTI_AFFINITY if value is not None and value in self.crowd.counts else None


@dataclass(frozen=True, slots=True)
class Beside:
    """Only domains with a pod of the crowd; any domain for the first pod of those it matches."""

    crowd: Crowd
    is_first: bool

    @property
    def key(self) -> str:
        """The label that it reads."""
        return self.crowd.key

    def why_not(self, value: str | None) -> WaitReason | None:
        """Why no node with this value of the label (None: without it) fits now; None when one does."""
        if value is None:
            return WaitReason.NODE_TOPOLOGY_LABEL_MISSING
        return None if self.is_first or value in self.crowd.counts else WaitReason.NODE_POD_AFFINITY


@dataclass(frozen=True, slots=True)
class Spread:
    """Only domains that would stay within `max_skew` of the one with fewest."""

    crowd: Crowd
    most: int
    """Most pods there before this one comes."""

    @property
    def key(self) -> str:
        """The label that it reads."""
        return self.crowd.key

    def why_not(self, value: str | None) -> WaitReason | None:
        """Why no node with this value of the label (None: without it) fits now; None when one does."""
        if value is None:
            return WaitReason.NODE_TOPOLOGY_LABEL_MISSING
        return WaitReason.NODE_TOPOLOGY_SPREAD if self.crowd.counts.get(value, 0) > self.most else None


Bar = Apart | Beside | Spread


def bars_for(peers: Peers, asking: Asking) -> tuple[Bar, ...]:
    """The filters for a pod; empty for one without terms that no other pod's terms match."""
    host = asking.host
    terms = terms_of(asking.source, asking.namespace, host)
    peers.look_by(terms)
    bars: list[Bar] = [Apart(each) for each in peers.keeping_out(asking.source, asking.namespace, asking.labels)]
    bars += (
        Apart(peers.census.crowd(terms, asking.source, ((each.namespaces, each.selector),), each.topology_key))
        for each in host.apart
    )
    if host.beside:
        bars += _beside(peers.census, asking, terms)
    if host.spread:
        bars += _spread(peers.census, asking, terms)
    return tuple(bars)


def named_by(peers: Peers, bars: Iterable[Bar], tells_apart: Callable[[str], bool]) -> list[NodeName] | None:
    """
    The only nodes with pods that a pod's affinity requires; None where classes of nodes tell that, or without
    affinity.
    """
    for bar in bars:
        if isinstance(bar, Beside) and not bar.is_first and not tells_apart(bar.key):
            return peers.nodes_with(bar.key, bar.crowd.counts)
    return None


def _beside(census: Census, asking: Asking, said: Terms) -> Iterator[Beside]:
    """Affinity counts pods that match all terms; if there is none and the pod matches itself, it is the first."""
    terms = asking.host.beside
    parts = tuple((each.namespaces, each.selector) for each in terms)
    crowds = [census.crowd(said, asking.source, parts, each.topology_key) for each in terms]
    is_first = not any(crowd.counts for crowd in crowds) and all(
        pod_term_matches(each, asking.namespace, asking.labels) for each in terms
    )
    return (Beside(crowd, is_first) for crowd in crowds)


def _spread(census: Census, asking: Asking, said: Terms) -> Iterator[Spread]:
    """Spreading uses the pod's node affinity before any pin was added: a pinned pod has one domain only."""
    terms = asking.host.spread
    keys = tuple(sorted({each.topology_key for each in terms}))
    for each in terms:
        needs = asking.host if each.by_affinity or each.by_taints else NO_NEEDS
        domains = census.domains(
            Domains(each.topology_key, keys, asking.source, needs, each.by_affinity, each.by_taints)
        )
        part = ((asking.namespace,), each.selector)
        crowd = census.crowd(said, asking.source, (part,), each.topology_key, domains)
        least = crowd.least() if len(domains.values) >= each.min_domains else 0
        itself = int(crowd.speaks_of(asking.source, asking.namespace, asking.labels))
        yield Spread(crowd, least + each.max_skew - itself)

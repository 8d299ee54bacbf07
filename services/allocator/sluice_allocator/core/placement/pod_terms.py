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
    """No domain in which a pod of the crowd is: it wants them apart, or they it."""

    crowd: Crowd

    @property
    def key(self) -> str:
        """The label that it looks at."""
        return self.crowd.key

    def why_not(self, value: str | None) -> WaitReason | None:
        """Why no node with this value of the label (None: without it) may be taken now; None when one may."""
        return WaitReason.NODE_POD_ANTI_AFFINITY if value is not None and value in self.crowd.counts else None


@dataclass(frozen=True, slots=True)
class Beside:
    """Only a domain in which a pod of the crowd is; any that is one at all for the first pod of those it names."""

    crowd: Crowd
    is_first: bool

    @property
    def key(self) -> str:
        """The label that it looks at."""
        return self.crowd.key

    def why_not(self, value: str | None) -> WaitReason | None:
        """Why no node with this value of the label (None: without it) may be taken now; None when one may."""
        if value is None:
            return WaitReason.NODE_TOPOLOGY_LABEL_MISSING
        return None if self.is_first or value in self.crowd.counts else WaitReason.NODE_POD_AFFINITY


@dataclass(frozen=True, slots=True)
class Spread:
    """Only a domain that would not have more than `max_skew` more of the crowd than the one that has least."""

    crowd: Crowd
    most: int
    """So many may be there before this pod comes."""

    @property
    def key(self) -> str:
        """The label that it looks at."""
        return self.crowd.key

    def why_not(self, value: str | None) -> WaitReason | None:
        """Why no node with this value of the label (None: without it) may be taken now; None when one may."""
        if value is None:
            return WaitReason.NODE_TOPOLOGY_LABEL_MISSING
        return WaitReason.NODE_TOPOLOGY_SPREAD if self.crowd.counts.get(value, 0) > self.most else None


Bar = Apart | Beside | Spread


def bars_for(peers: Peers, asking: Asking) -> tuple[Bar, ...]:
    """What keeps a pod from being everywhere; nothing for one without terms that no other's terms speak of."""
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
    """The only nodes where pods are that a pod wants beside it; None where classes of nodes tell that, or none."""
    for bar in bars:
        if isinstance(bar, Beside) and not bar.is_first and not tells_apart(bar.key):
            return peers.nodes_with(bar.key, bar.crowd.counts)
    return None


def _beside(census: Census, asking: Asking, said: Terms) -> Iterator[Beside]:
    """A pod counts that all terms match; where there is none and all match the pod itself, it is the first."""
    terms = asking.host.beside
    parts = tuple((each.namespaces, each.selector) for each in terms)
    crowds = [census.crowd(said, asking.source, parts, each.topology_key) for each in terms]
    is_first = not any(crowd.counts for crowd in crowds) and all(
        pod_term_matches(each, asking.namespace, asking.labels) for each in terms
    )
    return (Beside(crowd, is_first) for crowd in crowds)


def _spread(census: Census, asking: Asking, said: Terms) -> Iterator[Spread]:
    """By the pod's own node affinity, as it was before a pin was added: a pinned pod has one domain only."""
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

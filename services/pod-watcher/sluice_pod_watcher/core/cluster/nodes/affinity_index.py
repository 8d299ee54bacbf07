"""Choose which pods without slices to publish per node: those that a term of ours matches or that repel others, and
host ports. Labels only if a term uses them: pods alike are one entry. The allocator evaluates terms."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.kube.selectors import selector_matches
from sluice.contracts.messages import EVERY_NAMESPACE, HostNeeds, HostPort, OtherPods, PodTerm, Selector

OTHERS_MAX, PORTS_MAX = 100, 200  # most kinds of pods, and ports, published per node; a kubelet runs 110 pods
PodSignature = tuple[str, tuple[tuple[str, str], ...], tuple[PodTerm, ...], bool]
"""Namespace, labels, anti-affinity terms, whether it is being deleted."""
PodSelector = tuple[tuple[str, ...], Selector]  # Namespaces, and the label selector


def signature_of(meta: Mapping[str, Any], needs: HostNeeds) -> PodSignature:
    labels = meta.get("labels")
    pairs = sorted((str(key), str(text)) for key, text in labels.items()) if isinstance(labels, dict) else ()
    return str(meta.get("namespace", "")), tuple(pairs), needs.apart, bool(meta.get("deletionTimestamp"))


@dataclass(slots=True)
class AffinityIndex:
    """Pods without slices by node, and the terms of our requests."""

    _kinds: dict[PodSignature, dict[NodeName, int]] = field(default_factory=dict)
    _on: dict[NodeName, dict[PodSignature, int]] = field(default_factory=dict)
    _ports: dict[NodeName, dict[HostPort, int]] = field(default_factory=dict)
    _spoken: dict[PodSelector, dict[RequestId, None]] = field(default_factory=dict)  # selectors, by what uses them
    _of_request: dict[RequestId, tuple[PodSelector, ...]] = field(default_factory=dict)
    _keys: Counter[str] = field(default_factory=Counter)  # labels that terms use, with the number of terms
    _matters: dict[PodSignature, bool] = field(default_factory=dict)

    def count(self, node: NodeName, kind: PodSignature, ports: Iterable[HostPort], more: int) -> None:
        nodes = self._kinds.setdefault(kind, {})
        on_node, ports_there = self._on.setdefault(node, {}), self._ports.setdefault(node, {})
        _add(nodes, node, more)
        _add(on_node, kind, more)
        for port in ports:
            _add(ports_there, port, more)
        if not nodes:
            del self._kinds[kind]
            self._matters.pop(kind, None)
        if not on_node:
            del self._on[node]
        if not ports_there:
            del self._ports[node]

    def ask(self, request: RequestId, namespace: str, host: HostNeeds) -> list[NodeName]:
        """Index the terms of a request's pod. Returns the nodes for which more has to be published."""
        terms = ((each.namespaces, each.selector) for each in (*host.beside, *host.apart))
        spoken = (*terms, *(((namespace,), each.selector) for each in host.spread))
        if self._of_request.get(request, ()) == spoken:
            return []
        self.forget(request)
        if not spoken:
            return []
        self._of_request[request] = spoken
        new = [each for each in dict.fromkeys(spoken) if each not in self._spoken]
        for each in spoken:
            self._spoken.setdefault(each, {})[request] = None
        keys = {each.key for _, selector in new for each in selector} - self._keys.keys()
        self._keys.update(each.key for _, selector in new for each in selector)
        found: dict[NodeName, None] = {}
        for kind, nodes in self._kinds.items() if new else ():
            is_new = not self._matters.get(kind, False) and any(_speaks_of(each, kind) for each in new)
            if is_new:
                self._matters[kind] = True
            if is_new or (any(key in keys for key, _ in kind[1]) and self._does_matter(kind)):
                found |= dict.fromkeys(nodes)
        return list(found)

    def nodes_that_matter(self) -> list[NodeName]:
        found = (nodes for kind, nodes in self._kinds.items() if self._does_matter(kind))
        return list(dict.fromkeys(node for nodes in found for node in nodes))

    def forget(self, request: RequestId) -> None:
        """A request is over. What was published for it stays until the node is published again."""
        for each in dict.fromkeys(self._of_request.pop(request, ())):
            del self._spoken[each][request]
            if not self._spoken[each]:
                del self._spoken[each]
                self._keys -= Counter(term.key for term in each[1])
                self._matters.clear()

    def ports(self, node: NodeName) -> tuple[HostPort, ...]:
        return tuple(self._ports.get(node, ()))

    def others(self, node: NodeName) -> tuple[OtherPods, ...]:
        """The pods on a node that matter, with the labels that terms use."""
        found: Counter[PodSignature] = Counter()
        for (namespace, labels, apart, leaving), count in self._on.get(node, {}).items():
            if self._does_matter((namespace, labels, apart, leaving)):
                asked = tuple((key, text) for key, text in labels if key in self._keys)
                found[namespace, asked, apart, leaving] += count
        return tuple(
            OtherPods(namespace=namespace, labels=dict(labels), apart=apart, count=count, leaving=leaving)
            for (namespace, labels, apart, leaving), count in sorted(found.items(), key=lambda each: each[0][:2])
        )

    def _does_matter(self, kind: PodSignature) -> bool:
        known = self._matters.get(kind)
        if known is None:
            known = bool(kind[2]) or any(_speaks_of(each, kind) for each in self._spoken)
            self._matters[kind] = known
        return known


def _speaks_of(spoken: PodSelector, kind: PodSignature) -> bool:
    namespaces, selector = spoken
    return (kind[0] in namespaces or EVERY_NAMESPACE in namespaces) and selector_matches(selector, dict(kind[1]))


def _add(counts: dict[Any, int], key: object, more: int) -> None:
    left = counts.get(key, 0) + more
    if left:
        counts[key] = left
    else:
        del counts[key]

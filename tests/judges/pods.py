"""May a pod be on a node, by what pods say of each other? Counted from scratch each time, pod by pod and node by node.

On the terms of https://kubernetes.io/docs/concepts/scheduling-eviction/ (assign-pod-node, topology-spread-constraints)
and of kube-scheduler's filters; shares no code with the engine it judges.
"""

from collections.abc import Iterator, Mapping

from judges.hosts import covers, holds
from judges.placements import NodeTruth, Truth

from sluice.contracts.messages import HostNeeds, HostPort, PodTerm, SpreadTerm
from sluice_allocator.core.placement import PlaceRequest

There = tuple[str, PlaceRequest]
"""The node of a pod, and what it asked for."""


def why_not_with(truth: Truth, name: str, pod: PlaceRequest) -> str | None:
    """Why a pod may not be on a node beside the pods that are there; None when it may."""
    labels = labels_of(truth, name)
    if pod.host.volumes and not all(any(_all(t, labels) for t in terms) for terms in pod.host.volumes):
        return f"a volume is elsewhere: {pod.host.volumes} on {labels}"
    for where, other in all_pods(truth):
        theirs, there = other.host.apart, labels_of(truth, where)
        if _same_cluster(pod, other):
            if any(_speaks_of(t, pod) and _together(t.topology_key, labels, there) for t in theirs):
                return f"{other.labels} on {where} wants it apart"
            if any(_speaks_of(t, other) and _together(t.topology_key, labels, there) for t in pod.host.apart):
                return f"it wants to be apart from {other.labels} on {where}"
        if where == name and any(_clash(one, port) for one in pod.host.ports for port in other.host.ports):
            return f"a port is taken by {other.labels}"
    return _why_not_beside(truth, labels, pod) or _why_not_spread(truth, labels, pod)


def all_pods(truth: Truth, *, leaving: bool = True) -> Iterator[There]:
    """Ours, and what is said of others' pods on each node; those that are `leaving` too."""
    yield from truth.pods.values()
    for name, node in {**truth.nodes, **truth.elsewhere}.items():
        host = node.host
        if host is None:
            continue
        if host.ports:  # of a pod of which no more is said
            yield name, PlaceRequest((), "", HostNeeds(ports=host.ports), source=host.source)
        for each in host.others:
            pod = PlaceRequest((), each.namespace, HostNeeds(apart=each.apart), labels=each.labels, source=host.source)
            yield from [(name, pod)] * (each.count if leaving or not each.leaving else 0)


def labels_of(truth: Truth, name: str) -> Mapping[str, str]:
    """Of a node; its host name is its name where no kubelet says another."""
    node = truth.nodes.get(name) or truth.elsewhere.get(name)
    host = node.host if node is not None else None
    return {"kubernetes.io/hostname": name, **(host.labels if host is not None else {})}


def _why_not_beside(truth: Truth, labels: Mapping[str, str], pod: PlaceRequest) -> str | None:
    terms = pod.host.beside
    if any(term.topology_key not in labels for term in terms):
        return f"no {[term.topology_key for term in terms]} on {labels}"
    wanted = [there for there in all_pods(truth) if _same_cluster(pod, there[1]) and _all_speak(terms, there[1])]
    places = [labels_of(truth, where) for where, _ in wanted]
    if not any(term.topology_key in place for term in terms for place in places) and _all_speak(terms, pod):
        return None  # the first of those it names
    for term in terms:
        if not any(_together(term.topology_key, labels, place) for place in places):
            return f"no pod of {term} is there"
    return None


def _why_not_spread(truth: Truth, labels: Mapping[str, str], pod: PlaceRequest) -> str | None:
    for term in pod.host.spread:
        if term.topology_key not in labels:
            return f"no {term.topology_key} on {labels}"
        found = dict.fromkeys((labels_of(truth, name)[term.topology_key] for name in _counting(truth, pod, term)), 0)
        for where, other in all_pods(truth, leaving=False):
            is_one = other.namespace == pod.namespace and _all(term.selector, other.labels)
            if is_one and _same_cluster(pod, other) and where in list(_counting(truth, pod, term)):
                found[labels_of(truth, where)[term.topology_key]] += 1
        least = min(found.values(), default=0) if len(found) >= term.min_domains else 0
        after = found.get(labels[term.topology_key], 0) + _all(term.selector, pod.labels)
        if after - least > term.max_skew:
            return f"{after} there and {least} elsewhere: {term}"
    return None


def _counting(truth: Truth, pod: PlaceRequest, term: SpreadTerm) -> Iterator[str]:
    nodes = {**truth.nodes, **{name: node for name, node in truth.elsewhere.items() if node.host is not None}}
    for name, node in nodes.items():
        labels = labels_of(truth, name)
        if all(each.topology_key in labels for each in pod.host.spread) and _counts(node, labels, pod.host, term):
            yield name


def _counts(node: NodeTruth, labels: Mapping[str, str], needs: HostNeeds, term: SpreadTerm) -> bool:
    if term.by_affinity:
        chosen = all(labels.get(key) == value for key, value in needs.node_selector.items())
        terms = [each for each in needs.affinity if each]
        if not chosen or (needs.affinity and not any(_all(each, labels) for each in terms)):
            return False
        if needs.node_name not in {"", node.snapshot.node}:
            return False
    taints = node.host.taints if node.host is not None and term.by_taints else ()
    kept = [taint for taint in taints if taint.effect in {"NoSchedule", "NoExecute"}]
    return all(any(covers(each, taint) for each in needs.tolerations) for taint in kept)


def _same_cluster(one: PlaceRequest, other: PlaceRequest) -> bool:
    return one.source == other.source


def _together(key: str, labels: Mapping[str, str], others: Mapping[str, str]) -> bool:
    return key in labels and labels[key] == others.get(key)


def _speaks_of(term: PodTerm, pod: PlaceRequest) -> bool:
    return ("*" in term.namespaces or pod.namespace in term.namespaces) and _all(term.selector, pod.labels)


def _all_speak(terms: tuple[PodTerm, ...], pod: PlaceRequest) -> bool:
    return all(_speaks_of(term, pod) for term in terms)


def _all(selector, labels: Mapping[str, str]) -> bool:
    return all(holds(each, dict(labels)) for each in selector)


def _clash(one: HostPort, other: HostPort) -> bool:
    anywhere = {"", "0.0.0.0", "::"}
    same = (one.port, one.protocol) == (other.port, other.protocol)
    return same and (one.ip == other.ip or bool({one.ip, other.ip} & anywhere))

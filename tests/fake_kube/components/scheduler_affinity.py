"""
Scheduler filters for pods and volumes on a node, with their messages.

Inter-pod anti-affinity, both ways; host ports without addresses; the node affinity of bound volumes: as few as tests of
placement need. Spreading is left out: for a pinned pod only one node counts.
"""

from fake_kube.components.scheduler import meets
from fake_kube.errors import Json
from fake_kube.requests import selectors
from fake_kube.store import Store

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ENDED = ("Succeeded", "Failed")


def obstacle(pod: Json, node: Json, store: Store) -> str:
    """Why a pod cannot go to a node, or ''."""
    nodes = {each["metadata"]["name"]: each["metadata"].get("labels") or {} for each in store.listed("nodes")}
    labels = nodes[node["metadata"]["name"]]
    there = [
        (nodes[each["spec"]["nodeName"]], each)
        for each in store.listed("pods")
        if each["spec"].get("nodeName") in nodes and (each.get("status") or {}).get("phase") not in ENDED
    ]
    for at, other in there:
        for owner, term in [*((pod, each) for each in _apart(pod)), *((other, each) for each in _apart(other))]:
            key = term["topologyKey"]
            speaks = _selects(term, owner, other if owner is pod else pod)
            if speaks and key in labels and labels[key] == at.get(key):
                mine = owner is pod
                return f"node(s) didn't {'match pod' if mine else 'satisfy existing pods'} anti-affinity rules"
        if at is labels and _ports(pod) & _ports(other):
            return "node(s) didn't have free ports for the requested pod ports"
    for name in _volumes(pod, store):
        terms = (((name["spec"].get("nodeAffinity") or {}).get("required")) or {}).get("nodeSelectorTerms") or []
        if terms and not any(all(meets(labels, each) for each in term.get("matchExpressions") or []) for term in terms):
            return "node(s) didn't match PersistentVolume's node affinity"
    return ""


def _apart(pod: Json) -> list[Json]:
    affinity = (pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
    return affinity.get(REQUIRED) or []


def _selects(term: Json, owner: Json, other: Json) -> bool:
    everywhere = term.get("namespaceSelector") == {}
    named = term.get("namespaces") or [owner["metadata"]["namespace"]]
    if not everywhere and other["metadata"]["namespace"] not in named:
        return False
    return selectors.selector(term.get("labelSelector"), other["metadata"].get("labels") or {})


def _ports(pod: Json) -> set[tuple[int, str]]:
    ports = [port for each in pod["spec"]["containers"] for port in each.get("ports") or []]
    return {(port["hostPort"], port.get("protocol", "TCP")) for port in ports if port.get("hostPort")}


def _volumes(pod: Json, store: Store) -> list[Json]:
    found = []
    for each in pod["spec"].get("volumes") or []:
        name = (each.get("persistentVolumeClaim") or {}).get("claimName")
        claim = store.get("persistentvolumeclaims", pod["metadata"]["namespace"], name) if name else None
        volume = store.get("persistentvolumes", "", (claim or {"spec": {}})["spec"].get("volumeName") or "")
        found += [volume] if volume is not None else []
    return found

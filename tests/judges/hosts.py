"""May a pod be on a node by labels, taints and room (Kubernetes, assign-pod-node, taint-and-toleration)?"""

from collections.abc import Sequence

from judges.placements import NodeTruth

from sluice.contracts.messages import HostNeeds, HostRoom, NodeExpression, Taint, Toleration


def why_not_on(node: NodeTruth, needs: HostNeeds, taken: Sequence[HostRoom]) -> str | None:
    """Why a pod with these needs may not be there beside pods that took `taken`; None when it may."""
    if needs.node_name and needs.node_name != node.snapshot.node:
        return f"it must be on {needs.node_name}"
    labels = {"kubernetes.io/hostname": node.snapshot.node, **(node.host.labels if node.host is not None else {})}
    if node.pods_max is not None and len(taken) >= node.pods_max:
        return "as many pods as its operator allows"
    if any(labels.get(key) != value for key, value in needs.node_selector.items()):
        return f"selector {needs.node_selector} on {labels}"
    terms = [term for term in needs.affinity if term]
    if needs.affinity and not any(all(holds(each, labels) for each in term) for term in terms):
        return f"affinity {needs.affinity} on {labels}"
    if node.host is None:
        return None
    for taint in node.host.taints:
        if taint.effect in {"NoSchedule", "NoExecute"} and not any(covers(t, taint) for t in needs.tolerations):
            return f"taint {taint}"
    return _no_room(node, needs.room, taken)


def _no_room(node: NodeTruth, room: HostRoom, taken: Sequence[HostRoom]) -> str | None:
    host = node.host
    if round(host.cpu_cores * 1000) < room.cpu_milli + sum(each.cpu_milli for each in taken):
        return "too little CPU"
    if host.memory_mib < room.memory_mib + sum(each.memory_mib for each in taken):
        return "too little memory"
    if host.pods_free < 1 + len(taken):
        return "too many pods"
    for name, count in room.resources.items():
        if count > host.resources.get(name, 0) - sum(each.resources.get(name, 0) for each in taken):
            return f"too little {name}"
    return None


def holds(each: NodeExpression, labels: dict[str, str]) -> bool:
    """Whether one requirement on labels is met."""
    have = labels.get(each.key)
    if each.operator == "DoesNotExist":
        return have is None
    if each.operator == "NotIn":
        return have not in each.values
    if have is None:
        return False
    if each.operator == "Exists":
        return True
    if each.operator == "In":
        return have in each.values
    if not have.lstrip("-").isdecimal():
        return False
    return int(have) > int(each.values[0]) if each.operator == "Gt" else int(have) < int(each.values[0])


def covers(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in {"", taint.effect}:
        return False
    if toleration.operator == "Exists":
        return toleration.key in {"", taint.key}
    return (toleration.key, toleration.value) == (taint.key, taint.value)

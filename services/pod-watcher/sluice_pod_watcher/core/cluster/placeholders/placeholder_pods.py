"""The object of a placeholder pod: unschedulable as long as a node of its pool is missing. It fits on a new node of the
pool and on none that has a pod with a slice. It takes most of a node, so that no two share one, but not all:
autoscalers estimate what a new node's DaemonSets leave. Its priority is below that of other pods, and the lowest for
which cluster-autoscaler adds nodes (its flag `expendable-pods-priority-cutoff`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from sluice.contracts.kube.names import LABEL_CAPACITY, LABEL_HOSTNAME, LABEL_MANAGED, MANAGED
from sluice.contracts.messages import PoolDemand, Taint
from sluice_pod_watcher.core.cluster.config import ClusterConfig

PREFIX = "sluice-capacity-"
PRIORITY_CLASS = "sluice-capacity"
SHARE_PERCENT = 60  # of a node's room for pods with slices
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def placeholder_pod(
    demand: PoolDemand, number: int, config: ClusterConfig, useless: Iterable[str]
) -> tuple[str, Mapping[str, Any]]:
    """Its name and its object. It goes to none of the `useless` nodes, which would not serve what waits."""
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

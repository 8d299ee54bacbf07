"""Classifies taints: some reserve the node for certain pods, others mean that it cannot take any pods just now.
Kubernetes and autoscalers set and remove taints of the second kind by themselves, so a pod waits and needs no
toleration. Sources: https://kubernetes.io/docs/reference/labels-annotations-taints/ for `node.kubernetes.io/*` and
`node.cloudprovider.kubernetes.io/*`, the FAQ of kubernetes/autoscaler for its startup and status taints and
`ToBeDeletedByClusterAutoscaler`, https://karpenter.sh/docs/concepts/disruption/ for `karpenter.sh/*`.
"""

from collections.abc import Mapping

from sluice.contracts.kube.selectors import selector_matches
from sluice.contracts.messages import HostNeeds, Taint
from sluice.contracts.reasons import WaitReason

_KUBERNETES = "node.kubernetes.io/"
_CLOUD = "node.cloudprovider.kubernetes.io/"
_KNOWN = {
    f"{_KUBERNETES}unschedulable": WaitReason.NODE_CORDONED,
    f"{_KUBERNETES}memory-pressure": WaitReason.NODE_UNDER_PRESSURE,
    f"{_KUBERNETES}disk-pressure": WaitReason.NODE_UNDER_PRESSURE,
    f"{_KUBERNETES}pid-pressure": WaitReason.NODE_UNDER_PRESSURE,
    f"{_CLOUD}shutdown": WaitReason.NODE_LEAVING,
    "ToBeDeletedByClusterAutoscaler": WaitReason.NODE_LEAVING,
    "karpenter.sh/disrupted": WaitReason.NODE_LEAVING,
    "karpenter.sh/disruption": WaitReason.NODE_LEAVING,
    "karpenter.sh/unregistered": WaitReason.NODE_NOT_READY,
}
_NOT_READY = (
    _KUBERNETES,  # not-ready, unreachable, network-unavailable, out-of-service, and what is added to them
    _CLOUD,  # uninitialized
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "status-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
)
PASSING = frozenset(
    {WaitReason.NODE_CORDONED, WaitReason.NODE_NOT_READY, WaitReason.NODE_UNDER_PRESSURE, WaitReason.NODE_LEAVING}
)
"""The reasons of such taints: they keep a pod away now, and say nothing about whether the node could ever serve it."""


def meaning_of(taint: Taint) -> WaitReason:
    """Why a node with this taint takes no pod that does not tolerate it."""
    if taint.key in _KNOWN:
        return _KNOWN[taint.key]
    return WaitReason.NODE_NOT_READY if taint.key.startswith(_NOT_READY) else WaitReason.NODE_TAINTED


def selects(needs: HostNeeds, labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels is among those that the pod selects."""
    if any(labels.get(key) != value for key, value in needs.node_selector.items()):
        return False
    return not needs.affinity or any(selector_matches(term, labels) for term in needs.affinity if term)


def keys_of(needs: HostNeeds) -> list[str]:
    """The labels by which a pod, or one of its volumes, selects nodes."""
    terms = (*needs.affinity, *(term for terms in needs.volumes for term in terms))
    return list(dict.fromkeys([*needs.node_selector, *(each.key for term in terms for each in term)]))

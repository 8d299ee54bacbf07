"""What a place is searched for: the part of a request that decides where it can go."""

from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from sluice.contracts.ids import GpuUuid, SourceName
from sluice.contracts.kube.selectors import selector_matches
from sluice.contracts.messages import NO_NEEDS, AllocationRequested, Claim, HostNeeds, Taint
from sluice.contracts.reasons import WaitReason

Avoid = frozenset[GpuUuid]  # GPUs on which this request failed recently


class PlaceRequest(msgspec.Struct, frozen=True):
    """Claims of a pod, and what its node needs besides. Namespace and uids: the trust domain; "": the pool's policy."""

    claims: tuple[Claim, ...]
    namespace: str = "default"
    host: HostNeeds = NO_NEEDS
    node_policy: str = ""
    gpu_policy: str = ""
    substitute: bool = False  # whether a larger compatible profile may serve if the asked one has no place
    steps: tuple[int, ...] = ()
    """Per claim, which larger profile is searched (1: the next larger) instead of the asked one; empty: none."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)  # the pod's labels, which terms of other pods match
    source: SourceName = SourceName("")  # the pod's cluster: terms only match pods of one cluster
    by_claim: bool = False  # whether the kubelet hands its devices over by ResourceClaim: only some nodes' kubelets do
    same_gpu: tuple[tuple[str, ...], ...] = ()  # containers whose devices must be on one GPU, in groups


def without_shunned_nodes(request: PlaceRequest) -> PlaceRequest:
    """The same without avoiding nodes where the scheduler recently rejected such a pod."""
    return replace(request, host=replace(request.host, shun=()))


def alternative_place_requests(asked: AllocationRequested) -> Iterator[PlaceRequest]:
    """What to search instead where the first claims of a request have no place now, in this order."""
    if asked.alternatives:
        first = place_request_of(asked)
        for claims in asked.alternatives:
            yield replace(first, claims=claims)


def place_request_of(asked: AllocationRequested) -> PlaceRequest:
    substitute = asked.leeway.substitute != "no"
    return PlaceRequest(
        asked.claims,
        asked.namespace,
        asked.host,
        asked.node_policy,
        asked.gpu_policy,
        substitute,
        labels=asked.labels,
        source=asked.source,
        by_claim=bool(asked.resource_claims),
        same_gpu=asked.same_gpu,
    )


# Taints that Kubernetes and autoscalers set and remove by themselves: a pod waits, and needs no toleration. Sources:
# kubernetes.io/docs/reference/labels-annotations-taints, the FAQ of kubernetes/autoscaler (startup and status taints),
# karpenter.sh/docs/concepts/disruption.
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
    if taint.key in _KNOWN:
        return _KNOWN[taint.key]
    return WaitReason.NODE_NOT_READY if taint.key.startswith(_NOT_READY) else WaitReason.NODE_TAINTED


def selects(needs: HostNeeds, labels: Mapping[str, str]) -> bool:
    if any(labels.get(key) != value for key, value in needs.node_selector.items()):
        return False
    return not needs.affinity or any(selector_matches(term, labels) for term in needs.affinity if term)


def keys_of(needs: HostNeeds) -> list[str]:
    terms = (*needs.affinity, *(term for terms in needs.volumes for term in terms))
    return list(dict.fromkeys([*needs.node_selector, *(each.key for term in terms for each in term)]))

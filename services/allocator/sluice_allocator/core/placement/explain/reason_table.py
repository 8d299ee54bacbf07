"""Every reason in words, as said of a number of GPUs or nodes, by the filter that it comes from."""

from collections.abc import Iterable

import msgspec

from sluice.contracts.reasons import ReasonCount, WaitReason

_BY_FILTER: dict[str, dict[WaitReason, str]] = {
    "nodes": {  # which nodes
        WaitReason.NO_NODES: "no node with GPUs is known yet",
        WaitReason.NO_NODE_CAN_FIT: "no node here could ever serve it",
        WaitReason.NODE_NOT_OPEN: "their node is not open yet",
        WaitReason.NODE_STALE: "the agent of their node does not answer",
        WaitReason.NODE_CORDONED: "cordoned",
        WaitReason.NODE_NOT_READY: "not ready",
        WaitReason.NODE_UNDER_PRESSURE: "short of memory, disk or process ids",
        WaitReason.NODE_LEAVING: "being removed by an autoscaler",
        WaitReason.NODE_NOT_NAMED: "not on the node that the pod names",
        WaitReason.NODE_SELECTOR_MISMATCH: "not selected by the pod",
        WaitReason.NODE_TAINTED: "a taint that the pod does not tolerate",
        WaitReason.NODE_INSUFFICIENT_CPU: "not enough CPU left on their node",
        WaitReason.NODE_INSUFFICIENT_MEMORY: "not enough memory left on their node",
        WaitReason.NODE_INSUFFICIENT_PODS: "their node takes no more pods",
        WaitReason.NODE_PODS_AT_LIMIT: "their node has as many pods with slices as its operator allows",
        WaitReason.NODE_INSUFFICIENT_RESOURCE: "not enough of another resource left on their node",
        WaitReason.NODE_POD_ANTI_AFFINITY: "a required podAntiAffinity keeps it apart from a pod there",
        WaitReason.NODE_POD_AFFINITY: "no pod that its required podAffinity selects is there",
        WaitReason.NODE_TOPOLOGY_SPREAD: "one more there would exceed the maxSkew of its topologySpreadConstraints",
        WaitReason.NODE_TOPOLOGY_LABEL_MISSING: "without the label that a topologyKey of the pod names",
        WaitReason.NODE_HOST_PORT_TAKEN: "another pod on their node has the hostPort that it needs",
        WaitReason.NODE_VOLUME_ELSEWHERE: "a volume of the pod is not accessible from there",
        WaitReason.NODE_WITHOUT_HAND_OVER: "their kubelet does not hand over devices by ResourceClaim",
    },
    "devices": {  # which GPUs can serve a claim
        WaitReason.GPU_NO_SUCH_PROFILE: "has no such profile, or none that is large enough",
        WaitReason.GPU_NOT_IN_LAYOUT: "no instance of that size in the layout that its administrator fixed",
        WaitReason.GPU_MEMORY_UNKNOWN: "its memory is unknown, so it can only be granted whole",
        WaitReason.GPU_MODE_NOT_FIT: "not set up for the requested mode",
        WaitReason.GPU_MODEL_MISMATCH: "not of the requested model",
        WaitReason.GPU_UUID_MISMATCH: "not among the GPUs named",
        WaitReason.GPU_UNHEALTHY: "unhealthy",
    },
    "room": {  # where there is room now
        WaitReason.GPU_LAYOUT_FULL: "no free place of that size",
        WaitReason.GPU_ENGINES_USED_UP: "the media engines that it needs are in use",
        WaitReason.GPU_INSTANCES_TAKEN: "no free instance of that size in the layout that its administrator fixed",
        WaitReason.GPU_NOT_IDLE: "in use, and an idle one is needed",
        WaitReason.GPU_AVOIDED: "this pod's slice failed there recently",
        WaitReason.GPU_INSUFFICIENT_MEMORY: "not enough GPU memory left",
        WaitReason.GPU_INSUFFICIENT_SMS: "not enough SMs left",
        WaitReason.GPU_TIME_USED_UP: "not enough of their compute time left",
        WaitReason.GPU_TENANTS_USED_UP: "already shared by as many pods as MPS serves",
        WaitReason.GPU_OTHER_TRUST_DOMAIN: "shared by pods of another namespace or user, or in another mode",
    },
    "together": {  # all on one node
        WaitReason.NUMA_NOT_FIT: "no NUMA node has enough of the requested GPUs free",
        WaitReason.ONE_GPU_NOT_FIT: "no GPU has room for all devices that must be on one",
        WaitReason.TOO_FEW_GPUS_ON_NODE: "not enough of the requested GPUs are free there",
    },
    "turn": {  # whose turn it is
        WaitReason.QUOTA_EXCEEDED: "above the quota of their namespace",
        WaitReason.GROUP_INCOMPLETE: "not all pods of its group have asked yet",
        WaitReason.GROUP_NOT_FIT: "no room for all pods of its group at once",
        WaitReason.PLACE_BEING_FREED: "reserved for it, but not free yet",
        WaitReason.PLACE_PROMISED: "reserved for pods ahead in the queue",
        WaitReason.QUEUE_FULL: "the queue is full",
    },
}
"""In the order in which a place is searched."""
FILTERS = tuple(_BY_FILTER)
IN_WORDS = {reason: words for reasons in _BY_FILTER.values() for reason, words in reasons.items()}
_FILTER_OF = {reason: name for name, reasons in _BY_FILTER.items() for reason in reasons}


class ReasonsByFilter(msgspec.Struct, frozen=True):
    """One filter, and what it excluded, the most concerned first."""

    filter: str
    reasons: tuple[ReasonCount, ...]


def reasons_by_filter(reasons: Iterable[ReasonCount]) -> tuple[ReasonsByFilter, ...]:
    """The reasons by filter, in the order of the filters; filters that excluded nothing are left out."""
    found: dict[str, list[ReasonCount]] = {name: [] for name in FILTERS}
    for reason in reasons:
        found[_FILTER_OF[reason.reason]].append(reason)
    for listed in found.values():
        listed.sort(key=lambda each: (-each.count, each.of, each.on, each.reason))
    return tuple(ReasonsByFilter(name, tuple(listed)) for name, listed in found.items() if listed)

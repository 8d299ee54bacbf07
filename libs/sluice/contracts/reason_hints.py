"""For each reason to wait, one sentence on what would help. Numbers of one request are in its message (`Pending`)."""

from collections.abc import Sequence

from sluice.contracts.reasons import ReasonCount, WaitReason

HINTS = {
    WaitReason.NO_NODES: "Ask the cluster's operators whether the node agents run.",
    WaitReason.NO_NODE_CAN_FIT: "It starts when a node joins that can serve it; asking for what exists is quicker.",
    WaitReason.NODE_NOT_OPEN: "This lasts a moment; if it does not, the node's agent has to be looked at.",
    WaitReason.NODE_STALE: "It starts when the node's agent answers again, or elsewhere when there is room.",
    WaitReason.NODE_CORDONED: "It starts when the cordon is lifted, or elsewhere when there is room.",
    WaitReason.NODE_NOT_READY: "It starts when its node is ready (again), or elsewhere when there is room.",
    WaitReason.NODE_UNDER_PRESSURE: (
        "It starts when the node has memory, disk and process ids to spare again, or elsewhere when there is room."
    ),
    WaitReason.NODE_LEAVING: "It starts on another such node, or on the one that an autoscaler adds in its place.",
    WaitReason.NODE_NOT_NAMED: "It starts when there is room on the node that the pod names; naming none is quicker.",
    WaitReason.NODE_SELECTOR_MISMATCH: "Compare its nodeSelector and affinity with kubectl get nodes --show-labels.",
    WaitReason.NODE_TAINTED: "Give the pod a toleration for that taint, if it may run there.",
    WaitReason.NODE_INSUFFICIENT_CPU: "It starts when CPU is free on a node with a free slice; requesting less helps.",
    WaitReason.NODE_INSUFFICIENT_MEMORY: (
        "It starts when memory is free on a node with a free slice; requesting less helps."
    ),
    WaitReason.NODE_INSUFFICIENT_PODS: "It starts when another pod on such a node ends.",
    WaitReason.NODE_PODS_AT_LIMIT: (
        "It starts when a pod with a slice on such a node ends, or when its operator raises the limit."
    ),
    WaitReason.NODE_INSUFFICIENT_RESOURCE: (
        "It starts when all else that the pod requests (resources.requests) is free on a node with a free slice."
    ),
    WaitReason.NODE_POD_ANTI_AFFINITY: (
        "It starts when such a pod ends, or a node without one is added; a preferred podAntiAffinity waits for none."
    ),
    WaitReason.NODE_POD_AFFINITY: (
        "It starts when a pod that its podAffinity names is where a slice is free; a preferred one does not wait."
    ),
    WaitReason.NODE_TOPOLOGY_SPREAD: (
        "It starts when the domain with fewest of its pods has a free slice; a larger maxSkew or ScheduleAnyway helps."
    ),
    WaitReason.NODE_TOPOLOGY_LABEL_MISSING: (
        "Label the nodes (kubectl label node), or name a topologyKey that kubectl get nodes --show-labels shows."
    ),
    WaitReason.NODE_HOST_PORT_TAKEN: (
        "It starts when the pod with that hostPort ends; leaving hostPort out, behind a Service, does not wait."
    ),
    WaitReason.NODE_VOLUME_ELSEWHERE: (
        "It starts when a slice is free where its volumes are: compare kubectl describe pv with the nodes' labels."
    ),
    WaitReason.NODE_WITHOUT_HAND_OVER: (
        "A node serves it once its agent is registered with its kubelet, which needs Kubernetes 1.34 and CDI; "
        "a pod without ResourceClaims needs neither."
    ),
    WaitReason.GPU_UNHEALTHY: "It starts when the GPU is mended, or elsewhere when there is room.",
    WaitReason.GPU_MODE_NOT_FIT: (
        "A profile needs a GPU with MIG on, a share needs a node that serves mps or fractional: ask for another mode."
    ),
    WaitReason.GPU_MODEL_MISMATCH: "It starts when a GPU of a model that it asks for is free; naming none helps.",
    WaitReason.GPU_UUID_MISMATCH: "It starts when the GPU that the pod names is free; naming none helps.",
    WaitReason.GPU_NO_SUCH_PROFILE: "Ask for a profile or for sizes that one of these GPUs can have.",
    WaitReason.GPU_LAYOUT_FULL: "It starts when a pod with a slice there ends; a smaller slice may start sooner.",
    WaitReason.GPU_ENGINES_USED_UP: "It starts when a pod with media engines ends; a profile without them may fit.",
    WaitReason.GPU_NOT_IDLE: "It starts when the last pod on such a GPU ends; a slice of one may start sooner.",
    WaitReason.GPU_INSUFFICIENT_MEMORY: "It starts when a pod on such a GPU ends; a share of less memory may fit now.",
    WaitReason.GPU_MEMORY_UNKNOWN: (
        "The driver does not tell how much memory such a GPU has: ask for a whole one (sluice.dev/gpus), or for "
        "another model."
    ),
    WaitReason.GPU_INSUFFICIENT_SMS: (
        "It starts when a pod on such a GPU ends; a share with a smaller sm-partition may fit now."
    ),
    WaitReason.GPU_TIME_USED_UP: "It starts when a pod on such a GPU ends; a smaller quota-request may fit now.",
    WaitReason.GPU_TENANTS_USED_UP: "It starts when a pod on such a GPU ends.",
    WaitReason.GPU_OTHER_TRUST_DOMAIN: (
        "It starts when those pods end. Only pods of one namespace, runAsUser and mode share a GPU."
    ),
    WaitReason.GPU_AVOIDED: "It is tried there again by itself, after longer each time.",
    WaitReason.NUMA_NOT_FIT: "It starts when one NUMA node has all of them free; leaving out numa-bind helps.",
    WaitReason.ONE_GPU_NOT_FIT: (
        "It starts when one GPU has room for all of them; smaller ones, or leaving out the constraint, may be quicker."
    ),
    WaitReason.TOO_FEW_GPUS_ON_NODE: "It starts when one node has all of them free; asking for fewer helps.",
    WaitReason.GPU_NOT_IN_LAYOUT: (
        "Ask for an instance of a size that is there, or allow a larger one (sluice.dev/substitute)."
    ),
    WaitReason.GPU_INSTANCES_TAKEN: (
        "It starts when a pod with such an instance ends; allowing a larger one (sluice.dev/substitute) may be quicker."
    ),
    WaitReason.QUOTA_EXCEEDED: (
        "It starts when pods of its namespace end, or when its quota is raised (sluice quota); asking for less helps."
    ),
    WaitReason.GROUP_INCOMPLETE: "It starts when as many pods have asked as sluice.dev/group-size says.",
    WaitReason.GROUP_NOT_FIT: "It starts when all pods of the group fit at once; fewer or smaller ones may start now.",
    WaitReason.PLACE_BEING_FREED: "It starts when the pods that still hold the place have left it.",
    WaitReason.PLACE_PROMISED: "It starts when the pods ahead of it have their places, or when others end.",
    WaitReason.QUEUE_FULL: "It gets its turn when other waiting pods have left the queue; nothing has to be done.",
}
"""One per reason. What happens by itself comes before what the pod's owner can do."""


LATER = "This reason is from a newer version of Sluice; see its page of reasons for what helps."
"""For a reason that this version does not know yet."""

_WHATEVER_IS_FREE = frozenset(
    {
        WaitReason.NODE_SELECTOR_MISMATCH,
        WaitReason.NODE_TAINTED,
        WaitReason.NODE_TOPOLOGY_LABEL_MISSING,
        WaitReason.NODE_VOLUME_ELSEWHERE,
        WaitReason.GPU_MODE_NOT_FIT,
        WaitReason.GPU_MEMORY_UNKNOWN,
        WaitReason.GPU_NOT_IN_LAYOUT,
    }
)
"""Reasons whose hint is right also where nothing can ever fit."""


def hint_for(reasons: Sequence[ReasonCount]) -> str:
    """What would help with the first of `reasons`, or with the cause behind "nothing can ever fit"; else empty."""
    if not reasons:
        return ""
    first, *others = (each.reason for each in reasons)
    found = [HINTS.get(first, LATER)]
    if first is WaitReason.NO_NODE_CAN_FIT:
        found += [HINTS[why] for why in others[:1] if why in _WHATEVER_IS_FREE]
    return " ".join(found)

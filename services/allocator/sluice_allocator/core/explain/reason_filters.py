"""Groups reasons by the filters they come from, in the order in which a place is searched."""

from collections.abc import Iterable

import msgspec

from sluice.contracts.reasons import ReasonCount, WaitReason

_FILTERS: dict[str, frozenset[WaitReason]] = {
    "nodes": frozenset(
        {
            WaitReason.NO_NODES,
            WaitReason.NO_NODE_CAN_FIT,
            WaitReason.NODE_NOT_OPEN,
            WaitReason.NODE_STALE,
            WaitReason.NODE_CORDONED,
            WaitReason.NODE_NOT_READY,
            WaitReason.NODE_UNDER_PRESSURE,
            WaitReason.NODE_LEAVING,
            WaitReason.NODE_NOT_NAMED,
            WaitReason.NODE_SELECTOR_MISMATCH,
            WaitReason.NODE_TAINTED,
            WaitReason.NODE_INSUFFICIENT_CPU,
            WaitReason.NODE_INSUFFICIENT_MEMORY,
            WaitReason.NODE_INSUFFICIENT_PODS,
            WaitReason.NODE_PODS_AT_LIMIT,
            WaitReason.NODE_INSUFFICIENT_RESOURCE,
            WaitReason.NODE_POD_ANTI_AFFINITY,
            WaitReason.NODE_POD_AFFINITY,
            WaitReason.NODE_TOPOLOGY_SPREAD,
            WaitReason.NODE_TOPOLOGY_LABEL_MISSING,
            WaitReason.NODE_HOST_PORT_TAKEN,
            WaitReason.NODE_VOLUME_ELSEWHERE,
            WaitReason.NODE_WITHOUT_HAND_OVER,
        }
    ),
    "devices": frozenset(
        {
            WaitReason.GPU_UNHEALTHY,
            WaitReason.GPU_MODE_NOT_FIT,
            WaitReason.GPU_MEMORY_UNKNOWN,
            WaitReason.GPU_MODEL_MISMATCH,
            WaitReason.GPU_UUID_MISMATCH,
            WaitReason.GPU_NO_SUCH_PROFILE,
            WaitReason.GPU_NOT_IN_LAYOUT,
        }
    ),
    "room": frozenset(
        {
            WaitReason.GPU_LAYOUT_FULL,
            WaitReason.GPU_INSTANCES_TAKEN,
            WaitReason.GPU_ENGINES_USED_UP,
            WaitReason.GPU_NOT_IDLE,
            WaitReason.GPU_INSUFFICIENT_MEMORY,
            WaitReason.GPU_INSUFFICIENT_SMS,
            WaitReason.GPU_TIME_USED_UP,
            WaitReason.GPU_TENANTS_USED_UP,
            WaitReason.GPU_OTHER_TRUST_DOMAIN,
            WaitReason.GPU_AVOIDED,
        }
    ),
    "together": frozenset({WaitReason.NUMA_NOT_FIT, WaitReason.ONE_GPU_NOT_FIT, WaitReason.TOO_FEW_GPUS_ON_NODE}),
    "turn": frozenset(
        {
            WaitReason.QUOTA_EXCEEDED,
            WaitReason.GROUP_INCOMPLETE,
            WaitReason.GROUP_NOT_FIT,
            WaitReason.PLACE_BEING_FREED,
            WaitReason.PLACE_PROMISED,
            WaitReason.QUEUE_FULL,
        }
    ),
}
"""Which node may be used at all; which GPUs can serve such a claim; where there is room now; all on one node;
whose turn it is."""
FILTERS = tuple(_FILTERS)
_FILTER_OF = {reason: name for name, reasons in _FILTERS.items() for reason in reasons}


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

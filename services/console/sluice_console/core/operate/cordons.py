"""
Messages of `sluice cordon`, `uncordon` and `drain`, and what delays a drain.

Decides nothing about pods: the allocator orders evictions; this shows the same facts.
"""

from collections.abc import Iterable

from sluice.contracts.ids import GpuUuid, NodeName, RequestId
from sluice.contracts.messages import (
    AnyMessage,
    Booking,
    Bound,
    Cordoned,
    EvictionBlocked,
    EvictionDone,
    EvictionOrdered,
    GpuReport,
    Grant,
    RequestWithdrawn,
    Uncordoned,
)
from sluice.contracts.quotas.limits_file import WHY_MAX
from sluice_console.core.documents import DrainedPodDocument
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.operate.limits_file import why_of_a_file


class CordonError(ValueError):
    """The change is not allowed for this node; the message says why."""


class UnknownTargetError(CordonError):
    """No such node or GPU; the message lists the known ones."""


def named_gpus(fleet_state: FleetState, node: str, wanted: Iterable[str]) -> tuple[GpuUuid, ...]:
    """The GPUs of a node named by UUID or index, ordered by index.

    Raises UnknownTargetError for an unknown node or GPU."""
    inventory = fleet_state.inventories().get(node)
    if inventory is None:
        known = ", ".join(sorted(fleet_state.inventories())[:8]) or "none"
        raise UnknownTargetError(f"there is no node {node}; known: {known}")
    gpus = sorted(inventory.snapshot.gpus, key=lambda gpu: gpu.index)
    found = {_gpu(gpus, node, each).uuid: None for each in wanted}
    return tuple(gpu.uuid for gpu in gpus if gpu.uuid in found)


def _gpu(gpus: list[GpuReport], node: str, wanted: str) -> GpuReport:
    for gpu in gpus:
        if wanted in {gpu.uuid, str(gpu.index)}:
            return gpu
    has = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus) or "none"
    raise UnknownTargetError(f"{node} has no GPU {wanted!r}; it has {has}")


def check_by_hand(last: AnyMessage | None, *, take_over: bool) -> None:
    """Raises CordonError if the last message comes from a limits file, unless `take_over`."""
    why_not = why_of_a_file(last)
    if why_not and not take_over:
        raise CordonError(why_not)


def cordon_word(
    node: NodeName, last: AnyMessage | None, gpus: tuple[GpuUuid, ...], *, why: str, drain: bool
) -> Cordoned:
    """The message that follows `last`: GPUs are added to those already cordoned; a whole node stays whole.

    An empty `why` keeps the previous reason. A cordon never ends a drain: `uncordon` does. Raises CordonError."""
    if len(why) > WHY_MAX:
        raise CordonError(
            f"--why of {len(why)} characters: at most {WHY_MAX} are allowed: every waiting pod shows them"
        )
    before = last if isinstance(last, Cordoned) else None
    if before is None:
        return Cordoned(node=node, gpus=gpus, why=why, drain=drain)
    both = tuple(dict.fromkeys((*before.gpus, *gpus))) if before.gpus and gpus else ()
    if before.drain and not drain and both != before.gpus:
        raise CordonError(f"{node} is being drained: end that first (sluice uncordon), or drain more of it")
    if drain and not before.drain:
        both = _only_drained(node, before, gpus)
    return Cordoned(node=node, gpus=both, why=why or before.why, drain=drain or before.drain)


def _only_drained(node: str, before: Cordoned, gpus: tuple[GpuUuid, ...]) -> tuple[GpuUuid, ...]:
    """A node has one cordon message: draining some GPUs of an otherwise cordoned node would drain or free the others.

    Raises CordonError then."""
    if not gpus or before.gpus == gpus or (before.gpus and set(before.gpus) <= set(gpus)):
        return gpus
    what = "as a whole" if not before.gpus else ", ".join(before.gpus)
    raise CordonError(f"{node} is cordoned already ({what}): drain that, or uncordon it first")


def uncordon_word(node: NodeName, last: AnyMessage | None, gpus: tuple[GpuUuid, ...]) -> AnyMessage:
    """The message that follows `last` when these GPUs are usable again; the whole node if none is named."""
    if isinstance(last, Uncordoned):
        return last
    if not isinstance(last, Cordoned) or not gpus:
        return Uncordoned(node=node)
    if not last.gpus:
        raise CordonError(f"{node} is cordoned as a whole: uncordon it without --gpu, then cordon the other GPUs")
    left = tuple(each for each in last.gpus if each not in gpus)
    if not left:
        return Uncordoned(node=node)
    return Cordoned(node=node, gpus=left, why=last.why, drain=last.drain)


# -- what is in the way -------------------------------------------------------------------------------------------


def pods_on(fleet_state: FleetState, node: str, gpus: tuple[GpuUuid, ...]) -> tuple[DrainedPodDocument, ...]:
    """Pods with a slice on these GPUs (on the node if none is named), by namespace and name."""
    found = [
        _on(fleet_state, message, booking)
        for message, booking in fleet_state.bookings()
        if booking.node == node and (not gpus or any(device.gpu in gpus for device in booking.devices))
    ]
    return tuple(sorted(found, key=lambda pod: (pod.namespace, pod.name, pod.request)))


def _on(fleet_state: FleetState, message: object, booking: Booking) -> DrainedPodDocument:
    state, why = _state(fleet_state, message, booking.request)
    return DrainedPodDocument(
        request=booking.request,
        namespace=booking.namespace,
        name=booking.name,
        state=state,
        message=why,
    )


def _state(fleet_state: FleetState, message: object, request: RequestId) -> tuple[str, str]:
    """A pod's progress, and what delays it."""
    if not isinstance(message, Grant):
        return "ending", "its slice is being destroyed"
    if fleet_state.at("request", RequestWithdrawn, request) is not None:
        return "ending", "its pod is gone; its slice is to be destroyed"
    bound = fleet_state.at("binding", Bound, request)
    if bound is None or bound.allocation != message.booking.allocation:
        return "granted", "its slice is reserved or being created"
    ordered = fleet_state.at("eviction", EvictionOrdered, request)
    blocked = fleet_state.at("evicted", EvictionBlocked, request)
    if ordered is None:
        return "running", ""
    if blocked is not None:
        return "blocked", blocked.why
    if fleet_state.at("evicted", EvictionDone, request) is not None:
        return "evicted", "it is terminating within its grace period"
    return "ordered", ordered.cause

"""Every request and its state, as one word and as one sentence."""

from datetime import UTC, datetime

import msgspec

from sluice.contracts.bus import subjects
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import (
    AllocationRequested,
    Booking,
    Bound,
    ContainerDevices,
    Grant,
    Pending,
    Refused,
    Released,
    RequestRejected,
    RequestWithdrawn,
    Revoke,
    SliceDegraded,
    SliceFailed,
    SliceMessage,
    SliceQuarantined,
)
from sluice.contracts.request_syntax import claims_text
from sluice.contracts.ticket_paths import quota_library_beside
from sluice_console.core.documents import PodDocument, PodsDocument
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.shared_devices import shares_text

Order = tuple[Grant | Revoke, Booking]
"""The ledger entry of one request."""


def pods_document(fleet_state: FleetState, *, with_ended: bool = False) -> PodsDocument:
    """All requests, ordered by namespace, name and id; ended ones on demand."""
    # Grants overwrite revokes: of two allocations of one request, the one being created decides the state.
    newest_last = sorted(fleet_state.bookings(), key=lambda found: isinstance(found[0], Grant))
    bookings: dict[str, Order] = {booking.request: (message, booking) for message, booking in newest_last}
    asking = fleet_state.of("request", AllocationRequested)
    pods = [_requested(fleet_state, key[0], asked, bookings.get(key[0])) for key, asked in asking]
    pods += [_rejected(key[0], rejected) for key, rejected in fleet_state.of("request", RequestRejected)]
    known = {pod.request for pod in pods}
    for key, withdrawn in fleet_state.of("request", RequestWithdrawn):
        pods.append(_withdrawn(fleet_state, key[0], withdrawn, bookings.get(key[0])))
        known.add(key[0])
    pods += [_orphan(order) for request, order in bookings.items() if request not in known]
    shown = [pod for pod in pods if with_ended or pod.state != "ended"]
    return PodsDocument(pods=tuple(sorted(shown, key=lambda pod: (pod.namespace, pod.name, pod.origin, pod.request))))


def _requested(fleet_state: FleetState, request: str, asked: AllocationRequested, order: Order | None) -> PodDocument:
    pod = PodDocument(
        request=request,
        namespace=asked.namespace,
        name=asked.name,
        origin=asked.origin,
        source=asked.source,
        state="requested",
        message=f"asks for {claims_text(asked.claims)}; no answer yet",
        revision=asked.revision,
        claims=asked.claims,
    )
    if asked.held is None:  # its source writes it again once it has a slice: the first time is in the history alone
        pod = msgspec.structs.replace(pod, asked_at=_time(fleet_state, subjects.request(RequestId(request))))
    refused = fleet_state.at("binding", Refused, request)
    if refused is not None and refused.request_revision >= asked.revision:
        return _with_refused(pod, refused)
    bound = fleet_state.at("binding", Bound, request)
    if bound is not None:
        return _with_bound(fleet_state, pod, bound)
    pending = fleet_state.at("waiting", Pending, request)
    waits = pending if pending is not None and pending.request_revision >= asked.revision else None
    is_promised = order is not None and isinstance(order[0], Grant) and bool(order[0].after)
    if order is not None and not (is_promised and waits is not None):
        return _with_order(fleet_state, pod, order)
    if waits is not None:
        message = f"waits: {waits.message}"
        return msgspec.structs.replace(pod, state="waiting", message=message, reasons=waits.reasons)
    return pod


def _with_refused(pod: PodDocument, refused: Refused) -> PodDocument:
    message = f"refused: {refused.refusal.sentence()}"
    return msgspec.structs.replace(pod, state="refused", message=message, refusal=refused.refusal)


def _with_bound(fleet_state: FleetState, pod: PodDocument, bound: Bound) -> PodDocument:
    trouble = _trouble(_slice_of(fleet_state, bound.node, bound.allocation))
    order = fleet_state.at("ledger", Grant | Revoke, bound.node, bound.allocation)  # type: ignore[arg-type]
    return msgspec.structs.replace(
        pod,
        state="bound",
        bound_at=_time(fleet_state, subjects.binding(bound.request)) if bound.revision == 1 else "",
        message=f"{_has_text(pod, bound, order)}{trouble}",
        node=bound.node,
        allocation=bound.allocation,
        ticket=bound.ticket,
        devices=order.booking.devices if order is not None else (),
        containers=bound.containers,
        warnings=bound.warnings,
    )


def _time(fleet_state: FleetState, address: Address) -> str:
    at = fleet_state.stored_at.get(address.subject)
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds") if at is not None else ""


def _has_text(pod: PodDocument, bound: Bound, order: Grant | Revoke | None) -> str:
    """What a pod has and where; also what it asked for, if different."""
    asked = claims_text(pod.claims)
    if order is not None and order.booking.instead_of:
        given = ", ".join(dict.fromkeys(each.profile or "a whole GPU" for each in order.booking.devices))
        return f"has {given} on {bound.node}, larger than the {order.booking.instead_of} that it asked for"
    shares = shares_text(order.booking if order is not None else None)
    if isinstance(order, Grant) and order.revision > 1 and shares:  # only a resize changes a grant's share
        return f"has {shares} on {bound.node}, adjusted from the {asked} that it asked for"
    return f"has {asked} on {bound.node}{f', as {shares}' if shares else ''}"


def _with_order(fleet_state: FleetState, pod: PodDocument, order: Order) -> PodDocument:
    message, booking = order
    being = "is being created" if isinstance(message, Grant) else "is being released"
    trouble = _trouble(_slice_of(fleet_state, booking.node, booking.allocation))
    return msgspec.structs.replace(
        pod,
        state="making" if isinstance(message, Grant) else "ending",
        message=f"its slice {being} on {booking.node}{trouble}",
        node=booking.node,
        allocation=booking.allocation,
        devices=booking.devices,
    )


def variables_text(part: ContainerDevices) -> list[str]:
    """A container's environment variables. Directories are those on the node."""
    told = {
        "NVIDIA_VISIBLE_DEVICES": part.visible_devices,
        "CUDA_MPS_PIPE_DIRECTORY": part.mps_pipe_directory,
        "CUDA_MPS_LOG_DIRECTORY": part.mps_log_directory,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(part.active_thread_percentage or ""),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": part.pinned_memory_limit,
        "SLUICE_QUOTA_SOCKET": part.quota_socket,
        "LD_PRELOAD": quota_library_beside(part.quota_socket),
    }
    return [f"{name}={value}" for name, value in told.items() if value or name == "NVIDIA_VISIBLE_DEVICES"]


def _slice_of(fleet_state: FleetState, node: str, allocation: str) -> SliceMessage | None:
    return fleet_state.at("slice", SliceMessage, node, allocation)  # type: ignore[arg-type]


def _trouble(word: SliceMessage | None) -> str:
    if isinstance(word, SliceFailed | SliceDegraded | SliceQuarantined):
        return f", but: {word.message}"
    return ""


def _rejected(request: str, rejected: RequestRejected) -> PodDocument:
    return PodDocument(
        request=request,
        namespace=rejected.namespace,
        name=rejected.name,
        origin=rejected.origin,
        source=rejected.source,
        state="refused",
        message=f"refused: {rejected.refusal.sentence()}",
        revision=rejected.revision,
        refusal=rejected.refusal,
    )


def _withdrawn(fleet_state: FleetState, request: str, withdrawn: RequestWithdrawn, order: Order | None) -> PodDocument:
    asked = fleet_state.past.get(subjects.request(RequestId(request)).subject)
    pod = PodDocument(
        request=request,
        namespace=asked.namespace if asked is not None else "",
        name=asked.name if asked is not None else "",
        origin=asked.origin if asked is not None else "",
        source=withdrawn.source,
        state="ended",
        message=f"withdrawn ({withdrawn.cause}); it holds no slice",
        revision=withdrawn.revision,
    )
    if order is None:
        released = fleet_state.at("binding", Released, request) is not None
        bound = fleet_state.at("binding", Bound, request) is not None
        return msgspec.structs.replace(pod, state="ending") if bound and not released else pod
    booking = order[1]
    return msgspec.structs.replace(
        _with_order(fleet_state, pod, order), namespace=booking.namespace, name=booking.name, state="ending"
    )


def _orphan(order: Order) -> PodDocument:
    _, booking = order
    return PodDocument(
        request=booking.request,
        namespace=booking.namespace,
        name=booking.name,
        origin="",
        source=booking.source,
        state="ending",
        message=f"a slice on {booking.node} that no request claims; it is kept until its source has listed its pods",
        revision=booking.request_revision,
        node=booking.node,
        allocation=booking.allocation,
    )

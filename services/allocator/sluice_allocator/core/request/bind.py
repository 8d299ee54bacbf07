"""Publishes `Bound` for a granted request, and `Released` when its slice is over (PROTOCOL §4)."""

from collections.abc import Iterator

import msgspec

from sluice.contracts.bus import subjects
from sluice.contracts.driver_capabilities import implied
from sluice.contracts.ids import AllocationId, OperationId, RequestId, operation_parts
from sluice.contracts.messages import (
    AllocationRequested,
    Bound,
    Closed,
    ContainerDevices,
    Grant,
    Held,
    LedgerEntry,
    Released,
    SliceReady,
)
from sluice_allocator.core.quotas.overcommit import await_reading, may_bind
from sluice_allocator.core.request.grant_warnings import advice
from sluice_allocator.core.request.recovery import await_node
from sluice_allocator.core.state.conditions import Condition
from sluice_allocator.core.state.context import Desk
from sluice_allocator.core.state.facts import doubtful_ticket, is_unshown


def bindable(grants: dict[AllocationId, Grant], held: Held | None) -> dict[AllocationId, Grant]:
    """Of several grants the one that the source remembers, if any, since the pod is there: ready (again) or not."""
    if held is None or held.allocation not in grants:
        return grants
    return {held.allocation: grants[held.allocation]}


def _keeps_time(desk: Desk, grant: Grant) -> bool:
    """Whether the node enforces time quotas, by its last inventory."""
    shown = desk.shown.get(grant.booking.node)
    return shown is not None and shown.time_quota


def bound_of(desk: Desk, allocation: AllocationId, grant: Grant, revision: int) -> Bound | None:
    """The `Bound` of this slice; None while it is not ready, or may not be bound."""
    slice_ = desk.world.slices.get(allocation)
    if not isinstance(slice_, SliceReady) or slice_.revision != grant.revision:
        return None
    if revision == 1 and not may_bind(desk, grant):
        await_reading(desk, grant)
        return None
    return Bound(
        request=grant.booking.request,
        request_revision=grant.booking.request_revision,
        allocation=allocation,
        node=grant.booking.node,
        revision=revision,
        ticket=slice_.ticket,
        containers=tuple(_containers(desk, grant, slice_)),
        slice_sequence=desk.world.sequences.get(subjects.slice_(grant.booking.node, allocation).subject, 0),
        warnings=(*slice_.warnings, *advice(slice_, grant.booking, time_quota=_keeps_time(desk, grant))),
        source=grant.booking.source,
        incarnation=desk.world.incarnation,
        slice_operation=desk.world.slice_operations.get(allocation, OperationId("")),
    )


def _containers(desk: Desk, grant: Grant, slice_: SliceReady) -> Iterator[ContainerDevices]:
    """Each container's environment: devices from the agent, capabilities from the request."""
    asked = desk.world.requests.get(grant.booking.request)
    sets = (*reversed(asked.alternatives), asked.claims) if isinstance(asked, AllocationRequested) else ()
    chosen = {claim.container: claim.driver_capabilities for claims in sets for claim in claims}
    for each in slice_.containers:
        profiles = [device.profile for device in grant.booking.devices if device.container == each.container]
        capabilities = chosen.get(each.container) or implied(profiles)
        yield msgspec.structs.replace(each, driver_capabilities=capabilities)


def follow_bound(desk: Desk, request: RequestId, binding: Bound, entries: dict[AllocationId, LedgerEntry]) -> None:
    """Update a bound request: its strings and warnings follow the slice (a reboot changes them); losing it ends it."""
    entry = entries.get(binding.allocation)
    if isinstance(entry, Grant):
        again = bound_of(desk, binding.allocation, entry, binding.revision + 1)
        if again is None or _told(again) == _told(binding):
            desk.conditions.clear(Condition.BINDING_DIFFERS, request)
        elif _is_newer(desk, again, binding) or desk.conditions.is_mature(Condition.BINDING_DIFFERS, request):
            desk.commit(subjects.binding(request), again, request)
        else:
            desk.conditions.observe(Condition.BINDING_DIFFERS, request, due=desk.now + desk.rules.rebind_anyway_s)
    elif request in desk.committing:
        return  # decided before that status was read, and not answered yet: nothing may land for what is released
    elif isinstance(entry, Closed):
        if await_node(desk, request, None) is None:
            release(desk, request, f"slice lost: {entry.cause}")
    elif binding.allocation in desk.world.lost:
        held = Held(node=binding.node, allocation=binding.allocation)
        if is_unshown(desk, binding.node):
            desk.node_waits.hold(request, binding.node)
        elif not doubtful_ticket(desk, held) and await_node(desk, request, held) is None:
            release(desk, request, "slice lost: it is no longer in the ledger")


def bind_again(desk: Desk, late: Bound, grant: Grant) -> None:
    """Bind a pod to its slice once that is ready, if a Bound of an earlier incarnation of the broker is late."""
    again = bound_of(desk, grant.booking.allocation, grant, late.revision + 1)
    if again is not None:
        desk.commit(subjects.binding(late.request), again, late.request)


def _told(bound: Bound) -> tuple[object, ...]:
    """The part of a binding that its pod reads: when this differs, the binding is published again."""
    return bound.ticket, bound.containers, bound.warnings


def _is_newer(desk: Desk, again: Bound, binding: Bound) -> bool:
    """
    Whether a slice's status is newer than what its pod read.

    One process numbers its writes. Of two runs of an agent the present one is that for which its node is open, as
    BOOK tells, which forgets nothing. Bindings of an older allocator are compared by the sequences of STATE.
    """
    if not (again.slice_operation and binding.slice_operation):
        return again.slice_sequence > binding.slice_sequence
    run, number = operation_parts(again.slice_operation)
    told_by, told = operation_parts(binding.slice_operation)
    if run == told_by:
        return number > told
    head = desk.world.heads.get(binding.node)
    return head is not None and head.agent_run == run


def release(desk: Desk, request: RequestId, cause: str) -> None:
    """Publish that nothing is left of the request's slices."""
    released = Released(request=request, cause=cause)
    desk.commit(subjects.binding(request), released, request, ttl_s=desk.rules.closing_ttl_s)

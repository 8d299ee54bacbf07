"""What is said of a slice on the bus, and what is reported of it to whoever pulls. Derived, never stored."""

from sluice.contracts.messages import (
    DeviceState,
    SliceDegraded,
    SliceFailed,
    SliceGone,
    SliceMessage,
    SliceQuarantined,
    SliceReady,
    SliceReport,
    SliceState,
)
from sluice_node_agent.core.devices import Devices
from sluice_node_agent.core.making import containers_of
from sluice_node_agent.core.records import SliceRecord, Tombstone
from sluice_node_agent.core.rules import Rules
from sluice_node_agent.core.work import Work, pairs


def word_of(work: Work, devices: Devices, rules: Rules) -> SliceMessage | None:
    """What to say of a slice; None while there is nothing to say but what was said before."""
    record = work.record
    allocation, request, revision = record.booking.allocation, record.booking.request, record.revision
    if is_stuck(work, rules):
        return SliceQuarantined(
            allocation=allocation, request=request, revision=revision, message=work.trouble, holders=work.holders
        )
    if record.phase == "ready":
        return _word_of_ready(record, devices)
    if record.phase == "failed":
        return SliceFailed(
            allocation=allocation, request=request, revision=revision, error=record.error, message=record.message
        )
    if record.phase == "degraded":
        message = f"its devices vanished and could not be made again: {record.error}: {record.message}"
        return SliceDegraded(allocation=allocation, request=request, revision=revision, message=message)
    return None


def word_of_gone(tombstone: Tombstone, *, closing: bool) -> SliceGone:
    """The last word of a slice."""
    return SliceGone(
        allocation=tombstone.allocation,
        request=tombstone.request,
        revision=tombstone.revision,
        cause=tombstone.cause,
        closing=closing,
    )


def report_of(work: Work, devices: Devices, rules: Rules) -> SliceReport:
    """A slice as whoever pulls sees it."""
    record = work.record
    return SliceReport(
        booking=record.booking,
        revision=record.revision,
        state=_state_of(work, devices, rules),
        revoked=record.revoked,
    )


def is_stuck(work: Work, rules: Rules) -> bool:
    """Whether taking a slice down has failed so often that people must know."""
    return work.record.phase in {"undoing", "unmaking"} and work.failures >= rules.quarantine_after


# -- inside -------------------------------------------------------------------------------------------------------


def _word_of_ready(record: SliceRecord, devices: Devices) -> SliceReady | SliceDegraded:
    booking = record.booking
    sick = [grant.gpu for grant in booking.devices if not devices.healthy(grant.gpu)]
    if sick:
        return SliceDegraded(
            allocation=booking.allocation,
            request=booking.request,
            revision=record.revision,
            message=f"{', '.join(sick)} does not answer",
        )
    return SliceReady(
        allocation=booking.allocation,
        request=booking.request,
        revision=record.revision,
        ticket=record.ticket,
        devices=tuple(
            DeviceState(gpu=grant.gpu, profile=grant.profile, start=grant.start, size=grant.size, uuid=device.uuid)
            for _, grant, device in pairs(record)
        ),
        containers=containers_of(record, devices),
    )


def _state_of(work: Work, devices: Devices, rules: Rules) -> SliceState:
    phase = work.record.phase
    if is_stuck(work, rules):
        return "quarantined"
    if phase == "undoing":
        return "making"
    if phase == "ready" and not all(devices.healthy(grant.gpu) for grant in work.record.booking.devices):
        return "degraded"
    return phase

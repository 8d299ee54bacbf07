"""The ResourceClaims of a slice: what each hands over, and the health of it. Pure functions of a record."""

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from sluice.contracts.dra.names import cdi_device, device_names
from sluice.contracts.messages import Booking, ResourceClaimRef
from sluice_node_agent.core.instructions import CdiDevice, CdiPart, PreparedDevice
from sluice_node_agent.core.journal_records import SliceRecord
from sluice_node_agent.core.publish.slice_status import what_is_wrong
from sluice_node_agent.core.recovery.discovered import Discovered
from sluice_node_agent.core.slices.create import containers_of
from sluice_node_agent.core.state.node_state import NodeState
from sluice_node_agent.core.state.tasks import SliceTask, numbered_devices


def with_found_claims(record: SliceRecord, found: Discovered) -> SliceRecord:
    """A record new to the journal, with what may be in use: devices that exist, and CDI files."""
    claims = tuple(claim.uid for claim in record.booking.resource_claims)
    files = tuple(claim for claim in claims if claim in found.cdi)
    for claim in files:
        del found.cdi[claim]
    if not files and not record.boot_id:
        return record
    return replace(record, prepared=claims, cdi_files=files)


def cdi_devices(record: SliceRecord, claim: ResourceClaimRef, state: NodeState) -> tuple[CdiDevice, ...]:
    """What a claim's CDI file holds now: a device for each of its requests that was granted."""
    names = device_names(record.booking.allocation, record.booking.resource_claims)
    containers = {each.container: each for each in containers_of(record, state)}
    return tuple(
        CdiDevice(names[claim.uid, request], containers[key], _parts(record, key, state), claim.shared)
        for request, key in sorted(claim.requests.items())
        if key in containers
    )


def prepared_devices(booking: Booking, claim: ResourceClaimRef) -> tuple[PreparedDevice, ...]:
    """What the kubelet learns of a prepared claim; requests without the alternative that was granted."""
    names = device_names(booking.allocation, booking.resource_claims)
    granted = {grant.container for grant in booking.devices}
    return tuple(
        PreparedDevice(request.partition("/")[0], name, cdi_device(claim.uid, name))
        for request, key in sorted(claim.requests.items())
        if key in granted and (name := names[claim.uid, request])
    )


def _parts(record: SliceRecord, key: str, state: NodeState) -> tuple[CdiPart, ...]:
    """The devices of one container. A share is on its home's."""
    found = []
    for _, grant, device in numbered_devices(record):
        if grant.container != key:
            continue
        home = state.home_of(grant)
        gi_id = home.device.gi_id if home is not None else device.gi_id
        found.append(CdiPart(grant.gpu, device.uuid, gi_id if grant.profile is not None else None))
    return tuple(dict.fromkeys(found))


Health = Literal["healthy", "unhealthy", "unknown"]


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """One device of the pool of this node. `message` says what is wrong; empty when nothing is."""

    name: str
    health: Health
    message: str = ""


def device_health(state: NodeState) -> tuple[DeviceHealth, ...]:
    """All devices that claims have on this node."""
    found = []
    for work in state.slices.values():
        booking = work.record.booking
        if booking.resource_claims:
            health, message = _health_of(work, state)
            names = device_names(booking.allocation, booking.resource_claims)
            found += [DeviceHealth(name, health, message) for name in names.values()]
    return tuple(found)


def _health_of(work: SliceTask, state: NodeState) -> tuple[Health, str]:
    record = work.record
    wrong = "; ".join(what_is_wrong(record, state))
    if wrong:
        return "unhealthy", wrong
    if record.phase == "ready":
        return "healthy", ""
    if record.lost and not record.revoked:
        return (
            "unhealthy",
            f"its devices vanished, and are not created again yet{f': {record.message}' if record.message else ''}",
        )
    return "unknown", "it is being taken back" if record.revoked else "it is being created"

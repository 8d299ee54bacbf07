"""The health of the devices that claims have, for the kubelet: it shows them in the pod's status."""

from dataclasses import dataclass
from typing import Literal

from sluice.contracts.dra.names import device_names
from sluice_node_agent.core.publish.slice_status import what_is_wrong
from sluice_node_agent.core.state.node_state import NodeState
from sluice_node_agent.core.state.tasks import SliceTask

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

"""
Which places on GPUs like those that a pod waits for are being taken away, and what keeps them.

A place that is in nobody's way any more but whose processes live on counts as taken; whether it is the one that the
pod will have is the allocator's to decide and not known here.
"""

from sluice.contracts.messages import Revoke, SliceQuarantined
from sluice_console.core.documents import StandingDocument
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.shared_devices import owner_of
from sluice_console.core.history.sentences import places_text

NAMED_MAX = 5
"""So many places are named."""


def being_freed(fleet_state: FleetState, now: StandingDocument | None) -> tuple[str, ...]:
    """A sentence for each such place, by the models on which the allocator finds no room now; the first few."""
    reasons = [each for step in now.steps if step.filter == "room" for each in step.reasons] if now is not None else []
    full = {each.of.removeprefix("homes on ") for each in reasons}
    if not full:
        return ()
    wanted = {
        gpu.uuid for each in fleet_state.inventories().values() for gpu in each.snapshot.gpus if gpu.model in full
    }
    kept = {said.allocation: said.message for _, said in fleet_state.of("slice", SliceQuarantined)}
    lines = [
        f"{places_text(booking)} on {booking.node} is being freed by {owner_of(booking)}"
        f" ({kept.get(booking.allocation) or message.cause})"
        for message, booking in fleet_state.bookings()
        if isinstance(message, Revoke) and any(device.gpu in wanted for device in booking.devices)
    ]
    more = len(lines) - NAMED_MAX
    return (*lines[:NAMED_MAX], *([f"and {more} more"] if more > 0 else []))

"""What it would mean to remove a node, from the last values: who is on it, and whether it may be said at all."""

from dataclasses import dataclass

from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.history.sentences import places_text


@dataclass(frozen=True, slots=True)
class NodeRemoval:
    """A node that may be removed, and the slices that are given up with it: whose, and what."""

    node: str
    slices: tuple[str, ...]

    def lines(self) -> list[str]:
        """For a person, before anything is done."""
        if not self.slices:
            return [f"{self.node} is gone and holds no slices"]
        return [f"{self.node} is gone; these slices are given up:", *(f"  {each}" for each in self.slices)]


@dataclass(frozen=True, slots=True)
class NotRemovable:
    """Why not; `is_known` tells a node that must stay from one of which nothing is said."""

    why: str
    is_known: bool


def removal_of(fleet_state: FleetState, node: str) -> NodeRemoval | NotRemovable:
    """What removing a node would mean, or why it must not be."""
    bookings = [booking for _, booking in fleet_state.bookings() if booking.node == node]
    inventory = fleet_state.inventories().get(node)
    if inventory is None and node not in fleet_state.news() and node not in fleet_state.heads() and not bookings:
        return NotRemovable(f"there is no node {node!r}", is_known=False)
    if inventory is not None and not inventory.stale:
        why = f"the agent of {node} answers: only a node whose agent is gone can be removed"
        return NotRemovable(f"{why}; `sluice drain` empties a running node", is_known=True)
    slices = tuple(sorted(f"{each.namespace}/{each.name}: {places_text(each)}" for each in bookings))
    return NodeRemoval(node, slices)


def is_given_up(fleet_state: FleetState, node: str) -> bool:
    """Whether nothing is booked on a node, and it is open for nobody."""
    booked = any(booking.node == node for _, booking in fleet_state.bookings())
    return not booked and node not in fleet_state.heads()

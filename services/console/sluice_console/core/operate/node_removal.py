"""What removing a node would give up, from the last values, and whether it is allowed."""

from dataclasses import dataclass

from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.history.sentences import places_text


@dataclass(frozen=True, slots=True)
class NodeRemoval:
    """A removable node, and the slices given up with it, as text."""

    node: str
    slices: tuple[str, ...]

    def lines(self) -> list[str]:
        """Lines to show before the removal."""
        if not self.slices:
            return [f"{self.node} is gone and holds no slices"]
        return [f"{self.node} is gone; these slices are given up:", *(f"  {each}" for each in self.slices)]


@dataclass(frozen=True, slots=True)
class NotRemovable:
    """Why not; `is_known` is False for a node that no message mentions."""

    why: str
    is_known: bool


def removal_of(fleet_state: FleetState, node: str) -> NodeRemoval | NotRemovable:
    """What removing a node would give up, or why it is refused."""
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
    """Whether a node has no booking and is not adopted."""
    booked = any(booking.node == node for _, booking in fleet_state.bookings())
    return not booked and node not in fleet_state.heads()

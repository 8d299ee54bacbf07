"""What it would mean to remove a node, from the last values: who is on it, and whether it may be said at all."""

from dataclasses import dataclass

from sluice_console.core.story import places_text
from sluice_console.core.world import World


@dataclass(frozen=True, slots=True)
class Removal:
    """A node that may be removed, and the slices that are given up with it: whose, and what."""

    node: str
    slices: tuple[str, ...]

    def lines(self) -> list[str]:
        """For a person, before anything is done."""
        if not self.slices:
            return [f"{self.node} is not there any more, and holds no slices"]
        return [f"{self.node} is not there any more; given up with it:", *(f"  {each}" for each in self.slices)]


@dataclass(frozen=True, slots=True)
class NotRemovable:
    """Why not; `is_known` tells a node that must stay from one of which nothing is said."""

    why: str
    is_known: bool


def removal_of(world: World, node: str) -> Removal | NotRemovable:
    """What removing a node would mean, or why it must not be."""
    bookings = [booking for _, booking in world.bookings() if booking.node == node]
    inventory = world.inventories().get(node)
    if inventory is None and node not in world.news() and node not in world.heads() and not bookings:
        return NotRemovable(f"there is no node {node!r}", is_known=False)
    if inventory is not None and not inventory.stale:
        why = f"the agent of {node} answers: a node is removed when it is gone, and its agent with it"
        return NotRemovable(f"{why}; `sluice drain` empties one that lives", is_known=True)
    slices = tuple(sorted(f"{each.namespace}/{each.name}: {places_text(each)}" for each in bookings))
    return Removal(node, slices)


def is_given_up(world: World, node: str) -> bool:
    """Whether nothing is booked on a node, and it is open for nobody."""
    booked = any(booking.node == node for _, booking in world.bookings())
    return not booked and node not in world.heads()

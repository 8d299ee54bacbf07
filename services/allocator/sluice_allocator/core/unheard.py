"""
Heads that were closed for a removal of which this process has not heard (PROTOCOL §6).

BOOK may be read well before STATE: then what is known of a node is of before its removal, and shows nothing of what was
made there since. Whoever opened it on that would give places away that somebody still has, for their grants are closed
without a word of an agent. So STATE is read anew first: it shows the removal, or what was said after it. It must not
judge whether a node may be opened otherwise (`nodes` does).
"""

from dataclasses import dataclass, field

from sluice.contracts.ids import NodeName
from sluice_allocator.core.world import World


@dataclass(slots=True)
class Unheard:
    """Nodes that were closed so."""

    found: dict[NodeName, bool] = field(default_factory=dict)
    """Whether a reading of STATE has begun since."""
    _wanted: bool = False

    def head_changed(self, world: World, node: NodeName) -> None:
        """The head of a node's ledger is another one, or gone."""
        if node in world.closed_heads and node not in world.removed:
            self.found[node] = False
        else:
            self.found.pop(node, None)

    def heard_of(self, world: World, node: NodeName) -> None:
        """There is another last word about a node: from its removal on all that is heard is newer."""
        if node in world.removed:
            self.found.pop(node, None)

    def closed_it(self, node: NodeName) -> None:
        """This process has closed the head of a node itself: it has heard why."""
        self.found.pop(node, None)

    def reading_started(self) -> None:
        """What this reading of STATE shows is newer than all that was found."""
        self.found = dict.fromkeys(self.found, True)

    def was_read(self) -> None:
        """STATE was read whole."""
        self.found = {node: False for node, began in self.found.items() if not began}

    def holds_up(self, node: NodeName) -> bool:
        """Whether a node must not be opened yet; then STATE is wanted anew."""
        if node not in self.found:
            return False
        self._wanted = True
        return True

    def must_read_again(self) -> bool:
        """Whether STATE has to be read anew for one of them."""
        wanted, self._wanted = self._wanted, False
        return wanted

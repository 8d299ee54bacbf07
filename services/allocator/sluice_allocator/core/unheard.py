"""
Tracks heads that were closed for a removal that this process has not read (PROTOCOL §6).

BOOK may be read well before STATE: then the known facts of a node precede its removal, and lack what was made there
since. Opening it on those would give used places away, since their grants are closed without an agent's confirmation.
So STATE is reread first: it shows the removal, or what was published after it.
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
        """The last message about a node changed: after its removal everything read is newer."""
        if node in world.removed:
            self.found.pop(node, None)

    def closed_it(self, node: NodeName) -> None:
        """This process closed the head of a node itself, so it knows why."""
        self.found.pop(node, None)

    def reading_started(self) -> None:
        """This reading of STATE is newer than all that was found."""
        self.found = dict.fromkeys(self.found, True)

    def was_read(self) -> None:
        """STATE was read completely."""
        self.found = {node: False for node, began in self.found.items() if not began}

    def holds_up(self, node: NodeName) -> bool:
        """Whether a node may not be opened yet; then STATE is reread."""
        if node not in self.found:
            return False
        self._wanted = True
        return True

    def must_read_again(self) -> bool:
        """Whether STATE has to be reread for one of them."""
        wanted, self._wanted = self._wanted, False
        return wanted

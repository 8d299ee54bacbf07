"""
Tracks removed nodes, and since when this process knows of each removal (PROTOCOL §6). `removing` closes them.

The time restarts after every reading, and pauses on standby: a running agent must have had all of it to publish
again. It also restarts when another process opens the node: that process has read the agent's message, and this one
may only be late.
"""

from dataclasses import dataclass, field

from sluice.contracts.ids import NodeName


@dataclass(slots=True)
class Removals:
    """Removed nodes, as long as the removal stands."""

    _since: dict[NodeName, float] = field(default_factory=dict)
    """Nodes whose agents may still prove that they run."""
    _over: dict[NodeName, None] = field(default_factory=dict)
    _shut: dict[NodeName, None] = field(default_factory=dict)
    """Nodes whose heads were closed since their removal."""
    _opened: dict[NodeName, None] = field(default_factory=dict)
    """Those that were opened again since."""

    def heard(self, node: NodeName, now: float) -> None:
        """A node is removed; the first time counts."""
        if node not in self._over:
            self._since.setdefault(node, now)

    def shut(self, node: NodeName, now: float) -> None:
        """The head is closed: from now on, if it had been opened meanwhile."""
        if self._opened.pop(node, False) is not False:
            self._over.pop(node, None)
            self._since[node] = now
        self._shut[node] = None

    def may_be_shut(self, node: NodeName, now: float) -> bool:
        """
        Whether to close the head of an open node: at once, or, if it was opened again since it was closed, only when
        its agent has had all of its time again.
        """
        if node in self._shut:
            del self._shut[node]
            self._over.pop(node, None)
            self._since[node] = now
            self._opened[node] = None
        return node not in self._opened or node in self._over

    def is_over(self, node: NodeName) -> bool:
        """Whether its agent has had its time."""
        return node in self._over

    def due(self, now: float, grace_s: float) -> list[NodeName]:
        """The nodes whose time has just passed."""
        due = [node for node, since in self._since.items() if now - since >= grace_s]
        for node in due:
            del self._since[node]
            self._over[node] = None
        return due

    def forget(self, node: NodeName) -> bool:
        """The node is not removed (any more). True when it was."""
        self._shut.pop(node, None)
        self._opened.pop(node, None)
        was_waiting = self._since.pop(node, None) is not None
        return self._over.pop(node, False) is not False or was_waiting

    def begin_anew(self) -> None:
        """Messages may have been missed: every removal counts from now on."""
        self._since.clear()
        self._over.clear()
        self._shut.clear()
        self._opened.clear()

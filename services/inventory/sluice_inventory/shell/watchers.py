"""
Who watches the fleet, and what each has not been told yet.

Only names wait here, each once however often its node changes: what is sent is the node's last state. A watcher that
does not read has its list cut off at a limit, and is told to start again; it never holds up the core or the others.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sluice.contracts.bus.events import BusInstruction
from sluice.contracts.ids import NodeName
from sluice.runtime import logs
from sluice_inventory.core.events import Event, Pull
from sluice_inventory.core.inventory import Inventory


class TooManyWatchersError(Exception):
    """No more watchers are let in."""


class Watcher:
    """One who watches: the nodes it has to be told of."""

    def __init__(self, nodes: frozenset[str], pending_max: int) -> None:
        """Watch `nodes`; none means all."""
        self._nodes = nodes
        self._pending_max = pending_max
        self._pending: dict[NodeName, None] = {}
        self._something = asyncio.Event()
        self.too_slow = False
        """Set when more nodes changed than may wait: what it was told is not all any more."""

    def wants(self, name: NodeName) -> bool:
        """Whether a node is watched."""
        return not self._nodes or name in self._nodes

    def tell(self, name: NodeName) -> None:
        """A node has changed."""
        if self.too_slow or not self.wants(name):
            return
        self._pending[name] = None
        if len(self._pending) > self._pending_max:
            self.too_slow = True
            self._pending.clear()
        self._something.set()

    def skip(self, name: NodeName) -> None:
        """A node's last state is being sent anyway."""
        self._pending.pop(name, None)

    async def next(self) -> NodeName | None:
        """The next node that has changed; waits for one. None when it has become too slow."""
        while not self._pending:
            if self.too_slow:
                return None
            self._something.clear()
            await self._something.wait()
        name = next(iter(self._pending))
        del self._pending[name]
        return name


class Watchers:
    """Everyone who watches now."""

    def __init__(self, *, watchers_max: int, pending_max: int) -> None:
        """Nobody yet."""
        self._watchers_max = watchers_max
        self._pending_max = pending_max
        self._watchers: dict[Watcher, None] = {}

    @contextmanager
    def watch(self, nodes: frozenset[str]) -> Iterator[Watcher]:
        """Watch `nodes` (none means all) for the time of the `with`. Raises TooManyWatchersError."""
        if len(self._watchers) >= self._watchers_max:
            raise TooManyWatchersError
        watcher = Watcher(nodes, self._pending_max)
        self._watchers[watcher] = None
        try:
            yield watcher
        finally:
            del self._watchers[watcher]

    def tell(self, name: NodeName) -> None:
        """A node has changed."""
        for watcher in self._watchers:
            watcher.tell(name)


class NotifyingInventory:
    """The core, as its runner drives it: whoever watches hears of what each event has changed."""

    def __init__(self, core: Inventory, watchers: Watchers) -> None:
        """Tell `watchers` of the changes of `core`."""
        self._core = core
        self._watchers = watchers
        self._stale: dict[NodeName, None] = {}
        self._log = logs.get("inventory")

    def handle(self, event: Event, now: float) -> Sequence[BusInstruction | Pull]:
        """What the core says."""
        instructions = self._core.handle(event, now)
        for name in self._core.changed:
            self._watchers.tell(name)
            self._log_staleness(name)
        return instructions

    def _log_staleness(self, name: NodeName) -> None:
        view = self._core.view(name)
        inventory = view.inventory if view is not None else None
        stale = inventory is not None and inventory.stale
        if inventory is not None and stale and name not in self._stale:
            self._stale[name] = None
            self._log.warning("a node is stale", node=name, why=inventory.stale_message)
        elif not stale and name in self._stale:
            del self._stale[name]
            self._log.info("a node is stale no more", node=name, known=view is not None)

"""Watchers of the fleet, with the changed nodes each still has to get. Only names are queued, each once: the node's
last state is sent. A watcher that does not read has its queue cut off, and must start again."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sluice.contracts.bus.events import BusInstruction
from sluice.contracts.ids import NodeName
from sluice.runtime import logs
from sluice_inventory.core.events import Event, Pull
from sluice_inventory.core.inventory import Inventory


class TooManyWatchersError(Exception):
    """The limit of watchers is reached."""


class Watcher:
    """One watcher: the nodes it still has to get."""

    def __init__(self, nodes: frozenset[str], pending_max: int) -> None:
        self._nodes, self._pending_max = nodes, pending_max
        self._pending: dict[NodeName, None] = {}
        self._something = asyncio.Event()
        self.too_slow = False  # set when more nodes changed than may be queued: its view is incomplete

    def wants(self, name: NodeName) -> bool:
        return not self._nodes or name in self._nodes

    def tell(self, name: NodeName) -> None:
        if self.too_slow or not self.wants(name):
            return
        self._pending[name] = None
        if len(self._pending) > self._pending_max:
            self.too_slow = True
            self._pending.clear()
        self._something.set()

    def skip(self, name: NodeName) -> None:
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
    """All current watchers."""

    def __init__(self, *, watchers_max: int, pending_max: int) -> None:
        self._watchers_max, self._pending_max = watchers_max, pending_max
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
        for watcher in self._watchers:
            watcher.tell(name)


class NotifyingInventory:
    """The core, as its runner drives it: notifies watchers of every event's changes."""

    def __init__(self, core: Inventory, watchers: Watchers) -> None:
        self._core, self._watchers = core, watchers
        self._stale: dict[NodeName, None] = {}
        self._log = logs.get("inventory")

    def handle(self, event: Event, now: float) -> Sequence[BusInstruction | Pull]:
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
            self._log.info("a node is fresh again", node=name, known=view is not None)

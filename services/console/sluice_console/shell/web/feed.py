"""
Keeps the board current from the bus and notifies the hub, with or without a broker.

Changes are batched for a moment, so that a burst about one node rebuilds its rows once.
"""

import asyncio
import math
from datetime import UTC, datetime
from typing import Protocol

from sluice.contracts.messages import AnyMessage
from sluice_console.core.web.board import Board
from sluice_console.core.web.rows import BusState
from sluice_console.shell.live.connect import StoredTimes, connected
from sluice_console.shell.live.live_fleet import UNREAD_MAX_S, LiveFleet, following
from sluice_console.shell.process.broker_storage import trouble_at
from sluice_console.shell.web.hub import Hub

COLLECT_S = 0.1
"""Minimum between two updates of browsers: faster changes cannot be seen."""
LOOK_S = 0.5
"""How often the broker is checked while the bus is silent."""
ASK_BROKER_S = 2.0
"""How often the broker is asked whether it can store."""
ROWS_AT_ONCE = 25
"""Nodes and requests rebuilt before other tasks run: some milliseconds."""


class HasConnection(Protocol):
    """What this needs of the bus."""

    @property
    def connected(self) -> bool:
        """Whether a server is connected."""

    @property
    def unread_s(self) -> float:
        """For how long one of its streams has been unreadable."""


class Feed:
    """From the bus to the board to the hub."""

    def __init__(self, board: Board, hub: Hub, times: StoredTimes | None = None) -> None:
        """Start empty. `times` gets when values were stored."""
        self._times = times
        self._board = board
        self._hub = hub
        self._news = asyncio.Event()
        self._state: BusState = "connecting"
        self._told: tuple[BusState, str] | None = None
        self._rereads_since_s: float | None = None
        self._since = ""
        self._url = ""
        self._trouble = ""
        self._asked_at_s = -math.inf

    async def run(self, url: str) -> None:
        """Follow the bus at `url` until cancelled; wait while it is away. Raises BusError."""
        self._url = url
        await self._tell("connecting", "")
        async with connected(url, within_s=None, times=self._times) as bus, following(bus, self._heard) as live:
            while True:
                await self._look(bus, live)
                await self._wait()

    def _heard(self, subject: str, message: AnyMessage | None) -> None:
        self._board.heard(subject, message)
        self._news.set()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._news.wait()
        except TimeoutError:
            return
        await asyncio.sleep(COLLECT_S)
        self._news.clear()

    async def _look(self, bus: HasConnection, live: LiveFleet) -> None:
        self._board.incarnation(live.fleet_state.incarnation)
        await self._ask_broker()
        await self._tell(*self._how(bus, live))

    def _how(self, bus: HasConnection, live: LiveFleet) -> tuple[BusState, str]:
        if not bus.connected:
            return "lost", "the broker does not answer"
        now_s = asyncio.get_running_loop().time()
        if not live.rereads:
            self._rereads_since_s = None
        elif self._rereads_since_s is None:
            self._rereads_since_s = now_s
        rereads_s = now_s - self._rereads_since_s if self._rereads_since_s is not None else 0.0
        if max(rereads_s, bus.unread_s) > UNREAD_MAX_S:
            return "lost", "the broker answers, but its streams cannot be read; run `sluice doctor` to find out why"
        if self._trouble:
            return "full", self._trouble
        return ("live", "") if live.caught_up else ("reading", "")

    async def _ask_broker(self) -> None:
        """Whether a local broker can store; unknown for others."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._asked_at_s >= ASK_BROKER_S:
            self._asked_at_s = now_s
            self._trouble = await trouble_at(self._url)

    async def _tell(self, state: BusState, message: str) -> None:
        """Update board and browsers, yielding to other tasks."""
        if self._told != (state, message):
            if self._told is None or self._told[0] != state:
                self._since = datetime.now(UTC).isoformat(timespec="seconds")
            self._told = (state, message)
            self._board.bus(state, self._since, message)
        while True:
            change = self._board.step(ROWS_AT_ONCE)
            if change is not None:
                self._hub.tell(change)
            if not self._board.is_behind:
                return
            await asyncio.sleep(0)

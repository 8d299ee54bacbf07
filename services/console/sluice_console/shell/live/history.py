"""The history of the bus, as the console reads it: what can be decoded, in order."""

import asyncio
from collections.abc import AsyncGenerator

from sluice.contracts.bus.codec import Undecodable
from sluice.runtime.bus import BusError
from sluice.runtime.nats.history import EVERYTHING, HistoryRecord, open_history
from sluice_console.core.history.sentences import HistoryMessage
from sluice_console.shell.live.connect import user_of_the_bus

AGAIN_S = 1.0
"""Between two tries to reach a broker that has gone away."""


async def all_history(url: str, filters: tuple[str, ...] = EVERYTHING) -> list[HistoryMessage]:
    """The whole history, or what is under `filters`, in order. Raises BusError."""
    async with open_history(url, name="console", credentials=user_of_the_bus(url)) as history:
        return [happened async for batch in history.read(filters=filters) for happened in readable(batch)]


async def follow_history(url: str) -> AsyncGenerator[list[HistoryMessage], None]:
    """The whole history, then what comes, for good; a broker that goes away is waited for. Raises BusError before."""
    last: int | None = None
    while True:
        try:
            async with open_history(url, name="console", credentials=user_of_the_bus(url)) as history:
                if last is None:
                    records = [record async for batch in history.read() for record in batch]
                    last = records[-1].sequence if records else 0
                    yield readable(records)
                async for batch in history.read(after=last, follow=True):
                    if batch:
                        last = batch[-1].sequence
                        yield readable(batch)
        except BusError:
            if last is None:
                raise
        await asyncio.sleep(AGAIN_S)


def readable(batch: list[HistoryRecord]) -> list[HistoryMessage]:
    """The messages of a batch that this version can read."""
    return [
        HistoryMessage(recorded.subject, recorded.envelope, recorded.headers)
        for recorded in batch
        if not isinstance(recorded.envelope, Undecodable)
    ]

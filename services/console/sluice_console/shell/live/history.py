"""The history of the bus, as the console reads it: what can be decoded, in order."""

import asyncio
from collections.abc import AsyncGenerator, Callable

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


async def follow_history(
    url: str, *, since_s: float | None = None, lost: Callable[[BusError], None] = lambda _: None
) -> AsyncGenerator[list[HistoryRecord], None]:
    """
    What was recorded, of the last `since_s`; an empty batch where that ends; then what comes, for good.

    A broker that goes away or is emptied is waited for, after a call of `lost`. Raises BusError before the empty batch.
    """
    last: int | None = None  # an emptied broker counts on from above it
    is_first = True
    while True:
        try:
            async with open_history(url, name="console", credentials=user_of_the_bus(url)) as history:
                if is_first:
                    async for batch in history.read(since_s=since_s):
                        last = batch[-1].sequence
                        yield batch
                    is_first = False
                    yield []
                begin = since_s if last is None else None
                async for batch in history.read(after=last, since_s=begin, follow=True):
                    if batch:
                        last = batch[-1].sequence
                        yield batch
        except BusError as error:
            if is_first:
                raise
            lost(error)
        await asyncio.sleep(AGAIN_S)


def readable(batch: list[HistoryRecord]) -> list[HistoryMessage]:
    """The messages of a batch that this version can read."""
    return [
        HistoryMessage(recorded.subject, recorded.envelope, recorded.headers)
        for recorded in batch
        if not isinstance(recorded.envelope, Undecodable)
    ]

"""The history of the bus, as the console reads it: what can be decoded, in order."""

from sluice.contracts.bus.codec import Undecodable
from sluice.runtime.nats.history import EVERYTHING, HistoryRecord, open_history
from sluice_console.core.history.sentences import HistoryMessage
from sluice_console.shell.live.connect import user_of_the_bus


async def all_history(url: str, filters: tuple[str, ...] = EVERYTHING) -> list[HistoryMessage]:
    """The whole history, or what is under `filters`, in order. Raises BusError."""
    async with open_history(url, name="console", credentials=user_of_the_bus(url)) as history:
        return [happened async for batch in history.read(filters=filters) for happened in readable(batch)]


def readable(batch: list[HistoryRecord]) -> list[HistoryMessage]:
    """The messages of a batch that this version can read."""
    return [
        HistoryMessage(recorded.subject, recorded.envelope, recorded.headers)
        for recorded in batch
        if not isinstance(recorded.envelope, Undecodable)
    ]

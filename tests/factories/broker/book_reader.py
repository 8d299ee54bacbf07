"""A process that reads BOOK and prints what it reads, a line each: to be stopped and woken by a test."""

import asyncio
import sys

from sluice.contracts.bus.events import Observed, Stream
from sluice.runtime.nats.jetstream_bus import NatsBus


async def _read(url: str) -> None:
    bus = await NatsBus.connect(url, name="reader")
    async for batch in bus.read(Stream.BOOK):
        for reading in batch:
            told = f" {reading.entry.sequence}" if isinstance(reading, Observed) else ""
            sys.stdout.write(f"{type(reading).__name__}{told}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_read(sys.argv[1]))

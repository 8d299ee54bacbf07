"""
A sender and consumer of the bare broker: `python -m sluice_console.shell.bench.replay_client URL SCORE NAME WITHIN_S`.

It prints `ready`, reads a line (the Unix time of the start), sends its notes, consumes its own, and prints as JSON when
each counted note was sent and stored. Messages are not decoded.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sluice.contracts.bus.events import Entry, Observed
from sluice.contracts.bus.subjects import HISTORY_PREFIX
from sluice.contracts.ids import OperationId
from sluice.contracts.outbox import IN_FLIGHT_MAX
from sluice.runtime import logs
from sluice.runtime.bus import BusError
from sluice.runtime.nats.client import Msg
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.consumers import StreamConsumer
from sluice.runtime.nats.reader import Reader
from sluice.runtime.nats.wire_format import ApiError, Read, answer_of
from sluice_console.core.bench.broker_replay import ReplayMessage, filters_of

CONNECT_S = 10.0


class Times(msgspec.Struct):
    """When each counted note was first sent, and when it was stored: Unix, s, by its number."""

    begun: dict[int, float]
    stored: dict[int, float]


class ReplayClient:
    """Replays one part of a score."""

    def __init__(self, connection: Connection, notes: Sequence[ReplayMessage], name: str) -> None:
        """`name` is the process whose part it is."""
        self._connection = connection
        self._mine = [note for note in notes if note.sender == name]
        self._following: dict[int, list[ReplayMessage]] = {}
        for note in self._mine:
            if note.after >= 0:
                self._following.setdefault(note.after, []).append(note)
        self._awaited = {note.number for note in notes if note.consumer == name}
        self._unsent = len(self._mine)
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._done = asyncio.Event()
        self._sending: asyncio.TaskGroup | None = None
        self.times = Times({}, {})

    async def play(self, begin_s: float) -> None:
        """Send everything; returns when all was sent and consumed. Raises BusError, ApiError, TimeoutError."""
        self._end_if_done()
        async with asyncio.TaskGroup() as sending:
            self._sending = sending
            for note in sorted((each for each in self._mine if each.after < 0), key=lambda each: each.at_s):
                pause_s = begin_s + note.at_s - time.time()
                if pause_s > 0:
                    await asyncio.sleep(pause_s)  # until it is due
                sending.create_task(self._send(note))
            await self._done.wait()

    def take(self, subject: str, sequence: int, _message: Msg) -> Read:
        """A note was read: send the notes that wait for it."""
        number = int(subject.rpartition(".b")[2])
        if number in self._awaited and self._sending is not None:
            self._awaited.discard(number)
            for note in self._following.pop(number, ()):
                self._sending.create_task(self._send(note))
            self._end_if_done()
        return Read(Entry(subject, sequence, OperationId(""), None), "")

    async def _send(self, note: ReplayMessage) -> None:
        data = b"." * note.size
        if note.request:
            self.times.begun[note.number] = time.time()
        async with self._slots:
            answer_of(note.subject, await self._connection.request(note.subject, data))
            if note.request:
                self.times.stored[note.number] = time.time()
            await self._connection.publish(HISTORY_PREFIX + note.subject, data)
        self._unsent -= 1
        self._end_if_done()

    def _end_if_done(self) -> None:
        if not self._unsent and not self._awaited:
            self._done.set()


async def main(url: str, score: Path, name: str, within_s: float) -> None:
    """Replay one part, within a time. Raises what ended it."""
    notes = msgspec.json.decode(await asyncio.to_thread(score.read_bytes), type=list[ReplayMessage])
    connection = await Connection.open(url, name=f"bench-{name.replace(' ', '-')}", within_s=CONNECT_S)
    try:
        async with asyncio.timeout(within_s):
            player = ReplayClient(connection, notes, name)
            filters = filters_of(notes, name)
            started = [asyncio.Event() for _ in filters]
            readers = [
                asyncio.create_task(
                    _read(
                        Reader(
                            connection, StreamConsumer(connection, stream, some), player.take, refresh_s=within_s + 60.0
                        ),
                        begun,
                    )
                )
                for (stream, some), begun in zip(filters.items(), started, strict=True)
            ]
            try:
                for begun in started:
                    await begun.wait()
                _say("ready")
                begin_s = float(await asyncio.to_thread(sys.stdin.readline))
                playing = asyncio.create_task(player.play(begin_s))
                await asyncio.wait((playing, *readers), return_when=asyncio.FIRST_COMPLETED)
                for reader in readers:
                    if reader.done():
                        playing.cancel()
                        await reader
                await playing
            finally:
                for reader in readers:
                    reader.cancel()
                await asyncio.gather(*readers, return_exceptions=True)
    finally:
        await connection.close()
    _say(msgspec.json.encode(player.times).decode())


async def _read(reader: Reader, begun: asyncio.Event) -> None:
    """Consume until cancelled; an empty stream is read to its end at once."""
    async with contextlib.aclosing(reader.batches()) as batches:
        async for batch in batches:
            if not any(isinstance(each, Observed) for each in batch):
                begun.set()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logs.configure(service="console", run="bench", level="error", form="text")
    try:
        asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], float(sys.argv[4])))
    except* (BusError, ApiError, TimeoutError) as group:
        sys.exit(f"{sys.argv[3]}: {group.exceptions[0]!r}")

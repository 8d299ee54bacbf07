"""A socket pair and a bus on it, in NATS's stead and with its promises only; the driver holds the streams."""

import asyncio
import pickle
import socket
import struct
import threading
from collections.abc import AsyncGenerator
from typing import Any

from sluice.contracts.bus.events import Entry, Stream, Write
from sluice.contracts.ids import Incarnation, NodeName
from sluice.runtime.bus import Answer, Reading

_HEADER = struct.Struct("!I")
_READ_BYTES = 1 << 18
_BUFFER_BYTES = 1 << 21
"""Far more than is ever under way: each slice has a few messages out at most."""


class ChannelClosedError(Exception):
    """The other side is gone."""


class Channel:
    """One end of a pair. Frames are tuples, the first item says what they are. Any thread may send."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._rest = b""
        self._sending = threading.Lock()

    @staticmethod
    def pair() -> tuple["Channel", "Channel"]:
        ends = socket.socketpair()
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        return Channel(ends[0]), Channel(ends[1])

    def send(self, *frame: Any) -> None:
        """Send a frame. Raises ChannelClosedError."""
        data = pickle.dumps(frame)
        try:
            with self._sending:
                self.socket.sendall(_HEADER.pack(len(data)) + data)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

    def receive(self) -> list[tuple[Any, ...]]:
        """All frames that came; waits for some bytes first. Raises ChannelClosedError at the end."""
        try:
            data = self.socket.recv(_READ_BYTES)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error
        if not data:
            raise ChannelClosedError("end")
        self._rest += data
        frames = []
        while len(self._rest) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._rest)
            if len(self._rest) < _HEADER.size + length:
                break
            frames.append(pickle.loads(self._rest[_HEADER.size : _HEADER.size + length]))
            self._rest = self._rest[_HEADER.size + length :]
        return frames

    def close(self) -> None:
        self.socket.close()


class PipeBus:
    """A `sluice.runtime.bus.Bus` for one agent, over a channel to the process that holds the streams."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._questions = 0
        self._batches: asyncio.Queue[list[Reading]] = asyncio.Queue()

    def answered(self, question: int, answer: Any) -> None:
        self._asked.pop(question).set_result(answer)

    def read(self, batch: list[Reading]) -> None:
        self._batches.put_nowait(batch)

    async def _ask(self, *question: Any) -> Any:
        self._questions += 1
        number = self._questions
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._channel.send("ask", number, *question)
        return await answer

    async def write(self, write: Write, headers: dict[str, str]) -> Answer:
        answer: Answer = await self._ask("write", write)
        return answer

    async def last(self, stream: Stream, subject: str) -> Entry | None:
        entry: Entry | None = await self._ask("last", subject)
        return entry

    async def read_ledger(self, node: NodeName) -> AsyncGenerator[list[Reading]]:
        """The node's ledger from its beginning, then what is new."""
        self._channel.send("read")
        while True:
            yield await self._batches.get()

    def read_again(self, stream: Stream) -> None:
        if stream is Stream.BOOK:
            self._channel.send("read")

    def read_stream(self, stream: Stream) -> None:
        raise NotImplementedError(f"an agent does not read {stream}")

    async def incarnation(self, stream: Stream) -> Incarnation:
        """Agents do not ask."""
        raise NotImplementedError(f"an agent does not ask for the incarnation of {stream}")

"""
Brings every change of the rows to every browser that watches, each at its own pace, none at the cost of another.

A change is written as text once, for all. Who does not take what waits for him is left out, and begins again with the
whole picture: nothing is kept for ever, and nobody is told a part.
"""

import asyncio
from collections import deque
from collections.abc import Iterator

import msgspec

from sluice_console.core.web.board import Board, BoardChange

CLIENTS_MAX = 64
"""Browsers that watch at once. Each costs a connection, and at most WAITING_BYTES_MAX."""
WAITING_BYTES_MAX = 4 * 1024 * 1024
"""What may wait for one of them: a minute of a large fleet's changes, or one storm."""
PART_BYTES = 128 * 1024
"""The picture is sent in parts of about this size, so that a page begins to show before it has all."""


class TooManyClientsError(Exception):
    """CLIENTS_MAX watch already."""


class BrowserClient:
    """One browser that watches: the parts of the picture, then each change. Made by `Hub.join`."""

    def __init__(self, picture: Iterator[bytes]) -> None:
        """`picture` is what everything after it is a change to."""
        self._picture = picture
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self.is_over = False

    def offer(self, event: bytes) -> None:
        """Let an event wait for it; too much that waits ends it."""
        self._bytes += len(event)
        if self._bytes > WAITING_BYTES_MAX:
            self.end()
            return
        self._waiting.append(event)
        self._news.set()

    def end(self) -> None:
        """It gets nothing more."""
        self.is_over = True
        self._waiting.clear()
        self._news.set()

    async def next(self) -> bytes | None:
        """The next event, as soon as there is one; None when there will be none."""
        part = next(self._picture, None)
        if part is not None:
            return None if self.is_over else part
        while not self._waiting:
            if self.is_over:
                return None
            self._news.clear()
            await self._news.wait()
        event = self._waiting.popleft()
        self._bytes -= len(event)
        return event


class Hub:
    """All browsers that watch one board."""

    def __init__(self, board: Board, *, clients_max: int = CLIENTS_MAX) -> None:
        """Nobody watches yet."""
        self._board = board
        self._clients_max = clients_max
        self._clients: set[BrowserClient] = set()

    def __len__(self) -> int:
        """How many watch."""
        return len(self._clients)

    def join(self) -> BrowserClient:
        """One more. Raises TooManyClientsError."""
        if len(self._clients) >= self._clients_max:
            raise TooManyClientsError
        client = BrowserClient(_parts(*self._board.picture()))
        self._clients.add(client)
        return client

    def leave(self, client: BrowserClient) -> None:
        """It watches no longer."""
        client.end()
        self._clients.discard(client)

    def tell(self, change: BoardChange) -> None:
        """Everybody hears of it."""
        if self._clients:
            event = event_of("change", {"revision": change.revision, "rows": change.rows, "gone": change.gone})
            for client in self._clients:
                client.offer(event)

    def close(self) -> None:
        """Nobody watches any longer, and nobody may begin to."""
        self._clients_max = 0
        for client in self._clients:
            client.end()


def event_of(name: str, data: object) -> bytes:
    """One event of a stream (HTML, "server-sent events"): JSON has no line breaks of its own."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))


def _parts(revision: int, rows: list[tuple[str, msgspec.Raw]]) -> Iterator[bytes]:
    """The picture as events, made as they are taken: the first one begins it, the last one says `complete`."""
    part: dict[str, msgspec.Raw] = {}
    size = 0
    first = True
    for key, row in rows:
        part[key] = row
        size += len(key) + len(bytes(row))
        if size >= PART_BYTES:
            yield event_of("picture", {"revision": revision, "first": first, "complete": False, "rows": part})
            part, size, first = {}, 0, False
    yield event_of("picture", {"revision": revision, "first": first, "complete": True, "rows": part})

"""
Sends every change of the rows to every browser, at each one's pace.

A change is serialized once. A browser that does not read is dropped and starts again with the whole picture, so memory
is bounded and no browser has a partial state.
"""

import asyncio
from collections import deque
from collections.abc import Iterator

import msgspec

from sluice_console.core.web.board import Board, BoardChange

CLIENTS_MAX = 64
"""Browsers at once. Each costs a connection, and at most WAITING_BYTES_MAX."""
WAITING_BYTES_MAX = 4 * 1024 * 1024
"""Bytes queued per browser: a minute of a large fleet's changes, or one burst."""
PART_BYTES = 128 * 1024
"""Size of a picture's parts, so that a page shows something early."""


class NotAdmittedError(Exception):
    """No browser may join now; the text says why, and what comes next."""


class BrowserClient:
    """One browser: the parts of the picture, then each change. Made by `Hub.join`."""

    def __init__(self, picture: Iterator[bytes]) -> None:
        """Every later event is a change to `picture`."""
        self._picture = picture
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self.is_over = False

    def offer(self, event: bytes) -> None:
        """Queue an event; too many queued bytes end the client."""
        self._bytes += len(event)
        if self._bytes > WAITING_BYTES_MAX:
            self.end()
            return
        self._waiting.append(event)
        self._news.set()

    def end(self) -> None:
        """End the client."""
        self.is_over = True
        self._waiting.clear()
        self._news.set()

    async def next(self) -> bytes | None:
        """The next event; None after the end."""
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
    """All browsers of one board."""

    def __init__(self, board: Board, *, clients_max: int = CLIENTS_MAX) -> None:
        """Start without browsers."""
        self._board = board
        self._clients_max = clients_max
        self._is_closed = False
        self._clients: set[BrowserClient] = set()

    def __len__(self) -> int:
        """Number of browsers."""
        return len(self._clients)

    def join(self) -> BrowserClient:
        """Add a browser. Raises NotAdmittedError."""
        if self._is_closed:
            raise NotAdmittedError("the page's server stops; this page continues by itself once one runs again")
        if len(self) >= self._clients_max:
            raise NotAdmittedError(f"{len(self)} pages are open already; close one, and this one continues by itself")
        client = BrowserClient(_parts(*self._board.picture()))
        self._clients.add(client)
        return client

    def leave(self, client: BrowserClient) -> None:
        """Remove a browser."""
        client.end()
        self._clients.discard(client)

    def tell(self, change: BoardChange) -> None:
        """Send to every browser."""
        if self._clients:
            event = event_of("change", {"revision": change.revision, "rows": change.rows, "gone": change.gone})
            for client in self._clients:
                client.offer(event)

    def close(self) -> None:
        """End all browsers, and accept no more."""
        self._is_closed = True
        for client in self._clients:
            client.end()


def event_of(name: str, data: object) -> bytes:
    """One server-sent event (HTML): JSON has no line breaks of its own."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))


def _parts(revision: int, rows: list[tuple[str, msgspec.Raw]]) -> Iterator[bytes]:
    """The picture as events, made lazily: the first has `first`, the last `complete`."""
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

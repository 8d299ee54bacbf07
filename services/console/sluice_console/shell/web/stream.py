"""
One browser's event stream as an HTTP answer: events, keep-alive messages, and an end if the browser is slow.

Starlette's own streaming response waits for a slow reader without limit.
"""

import asyncio
import contextlib

from starlette.types import Receive, Scope, Send

from sluice_console.shell.web.hub import BrowserClient, Hub

SIGN_OF_LIFE_S = 10.0
"""Maximum between two events, so that a page notices a dead server, and proxies keep the connection."""
TAKE_WITHIN_S = 20.0
"""How long a browser may take to read. One that sleeps longer starts again."""
AGAIN_MS = 1_000
"""When a browser reconnects after its stream has ended (server-sent events, `retry`)."""


class EventStream:
    """An ASGI answer: all events of one client of the hub, until either ends."""

    def __init__(self, hub: Hub, client: BrowserClient, headers: dict[str, str]) -> None:
        """`client` has joined `hub`, and leaves it at the end of the answer."""
        self._hub = hub
        self._client = client
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as ASGI has it
        """Answer."""
        gone = asyncio.ensure_future(_gone(receive))
        sending = asyncio.ensure_future(self._send(send))
        try:
            await asyncio.wait((gone, sending), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                await sending
        finally:
            self._hub.leave(self._client)
            for task in (gone, sending):
                task.cancel()
            await asyncio.gather(gone, sending, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        headers = {"content-type": "text/event-stream; charset=utf-8", **self._headers}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        with contextlib.suppress(TimeoutError):  # it is slow: it starts again
            await _within(send, {"type": "http.response.start", "status": 200, "headers": encoded})
            await _body(send, b"retry: %d\n\n" % AGAIN_MS)
            while (event := await self._next()) is not None:
                await _body(send, event)
            await _within(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self) -> bytes | None:
        try:
            async with asyncio.timeout(SIGN_OF_LIFE_S):
                return await self._client.next()
        except TimeoutError:
            return b"event: alive\ndata: {}\n\n"


async def _body(send: Send, body: bytes) -> None:
    await _within(send, {"type": "http.response.body", "body": body, "more_body": True})


async def _within(send: Send, message: dict[str, object]) -> None:
    async with asyncio.timeout(TAKE_WITHIN_S):
        await send(message)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

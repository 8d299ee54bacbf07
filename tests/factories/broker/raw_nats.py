"""A NATS client without our rights and streams, to see what the broker lets a user do (protocol: docs.nats.io)."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

WAIT_S = 60.0
_DENIED = re.compile(r"-ERR 'Permissions Violation for (Publish|Subscription) to \"([^\"]+)\"")


class RawNats:
    """A connection that is logged in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._subscriptions = 0

    async def denied_to_publish(self, subjects: Iterable[str]) -> set[str]:
        """Those of `subjects` that the broker does not take an empty message for."""
        denied = await self._said("".join(f"PUB {subject} 0\r\n\r\n" for subject in subjects))
        return {subject for what, subject in denied if what == "Publish"}

    async def denied_to_subscribe(self, subjects: Iterable[str]) -> set[str]:
        lines = ""
        for subject in subjects:
            self._subscriptions += 1
            lines += f"SUB {subject} {self._subscriptions}\r\n"
        return {subject for what, subject in await self._said(lines) if what == "Subscription"}

    async def _said(self, commands: str) -> list[tuple[str, str]]:
        """Send commands and a PING, and read up to its PONG: commands are answered in their order."""
        self._writer.write(f"{commands}PING\r\n".encode())
        await self._writer.drain()
        found: list[tuple[str, str]] = []
        async with asyncio.timeout(WAIT_S):
            while (line := (await self._reader.readline()).decode()) != "PONG\r\n":
                assert line, "the broker closed the connection"
                if line.startswith("-ERR"):
                    match = _DENIED.match(line)
                    assert match is not None, line
                    found.append((match[1], match[2]))
        return found


@asynccontextmanager
async def raw_nats(port: int, user: str, password: str) -> AsyncIterator[RawNats]:
    """Log in at a broker on the loopback, for the time of the `async with`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(WAIT_S):
            assert (await reader.readline()).startswith(b"INFO ")
        options = json.dumps({"verbose": False, "pedantic": False, "user": user, "pass": password})
        writer.write(f"CONNECT {options}\r\n".encode())
        yield RawNats(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()

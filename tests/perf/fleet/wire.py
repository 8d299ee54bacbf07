"""
One connection of an agent to NATS, as few bytes and objects as it takes, so that one process can have 12,500.

Agents' own client costs too much for that: what is measured is the other side. It speaks NATS' client protocol
(https://docs.nats.io/reference/reference-protocols/nats-protocol) and requests by one wildcard inbox.
"""

import asyncio
import itertools
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

HEADER = b"NATS/1.0"

Heard = Callable[[str, str, int, bytes], None]
"""Gets subject, reply subject, status (0 without) and payload of a message."""


class Wire(asyncio.Protocol):
    """A connection that logs in, answers pings, and passes on what its inbox and its requests get."""

    def __init__(
        self, login: Mapping[str, object], *, up: Callable[[], None], down: Callable[[], None], delivered: Heard
    ) -> None:
        """`delivered` gets what is no answer: a delivery to a pull keeps the subject that it was stored at."""
        self._login, self._up, self._down, self._delivered = login, up, down, delivered
        self.inbox = f"_INBOX.{secrets.token_hex(8)}"
        self._numbers = itertools.count(1)
        self._waiting: dict[str, Heard] = {}
        self._buffer = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._waiting.clear()
        self._down()

    @property
    def connected(self) -> bool:
        return self._transport is not None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n")) >= 0:
            line = self._buffer[:end]
            verb = line[:4]
            if verb in {b"MSG ", b"HMSG"}:
                words = line.decode().split(" ")
                total = int(words[-1])
                if len(self._buffer) < end + total + 4:
                    return
                content = self._buffer[end + 2 : end + 2 + total]
                self._buffer = self._buffer[end + total + 4 :]
                headers = int(words[-2]) if verb == b"HMSG" else 0
                reply = words[3] if len(words) == (6 if headers else 5) else ""
                self._heard(words[1], reply, content, headers)
                continue
            self._buffer = self._buffer[end + 2 :]
            if verb == b"PING":
                self._send(b"PONG\r\n")
            elif verb == b"INFO":
                self._send(b"CONNECT %b\r\nSUB %b.> 1\r\n" % (json.dumps(self._login).encode(), self.inbox.encode()))
                self._up()
            elif verb == b"-ERR":
                raise ConnectionError(line.decode())

    def _heard(self, subject: str, reply: str, content: bytes, headers: int) -> None:
        first = content[:headers].split(b"\r\n", 1)[0][len(HEADER) :].split()
        status = int(first[0]) if first else 0
        self._waiting.get(subject, self._delivered)(subject, reply, status, content[headers:])

    def ping(self) -> None:
        self._send(b"PING\r\n")

    def publish(self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None) -> None:
        target = f"{subject} {reply}" if reply else subject
        if not headers:
            self._send(b"PUB %b %d\r\n%b\r\n" % (target.encode(), len(data), data))
            return
        lines = "".join(f"{key}: {value}\r\n" for key, value in headers.items()).encode()
        block = HEADER + b"\r\n" + lines + b"\r\n"
        sizes = b"%d %d" % (len(block), len(block) + len(data))
        self._send(b"HPUB %b %b\r\n%b%b\r\n" % (target.encode(), sizes, block, data))

    def listen(self, heard: Heard) -> str:
        """An inbox of its own, until `forget`."""
        inbox = f"{self.inbox}.{next(self._numbers)}"
        self._waiting[inbox] = heard
        return inbox

    def forget(self, inbox: str) -> None:
        self._waiting.pop(inbox, None)

    def request(
        self,
        subject: str,
        data: bytes,
        answered: Callable[[dict[str, Any]], None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Publish, and get the one answer, as JetStream's JSON; `{}` where nothing responds."""

        def once(_subject: str, _reply: str, status: int, payload: bytes) -> None:
            self.forget(inbox)
            answered(json.loads(payload) if payload and not status else {})

        inbox = self.listen(once)
        self.publish(subject, data, reply=inbox, headers=headers)

    def _send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

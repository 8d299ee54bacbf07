"""
The NATS client as the NATS bus uses it, with fixes for leaks and endless waits of nats-py 2.16.

Without its WebSocket transport, which would be loaded where aiohttp is installed and take as long as all the rest.
"""

import asyncio
import re

from sluice.runtime.optional_imports import without

with without("aiohttp"):
    from nats.aio.client import PONG_PROTO
    from nats.aio.client import Client as _Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.errors import (
        AuthorizationError,
        ConnectionClosedError,
        ConnectionDrainingError,
        ConnectionReconnectingError,
        Error,
        MaxPayloadError,
        NoRespondersError,
        OutboundBufferLimitError,
        StaleConnectionError,
    )
    from nats.errors import TimeoutError as NatsTimeoutError
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
    from nats.js.client import JetStreamContext
    from nats.js.errors import NotFoundError, ServiceUnavailableError
    from nats.protocol import parser

parser.MSG_RE = re.compile(rb"\AMSG[ \t]+([^ \t\r\n]+)[ \t]+([^ \t\r\n]+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)\r\n")
parser.HMSG_RE = re.compile(
    rb"\AHMSG[ \t]+([^ \t\r\n]+)[ \t]+([^ \t\r\n]+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)[ \t]+(\d+)\r\n"
)
"""nats-py 2.16 also splits at vertical tabs and form feeds: a user who may write `a.*` could disconnect readers."""

CONNECT_S = 2.0
_LOGIN_ENDED = ("authorization violation", "authentication expired", "authentication revoked", "credentials revoked")
_DELIVERED = b"$JS.ACK."
"""Prefix of the reply subject of every stored message that a consumer delivers."""
_SEQUENCE = "Nats-Sequence"
"""The header that the server appends to a stored message that is fetched by itself."""
_STATUS = "Status"


class Client(_Client):
    """nats-py's client without some faults of version 2.16.

    - A retry forgets the previous transport, whose socket stays open. Its own `close` never ends after a failed TLS
      handshake.
    - After losing a server it first waits until that server has taken everything sent; a frozen one never does. Unsent
      data would go to the next server.
    - An unexpected answer ends its task, and with it the search for a server.
    - So does a stored message whose subject or headers are not text, at every reading: any user who may write below a
      subject can store one.
    - It takes a stored message with a header `Status` for the server's own and ends a reading, or drops it: the message
      is delivered without that header.
    - It takes any first line after its login for the server's PONG, and stays unconnected if that was a PING or INFO,
      as after a slow login.
    - It closes for good when the server ends a login: at its expiry, and of a login by token at each reload."""

    login_s = CONNECT_S
    """How long the server may take to answer a login; longer if it asks another service."""
    renews = False
    """Whether an ended login is no failure, because the next one is by newer credentials."""

    def tasks(self) -> "list[asyncio.Task[None]]":
        """Its running tasks; `close` cancels these once, or not if it fails itself."""
        own = (self._reading_task, self._ping_interval_task, self._flusher_task, self._reconnection_task)
        hearing = [each._wait_for_msgs_task for each in self._subs.values()]  # noqa: SLF001 - no public API
        return [task for task in (*own, *hearing) if task is not None and not task.done()]

    async def ping(self) -> None:
        """One ping more than at the interval; the connection is lost when too many were not answered."""
        if not self.is_connected:
            return
        self._pings_outstanding += 1
        if self._pings_outstanding > self.options["max_outstanding_pings"]:
            await self._process_op_err(StaleConnectionError())
        else:
            await self._send_ping()

    async def close(self) -> None:
        """Does nothing before `connect` has created its queue: closing would raise, and hide the cause."""
        if self._flush_queue is not None:
            await super().close()

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        if headers and _STATUS in headers and (reply.startswith(_DELIVERED) or _SEQUENCE in headers):
            del headers[_STATUS]
        return self.msg_class(
            subject=subject.decode("utf-8", "replace"),
            reply=reply.decode("utf-8", "replace"),
            data=data,
            headers=headers,
            _client=self,
            _sid=sid,
        )

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """As nats-py's, which asks of each character of a name whether it is a space: a fifth of its time."""
        parts = (line.partition(":") for line in raw.decode("utf-8", "replace").split("\r\n"))
        lines = ((name.split(), value) for name, colon, value in parts if colon and name.isascii())
        return {words[0]: value.strip() for words, value in lines if len(words) == 1}

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        try:
            return await super()._process_headers(headers)
        except (ValueError, LookupError):  # never the server's own: the message is read without it
            return None

    async def _attempt_reconnect(self) -> None:
        self.abandon()
        self._pending, self._pending_data_size = [], 0
        await super()._attempt_reconnect()

    async def _process_err(self, err_msg: str) -> None:
        if self.renews and any(ended in err_msg.lower() for ended in _LOGIN_ENDED):
            await self._process_op_err(Error(f"the login has ended: {err_msg}"))
        else:
            await super()._process_err(err_msg)

    def _connect_command(self) -> bytes:
        self.options["connect_timeout"] = self.login_s  # of the answer to this, which is awaited next
        transport = self._transport
        assert transport is not None
        readline = transport.readline

        async def answer() -> bytes:
            while True:
                line = bytes(await readline())
                if line.startswith(b"PING"):
                    transport.write(PONG_PROTO)
                elif not line.startswith(b"INFO"):
                    return line

        transport.readline = answer  # type: ignore[method-assign]
        return bytes(super()._connect_command())

    async def _process_connect_init(self) -> None:
        self.options["connect_timeout"] = CONNECT_S
        try:
            await super()._process_connect_init()
        except BaseException as error:
            reader = getattr(self._transport, "_io_reader", None)
            self.abandon()
            alert = reader.exception() if reader is not None else None
            if alert is not None and isinstance(error, ConnectionError):
                raise alert from error  # why the broker hung up: `drain` raises only that it did
            if isinstance(error, OSError | Error | TimeoutError) or not isinstance(error, Exception):
                raise
            raise Error(f"this is no NATS server: {error!r}") from error
        finally:  # one transport serves all connections, and must not refer to itself
            vars(self._transport).pop("readline", None)

    def abandon(self) -> None:
        """Drop its connection, if there is one; what is unsent is lost."""
        for name in ("_io_writer", "_bare_io_writer"):
            writer = getattr(self._transport, name, None)
            if writer is not None:
                writer.transport.abort()

"""
What the parts of the NATS bus use of the NATS client, which leaves no socket behind here when a handshake fails.

It is imported without its WebSocket transport, which is loaded with the client wherever aiohttp is installed, and takes
as long as all the rest of it; we connect by TCP and TLS alone.
"""

import asyncio
import re

from sluice.runtime.optional_imports import without

with without("aiohttp"):
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
"""
nats-py 2.16 ends a word at a vertical tab or a form feed, too. To the server both are letters of a subject: whoever
may write `a.*` would end the connection of everybody who reads there, again and again.
"""

_DELIVERED = b"$JS.ACK."
"""How the reply subject of every stored message begins that a consumer delivers."""
_SEQUENCE = "Nats-Sequence"
"""What the server adds, at the end, to a stored message that is asked for by itself."""
_STATUS = "Status"

__all__ = [
    "AckPolicy",
    "AuthorizationError",
    "Client",
    "ConnectionClosedError",
    "ConnectionDrainingError",
    "ConnectionReconnectingError",
    "ConsumerConfig",
    "DeliverPolicy",
    "Error",
    "JetStreamContext",
    "MaxPayloadError",
    "Msg",
    "NatsTimeoutError",
    "NoRespondersError",
    "NotFoundError",
    "OutboundBufferLimitError",
    "ServiceUnavailableError",
    "Subscription",
]


class Client(_Client):
    """
    The client, closing what it gives up.

    nats-py 2.16 makes a new transport for its next try and forgets the last one, whose socket stays open until somebody
    looks for such. Its own `close` waits for ever after a failed TLS handshake.

    When it has lost a server it would wait, before it tries another one, until that server has taken all that was
    sent; a frozen one never does. What it had not sent by then it would send to the next one.

    What answers there in another way than it foresees would end its task, and with it the search for the server.

    So would a stored message whose subject is no text, or whose headers are none: the server lets anybody who may write
    below a subject store such, and it would meet each reading anew.

    A stored message that has a header `Status` it takes for the server's own word, and ends a reading at it, or leaves
    it out: it is shown without that header.
    """

    def tasks(self) -> "list[asyncio.Task[None]]":
        """What it has begun and not ended; `close` cancels these once, or not at all where it fails itself."""
        own = (self._reading_task, self._ping_interval_task, self._flusher_task, self._reconnection_task)
        hearing = [each._wait_for_msgs_task for each in self._subs.values()]  # noqa: SLF001 - nobody else tells
        return [task for task in (*own, *hearing) if task is not None and not task.done()]

    async def close(self) -> None:
        """Nothing is to be closed before `connect` has got as far as its queue: it would raise, and hide why."""
        if self._flush_queue is not None:
            await super().close()

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        """A message. What is no text in its subject is shown as such, and fits no name of ours."""
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

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        try:
            return await super()._process_headers(headers)
        except (ValueError, LookupError):  # never the server's own: the message is read as one without
            return None

    async def _attempt_reconnect(self) -> None:
        self._abandon()
        self._pending, self._pending_data_size = [], 0
        await super()._attempt_reconnect()

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except (OSError, Error, TimeoutError):
            self._abandon()
            raise
        except Exception as error:
            self._abandon()
            raise Error(f"this is no NATS server: {error!r}") from error
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        for name in ("_io_writer", "_bare_io_writer"):
            writer = getattr(self._transport, name, None)
            if writer is not None:
                writer.transport.abort()

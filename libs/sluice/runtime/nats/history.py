"""
Reads HISTORY, message by message, for people. Nothing may be decided from it (PROTOCOL §1).

An ephemeral pull consumer in memory, without acknowledgements, over the writers' copies (`hist.sluice.>`).
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sluice.contracts.bus.codec import Undecodable, decode
from sluice.contracts.bus.subjects import HISTORY_PREFIX
from sluice.contracts.messages import Envelope
from sluice.runtime.bus import BusError
from sluice.runtime.nats import client as nats
from sluice.runtime.nats import credentials as logins
from sluice.runtime.nats.client import Error as NatsError
from sluice.runtime.nats.connection import PING_S, PINGS_MAX

STREAM = "HISTORY"
EVERYTHING = (f"{HISTORY_PREFIX}sluice.>",)
BATCH = 1000
WAIT_S = 1.0
SILENT_MAX = 3
"""After so many empty pulls, pending messages are taken for expired, if the server answers."""
FORGET_AFTER_S = 30.0
"""The server deletes a consumer without pulls for so long."""


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """One message of the history, in the order it was stored."""

    subject: str
    sequence: int
    envelope: Envelope | Undecodable
    headers: Mapping[str, str] = field(default_factory=dict)
    stored_at: float = 0.0
    """When the server stored it, by its clock: unix time."""


class NatsHistory:
    """A connection for reading the history. Make it with `open_history`."""

    def __init__(self, stream: nats.JetStreamContext) -> None:
        self._stream = stream

    async def read(
        self,
        *,
        filters: tuple[str, ...] = EVERYTHING,
        since_s: float | None = None,
        after: int | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[list[HistoryRecord], None]:
        """Messages of the last `since_s`, or after a sequence, in batches; with `follow` for good. Raises BusError."""
        config = nats.ConsumerConfig(
            name=f"history-{secrets.token_hex(8)}",  # the right to create covers named consumers only
            filter_subjects=list(filters),
            ack_policy=nats.AckPolicy.NONE,
            mem_storage=True,
            inactive_threshold=FORGET_AFTER_S,
            deliver_policy=nats.DeliverPolicy.ALL,
        )
        if since_s is not None:
            config.deliver_policy = nats.DeliverPolicy.BY_START_TIME
            begin = datetime.now(UTC) - timedelta(seconds=since_s)
            config.opt_start_time = begin.isoformat()  # type: ignore[assignment] # the server wants RFC 3339
        if after is not None:
            config.deliver_policy = nats.DeliverPolicy.BY_START_SEQUENCE
            config.opt_start_seq = after + 1
        with _errors_explained():
            async for batch in self._batches(config, follow=follow):
                yield batch

    async def created(self) -> str:
        """When the server made HISTORY: another value is another life of it. Raises BusError."""
        with _errors_explained():
            return (await self._stream.stream_info(STREAM)).created.isoformat()  # type: ignore[union-attr]

    async def _batches(self, config: nats.ConsumerConfig, *, follow: bool) -> AsyncIterator[list[HistoryRecord]]:
        made = await self._stream.add_consumer(STREAM, config)
        pending = made.num_pending or 0
        subscription = await self._stream.pull_subscribe_bind(consumer=made.name, stream=STREAM)
        silent = 0
        try:
            while follow or pending:
                try:
                    messages = await subscription.fetch(BATCH, timeout=WAIT_S)
                except TimeoutError:
                    messages = []
                except nats.ServiceUnavailableError as error:  # no responder for this reader
                    raise BusError(
                        "the server ended the reading: HISTORY was recreated, or its consumer expired"
                    ) from error
                finally:
                    _end_if_cancelled()
                if not messages:  # nothing published for a while; or the reader just ended, as the next pull shows
                    if follow:
                        yield []
                        continue
                    silent += 1
                    if silent < SILENT_MAX:
                        continue
                    await self._stream.stream_info(STREAM)  # raises when the server is silent
                    return
                silent = 0
                pending = messages[-1].metadata.num_pending
                yield [
                    HistoryRecord(
                        message.subject,
                        message.metadata.sequence.stream,
                        decode(message.data),
                        message.headers or {},
                        message.metadata.timestamp.timestamp(),
                    )
                    for message in messages
                ]
        finally:
            with contextlib.suppress(NatsError):
                await subscription.unsubscribe()


@asynccontextmanager
async def open_history(
    url: str, *, name: str, credentials: logins.CredentialSource | None = None, timeout_s: float = 5.0
) -> AsyncIterator[NatsHistory]:
    """Connect, and disconnect at the end. Raises BusError when no server answers at `url`, or it refuses us."""
    connection, servers = nats.Client(), logins.parse_server_urls(url)
    try:
        await connection.connect(
            servers,
            name=name,
            allow_reconnect=False,
            max_reconnect_attempts=1,  # counts for the first connection too; 0 would never end
            ping_interval=PING_S,
            max_outstanding_pings=PINGS_MAX,
            error_cb=_nothing,
            **logins.connect_options(connection, credentials or logins.Credentials(), name, servers),
        )
    except (OSError, TimeoutError, NatsError) as error:
        raise BusError(f"no NATS server answers at {url}: {logins.explain_connect_error(error)}") from error
    try:
        yield NatsHistory(connection.jetstream(timeout=timeout_s))
    finally:
        await connection.close()


@contextlib.contextmanager
def _errors_explained() -> Iterator[None]:
    try:
        yield
    except nats.NotFoundError as error:
        raise BusError("there is no HISTORY stream; `sluice streams ensure` makes it") from error
    except (NatsError, TimeoutError) as error:
        raise BusError(f"the NATS server went away: {error or type(error).__name__}") from error


def _end_if_cancelled() -> None:
    """The client swallows a cancellation that comes together with messages (asyncio.wait_for of Python 3.11)."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _nothing(_: Exception) -> None:
    """Errors of the connection surface where the history is read; the client's default logs tracebacks besides."""

"""
The bus over NATS JetStream: `sluice.runtime.bus.Bus` in production.

It guards, publishes, reads and reports. The outbox retries writes (with the same guard), and no guard is ever taken
from the server.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Protocol, Self

from sluice.contracts.bus.codec import MessageTooLargeError
from sluice.contracts.bus.events import Entry, Stream, Write, WriteAccepted, WriteRefused, WriteUnknown, stream_of
from sluice.contracts.bus.store_sizes import HISTORY_BYTES_MAX
from sluice.contracts.bus.subjects import HISTORY_PREFIX
from sluice.contracts.bus.trace_headers import COMMIT
from sluice.contracts.delayed_queue import backoff_s
from sluice.contracts.ids import Incarnation, NodeName
from sluice.contracts.reasons import shorten
from sluice.runtime import logs
from sluice.runtime.bounded_dict import BoundedDict
from sluice.runtime.bus import Answer, BusError, Probe, Reading
from sluice.runtime.nats import stream_management, wire_format
from sluice.runtime.nats.broker_liveness import BrokerLiveness
from sluice.runtime.nats.client import ConnectionClosedError, Msg, NoRespondersError
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.consumers import LedgerConsumer, StreamConsumer
from sluice.runtime.nats.credentials import CredentialSource
from sluice.runtime.nats.history_writer import HistoryWriter
from sluice.runtime.nats.reader import Consumer, Reader
from sluice.runtime.prometheus import metrics
from sluice.runtime.prometheus.metrics import Sample
from sluice.runtime.prometheus.runtime_metrics import POISON, SILENT

REFRESH_S = 300.0
"""A reading is restarted after about this long, although nothing seems wrong."""
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 2.0
"""The longest pause before a write is reported unknown, growing with its attempts: the outbox retries at once."""
PROBES_MAX = 64
"""Unanswered probes that are kept: more than candidates for a role ask within one probe's time."""
UNAVAILABLE = 500
"""From this code on the server is at fault: JetStream has no leader, or no disk."""
SET_ASIDE_MAX = 1_000


class Arrivals(Protocol):
    """Learns of each message that is read: `RequestTraces`, or a reader of times."""

    @property
    def recording(self) -> bool:
        """Whether it needs times."""

    def arrived(
        self, subject: str, sequence: int, request: str, headers: Mapping[str, str] | None, stored_ns: int = 0
    ) -> None:
        """A message was read; `stored_ns`: when the broker stored it, 0 if unknown."""


class NatsBus:
    """Last-value streams with guarded writes, on NATS JetStream."""

    def __init__(
        self, connection: Connection, traces: Arrivals | None, refresh_s: float, *, records_agents: bool
    ) -> None:
        self._records_agents = records_agents
        self._agents_share = stream_management.AgentsShare(connection)
        self._connection = connection
        self._traces = traces
        self._refresh_s = refresh_s
        self._readers: dict[Reader, None] = {}
        self._recorder = HistoryWriter(connection)
        self._set_aside: BoundedDict[tuple[str, int], None] = BoundedDict(SET_ASIDE_MAX)
        self._log = logs.get("bus", bus=connection.name).bind()  # bound once; binding per line is slow
        self._liveness = BrokerLiveness(self._log)
        self._shown = ExitStack()
        self._shown.enter_context(metrics.collecting_from(lambda: (Sample(SILENT, self._liveness.lasts_s),)))

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        name: str,
        traces: Arrivals | None = None,
        credentials: CredentialSource | None = None,
        refresh_s: float = REFRESH_S,
        within_s: float | None = None,
        records_agents: bool = False,
        quiet: bool = False,
    ) -> "NatsBus":
        """
        As `Connection.open`. `traces` gets what is read; with `records_agents` agents' messages go to HISTORY; `quiet`
        ones ping seldom while they await nothing.
        """
        connection = await Connection.open(url, name=name, credentials=credentials, within_s=within_s, quiet=quiet)
        return cls(connection, traces, refresh_s, records_agents=records_agents)

    async def write(self, write: Write, headers: dict[str, str]) -> Answer:
        try:
            data = wire_format.envelope_bytes(write, datetime.now(UTC).isoformat(timespec="milliseconds"))
        except MessageTooLargeError as error:
            raise BusError(f"{write.subject}: {error}") from error
        guarded = {**headers, wire_format.EXPECTED: str(write.expected), wire_format.EXPECTED_SUBJECT: write.guard}
        if write.ttl_s is not None:
            guarded[wire_format.TTL] = f"{write.ttl_s}s"
        self._recorder.sent(write, data, headers)
        began = time.monotonic()
        try:
            sequence = wire_format.answer_of(
                write.subject, await self._connection.request(write.subject, data, headers=guarded)
            )
        except TimeoutError as error:
            self._log.info("write without an answer", subject=write.subject, attempt=write.attempt, why=str(error))
            self._recorder.lost(write)
            self._liveness.unanswered(connected=self.connected, clustered=self.clustered)
            return await self._unknown(write)
        except wire_format.ApiError as error:
            if error.code < UNAVAILABLE:
                self._liveness.answered()
            else:
                self._liveness.unanswered(connected=self.connected, clustered=self.clustered)
            if error.err_code == wire_format.WRONG_LAST_SEQUENCE:
                self._recorder.refused(write)
                return WriteRefused(write.operation, error.wrong_last_sequence)
            if error.err_code == wire_format.OTHER_IN_FLIGHT:
                self._recorder.lost(write)
                return await self._unknown(write)
            self._log.error("the server cannot accept a write", subject=write.subject, why=str(error))
            self._recorder.refused(write)
            if error.code < UNAVAILABLE:
                raise BusError(str(error)) from error
            return await self._unknown(write)
        self._liveness.answered()
        took = {COMMIT: f"{(time.monotonic() - began) * 1e3:.2f}"}  # for readers of the history
        await self._recorder.landed(write, sequence, data, headers | took)
        return WriteAccepted(write.operation, sequence)

    async def _unknown(self, write: Write) -> WriteUnknown:
        pause_s = backoff_s(write.attempt, PAUSE_FIRST_S, PAUSE_MAX_S)
        await self._connection.up_within(PAUSE_MAX_S)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
        return WriteUnknown(write.operation)

    def read(self, stream: Stream, filters: tuple[str, ...] = ()) -> AsyncIterator[list[Reading]]:
        """All last values under `filters`, then the live tail. HISTORY is read from its first message on."""
        return self._read(StreamConsumer(self._connection, stream, filters))

    def read_ledger(self, node: NodeName) -> AsyncIterator[list[Reading]]:
        return self._read(LedgerConsumer(self._connection, node))

    async def _read(self, consumer: Consumer) -> AsyncIterator[list[Reading]]:
        reader = Reader(self._connection, consumer, self._take, refresh_s=self._refresh_s)
        self._readers[reader] = None
        try:
            async with aclosing(reader.batches()) as batches:
                async for batch in batches:
                    yield batch
        finally:
            del self._readers[reader]

    def read_again(self, stream: Stream) -> None:
        for reader in self._readers:
            if reader.stream is stream:
                reader.restart("asked to")

    async def last(self, stream: Stream, subject: str) -> Entry | None:
        answer = await self._connection.request(f"$JS.API.DIRECT.GET.{stream}.{subject}")
        status = wire_format.status_of(answer)
        if status == "404":
            return None
        headers = answer.headers or {}
        if status or wire_format.SEQUENCE not in headers:
            raise TimeoutError(f"no value of {subject}: {status}")
        return self._take(headers[wire_format.SUBJECT], int(headers[wire_format.SEQUENCE]), answer).entry

    def _take(self, subject: str, sequence: int, message: Msg) -> wire_format.Read:
        read = wire_format.read_stored(subject, sequence, message.data)
        if read.why and (subject, sequence) not in self._set_aside:
            self._log_set_aside(subject, sequence, read)
        if self._traces is not None:
            stored_ns = wire_format.stored_ns_of(message.reply) if self._traces.recording else 0
            self._traces.arrived(subject, sequence, read.request, message.headers, stored_ns)
        if read.entry is not None:
            self._recorder.seen(read.entry)
            if self._records_agents:
                self._recorder.read_of_agent(read.entry, message)
        return read

    def _log_set_aside(self, subject: str, sequence: int, read: wire_format.Read) -> None:
        """Log once that a message was set aside, and count it. A foreign subject is named nowhere else."""
        self._set_aside.put((subject, sequence), None)
        kind = subject.removeprefix(HISTORY_PREFIX).split(".", 2)[1:2]
        stream = Stream.HISTORY if subject.startswith(HISTORY_PREFIX) else stream_of("".join(kind))
        metrics.count(POISON, stream.value, read.fault)
        self._log.error(
            "set aside: not a message of Sluice",
            subject=shorten(subject),
            sequence=sequence,
            why=read.why,
            remedy="sluice doctor names it and says what to do"
            if read.entry is not None
            else f"finish an upgrade that goes on; otherwise remove it: nats stream rmm {stream.value} {sequence}",
        )

    async def written_at(self, stream: Stream, subject: str) -> wire_format.WrittenAt | None:
        """When the last value of a subject was written, or None for none. Raises TimeoutError without an answer."""
        return wire_format.times_of(await self._connection.request(f"$JS.API.DIRECT.GET.{stream}.{subject}"))

    async def stream_problems(self) -> list[str]:
        return await stream_management.stream_problems(self._connection)

    async def unstored_s(self, stream: Stream) -> float | None:
        return await stream_management.unstored_s(self._connection, stream)

    async def incarnation(self, stream: Stream) -> Incarnation:
        return await stream_management.incarnation(self._connection, stream)

    async def ensure_streams(self, *, history_bytes: int = HISTORY_BYTES_MAX) -> None:
        await stream_management.ensure_streams(self._connection, history_bytes=history_bytes)

    async def resize_history(self, history_bytes: int) -> None:
        await stream_management.resize_history(self._connection, history_bytes)

    async def bound_agents(self) -> None:
        await self._agents_share.enforce()

    async def ensure_agent(self, node: NodeName) -> None:
        await stream_management.ensure_agent(self._connection, node)

    @asynccontextmanager
    async def answering(self, subject: str) -> AsyncIterator[None]:
        async def answer(message: Msg) -> None:
            with suppress(TimeoutError):  # the one that asked asks again
                await self._connection.publish(message.reply, b"")

        try:
            subscription = await self._connection.subscribe(subject, answer, messages_max=PROBES_MAX)
        except TimeoutError as error:
            raise BusError(str(error)) from error
        try:
            yield
        finally:
            with suppress(*wire_format.NO_ANSWER, ConnectionClosedError):
                await subscription.unsubscribe()

    async def probe(self, subject: str, within_s: float) -> Probe:
        try:
            await self._connection.request(subject, timeout_s=within_s)
        except TimeoutError as error:
            if not self.connected:
                return Probe.UNKNOWN
            return Probe.ABSENT if isinstance(error.__cause__, NoRespondersError) else Probe.SILENT
        return Probe.ANSWERED

    @property
    def connected(self) -> bool:
        return self._connection.up

    @property
    def unread_s(self) -> float:
        return max((reader.unread_s for reader in self._readers), default=0.0)

    @property
    def clustered(self) -> bool:
        return self._connection.clustered

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._shown.close()
        self._recorder.close()
        await self._connection.close()

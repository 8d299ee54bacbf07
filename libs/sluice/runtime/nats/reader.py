"""
Reads a stream's last values and then its tail, by one pull consumer that does both.

A reading that may have missed something is never repaired but restarted, which is cheap on last values and always
right. A gap, silence, a reconnect, an error and a timer all end it the same way. Messages are passed on unread.
"""

import asyncio
import json
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from sluice.contracts.bus.events import Observed, ReadingCaughtUp, ReadingStarted, Stream
from sluice.contracts.ids import Incarnation
from sluice.runtime import logs
from sluice.runtime.bus import Reading
from sluice.runtime.nats.broker_liveness import AwakeDeadline
from sluice.runtime.nats.client import Error, Msg
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.wire_format import (
    DESCRIPTION,
    LAST_CONSUMER,
    LAST_STREAM,
    PENDING_MESSAGES,
    ApiError,
    Read,
    delivery_of,
    status_of,
)
from sluice.runtime.prometheus import metrics
from sluice.runtime.prometheus.metrics import Sample
from sluice.runtime.prometheus.runtime_metrics import LAG, REDELIVERIES
from sluice.runtime.retry import Backoff

SILENCE_MAX_S = 3.0
"""A heartbeat so late means that the consumer is gone."""
PENDING_MAX_S = 3.0
"""Pending messages that do not arrive within this count as expired (messages may have a TTL), and a server of a cluster
that does not have by then what the leader had as too far behind: the next reading may be served by another."""
ABSORBED_MAX = 200
"""Messages that are decoded before the event loop gets its turn: some 10 ms of inventories."""
PULL_LATE_S = 0.3
"""How much later than its expiry the server may end a pull."""
ACK = b"+ACK"

OnBatch = Callable[[str, int, Msg], Read]
"""Converts the message of a subject at a sequence into an entry."""


class BrokenReadingError(Exception):
    """A reading may have missed something, or its consumer is gone."""


class LostMessagesError(BrokenReadingError):
    """Messages of a consumer went to an earlier pull, whose reader is gone."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A consumer before its first message; `pending` messages are stored already.

    The reading is complete once the consumer's server has the stream up to `ends_at`, which its leader had (ADR 0070);
    0 where that is not known: a single server never lags, and agents may not ask."""

    name: str
    pending: int
    incarnation: Incarnation
    ends_at: int = 0


ENDING_HEARTBEAT_S = 0.25
"""Of a pull in a cluster while the reading is not complete: at the end of an idle stream only a heartbeat says that it
is (ADR 0070). Such a pull does not end sooner: what is pending at its end counts as expired."""


class Pull(NamedTuple):
    """A request for at most `batch` messages: how long it is open, and the interval of heartbeats meanwhile (s)."""

    batch: int
    expires_s: float
    heartbeat_s: float


class Consumer(Protocol):
    """How one kind of consumer is found and opened; reading is the same for all."""

    stream: Stream
    messages_max: int
    """Of all open pulls together."""
    acknowledges: bool
    outlives_reading: bool
    """Whether the next reading uses the same consumer, so that pulls of this one still take from it."""
    tells_missing: bool
    """Whether its reader gets a reading without incarnation while there is nothing to read."""

    async def find(self) -> Incarnation | None:
        """The stream's incarnation, or None while the stream or durable does not exist. Raises TimeoutError."""

    async def open(self) -> Opened:
        """Begin at the first entry. Raises TimeoutError, ApiError."""

    def next_pull(self, behind: int, wanted: int, left_s: float) -> Pull | None:
        """The pull to open now, if one is needed: `behind` messages are stored and not sent, `wanted` are requested and
        not received, `left_s` is the time until the reading is restarted."""


class Reader:
    """One endless read of one consumer's stream; a reading is restarted after `refresh_s` at the latest."""

    def __init__(self, connection: Connection, consumer: Consumer, take: OnBatch, *, refresh_s: float) -> None:
        self._connection = connection
        self._consumer = consumer
        self._take = take
        self._refresh_s = refresh_s
        self._backoff = Backoff(0.05, 2.0)
        self._news = asyncio.Event()
        self._stop = ""
        """Why the reading must restart; empty while it need not."""
        self._behind = 0
        """How many messages the broker still had when it sent the last one."""
        self._pulls_end_at = 0.0
        """When the last pull ends that may take more than one message."""
        self._silence_max_s = SILENCE_MAX_S
        self._unread_since: float | None = None
        """Since when there has been no reading; None while there is one."""
        self._log = logs.get("reader", bus=connection.name, stream=consumer.stream.value)

    @property
    def stream(self) -> Stream:
        return self._consumer.stream

    @property
    def unread_s(self) -> float:
        """For how long nothing could be read; 0 during a reading."""
        return asyncio.get_running_loop().time() - self._unread_since if self._unread_since is not None else 0.0

    def restart(self, why: str) -> None:
        """Restart as soon as the reader of our batches asks for the next one."""
        self._stop = why
        self._news.set()

    async def batches(self) -> AsyncGenerator[list[Reading]]:
        """Readings one after another, without end. Raises BusError when the connection has failed for good."""
        with metrics.collecting_from(lambda: (Sample(LAG, self._behind, (self.stream.value,)),)):
            async with aclosing(self._endless()) as batches:
                async for batch in batches:
                    yield batch

    async def _endless(self) -> AsyncGenerator[list[Reading]]:
        self._connection.on_change(self._on_change)
        try:
            while True:
                self._unread_since = self._unread_since or asyncio.get_running_loop().time()
                incarnation = await self._look()
                if incarnation is None and self._consumer.tells_missing:
                    yield [ReadingStarted(self.stream, Incarnation(""))]
                if incarnation is None:
                    incarnation = await self._found()
                self._stop = ""
                yield [ReadingStarted(self.stream, incarnation)]
                try:
                    async with aclosing(self._read(incarnation)) as reading:
                        async for batch in reading:
                            yield batch
                except (TimeoutError, ApiError, BrokenReadingError) as error:
                    self._connection.check()
                    self._log.warning("reading restarts", why=str(error))
                    await self._pause(self._until_pulls_end_s(error))
                else:
                    self._connection.check()
                    self._log.debug("reading restarts", why=self._stop)
        finally:
            self._connection.off_change(self._on_change)

    def _on_change(self) -> None:
        self._backoff.reset()
        self.restart("the connection was lost")

    async def _found(self) -> Incarnation:
        while True:
            await self._pause()
            self._connection.check()
            incarnation = await self._look()
            if incarnation is not None:
                return incarnation

    async def _look(self) -> Incarnation | None:
        try:
            return await self._consumer.find()
        except (TimeoutError, ApiError) as error:
            self._log.debug("cannot read yet", why=str(error))
            return None

    async def _pause(self, at_least_s: float = 0.0) -> None:
        self._news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(at_least_s, self._backoff.next_s())):
                await self._news.wait()

    def _until_pulls_end_s(self, error: Exception) -> float:
        """Time until our own pulls take nothing from the next reader; those of an earlier run are over by then, too."""
        if self._consumer.outlives_reading and isinstance(error, LostMessagesError):
            return self._pulls_end_at - asyncio.get_running_loop().time()
        return 0.0

    async def _read(self, incarnation: Incarnation) -> AsyncGenerator[list[Reading]]:
        async with self._inbox() as inbox:
            opened = await self._consumer.open()
            if opened.incarnation != incarnation:
                self._stop = "the stream was recreated"
                return
            self._unread_since = None
            reading = _Position(self.stream, self._take, asyncio.get_running_loop().time(), opened)
            self._behind = opened.pending
            if complete := [*reading.completed_at(0)]:
                yield complete
            ends_at = asyncio.get_running_loop().time() + self._refresh_s * random.uniform(0.9, 1.1)
            left_s = self._refresh_s
            while not self._stop:
                wants = self._consumer.next_pull(self._behind, reading.wanted, left_s) if left_s > 0 else None
                if wants is not None:
                    is_ending = bool(opened.ends_at) and not reading.caught_up
                    often = wants._replace(heartbeat_s=ENDING_HEARTBEAT_S)
                    await self._pull(opened.name, inbox.subject, often if is_ending else wants)
                    reading.wanted += wants.batch
                    continue
                batch, acks = reading.absorb(await self._next(inbox), asyncio.get_running_loop().time())
                self._behind = reading.behind
                if batch:
                    self._backoff.reset()
                    yield batch
                if self._consumer.acknowledges:
                    for reply in acks:
                        await self._connection.publish(reply, ACK)
                if reading.broken:
                    raise (LostMessagesError if reading.lost else BrokenReadingError)(reading.broken)
                left_s = ends_at - asyncio.get_running_loop().time()
                if left_s <= 0 and (reading.wanted <= 0 or not self._consumer.outlives_reading):
                    self.restart("it is time to")

    async def _pull(self, consumer: str, inbox: str, pull: Pull) -> None:
        body = {
            "batch": pull.batch,
            "expires": int(pull.expires_s * 1e9),
            "idle_heartbeat": int(pull.heartbeat_s * 1e9),
        }
        self._silence_max_s = pull.heartbeat_s + SILENCE_MAX_S
        if pull.batch > 1:  # one for a single message ends with the message that it takes
            self._pulls_end_at = asyncio.get_running_loop().time() + pull.expires_s + PULL_LATE_S
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{consumer}"
        await self._connection.publish(subject, json.dumps(body).encode(), reply=inbox)

    async def _next(self, inbox: "_Inbox") -> list[Msg]:
        """Messages that have arrived; waits for some. Raises BrokenReadingError if all is silent while this runs."""
        if not inbox.messages and not self._stop:
            self._news.clear()
            loop = asyncio.get_running_loop()
            deadline = AwakeDeadline(self._silence_max_s, loop.time())
            while not self._news.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline.due):
                        await self._news.wait()
                if not self._news.is_set() and deadline.is_over(loop.time()):
                    raise BrokenReadingError(f"no heartbeat for {self._silence_max_s:g} s")
        elif len(inbox.messages) > ABSORBED_MAX:
            await asyncio.sleep(0)
        return [inbox.messages.popleft() for _ in range(min(ABSORBED_MAX, len(inbox.messages)))]

    @asynccontextmanager
    async def _inbox(self) -> AsyncGenerator["_Inbox"]:
        inbox = _Inbox(self._connection.new_inbox())

        async def hear(message: Msg) -> None:
            inbox.messages.append(message)
            self._news.set()

        messages_max = self._consumer.messages_max + 1_000  # and heartbeats
        subscription = await self._connection.subscribe(inbox.subject, hear, messages_max=messages_max)
        try:
            yield inbox
        finally:
            with suppress(Error, OSError):
                await subscription.unsubscribe()


@dataclass(slots=True)
class _Inbox:
    """Where one reading is delivered: a fresh subject, so that messages of an earlier one never mix in."""

    subject: str
    messages: deque[Msg] = field(default_factory=deque)


class _Position:
    """The progress of one reading, and whether anything is missing before it."""

    def __init__(self, stream: Stream, take: OnBatch, now: float, opened: Opened) -> None:
        self._stream = stream
        self._take = take
        self._ends_at = opened.ends_at
        self.caught_up = False
        self._came_at = now
        """When the last message came."""
        self._sequence = 0
        self._delivered = 0
        self.wanted = 0
        """Messages requested and not received."""
        self.behind = opened.pending
        """How many messages the broker had left when it sent the last one."""
        self.broken = ""
        """Why this reading cannot go on; empty while it can."""
        self.lost = False
        """Whether that is because messages are missing."""

    def completed_at(self, sequence: int) -> Iterator[Reading]:
        """The end of the snapshot, once: nothing is pending, and our server has the stream up to this sequence."""
        if self.behind == 0 and sequence >= self._ends_at and not self.caught_up:
            self.caught_up = True
            yield ReadingCaughtUp(self._stream)

    def absorb(self, messages: list[Msg], now: float) -> tuple[list[Reading], list[str]]:
        """Entries of the messages that came by `now`, and the subjects to acknowledge them at."""
        batch: list[Reading] = []
        acks: list[str] = []
        for message in messages:
            if status := status_of(message):
                batch.extend(self._handle_status(status, message.headers or {}))
            elif not self.broken:
                self.wanted -= 1
                batch.extend(self._pass_on(message))
                acks.append(message.reply)
        if acks or self.caught_up:
            self._came_at = now
        elif now - self._came_at > PENDING_MAX_S and not self.broken:
            self.broken = "pending messages did not arrive: they have expired, or the server is behind"
        return batch, acks

    def _handle_status(self, status: str, headers: dict[str, str]) -> Iterator[Reading]:
        """Handle a status of the server. All but a heartbeat and an expired pull end the reading. A heartbeat says how
        far its server has the stream, also where the last messages are not for this reader, or expired."""
        if status == "100":
            last, upto = headers.get(LAST_CONSUMER, ""), headers.get(LAST_STREAM, "")
            if last.isdigit() and int(last) > self._delivered:
                self.broken, self.lost = f"{int(last) - self._delivered} messages were lost", True
            elif upto.isdigit() and self._ends_at:
                yield from self.completed_at(int(upto))
        elif status == "408":
            self.wanted -= int(headers.get(PENDING_MESSAGES, "0"))
            self.behind = 0  # whatever was left has expired
        else:
            self.broken = f"the server says {status} {headers.get(DESCRIPTION, '')}".rstrip()

    def _pass_on(self, message: Msg) -> Iterator[Reading]:
        """The entry, and the end of the snapshot after its last one. Nothing behind a gap; redeliveries are skipped."""
        delivery = delivery_of(message.reply)
        if delivery is None or delivery.consumer_sequence != self._delivered + 1:
            self.broken, self.lost = f"a gap after message {self._delivered}", True
            return
        self._delivered = delivery.consumer_sequence
        self.behind = delivery.pending
        if delivery.stream_sequence > self._sequence:
            self._sequence = delivery.stream_sequence
            entry = self._take(message.subject, delivery.stream_sequence, message).entry
            if entry is not None:
                yield Observed(self._stream, entry)
        else:
            metrics.count(REDELIVERIES, self._stream.value)
        yield from self.completed_at(delivery.stream_sequence)

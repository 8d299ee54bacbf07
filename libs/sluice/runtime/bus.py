"""
The port between a service and the bus, implemented by the NATS bus and the memory bus (one conformance suite).

It only transports. Guards come in with the write, and answers are passed on unchanged. A write without an answer is
reported as unknown, not retried: the outbox settles it (`sluice.contracts.outbox`).
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Protocol

from sluice.contracts.bus.events import (
    Entry,
    Observed,
    ReadingCaughtUp,
    ReadingStarted,
    Stream,
    Write,
    WriteAccepted,
    WriteRefused,
    WriteUnknown,
)
from sluice.contracts.bus.store_sizes import HISTORY_BYTES_MAX
from sluice.contracts.ids import Incarnation, NodeName

Answer = WriteAccepted | WriteRefused | WriteUnknown
Reading = ReadingStarted | Observed | ReadingCaughtUp


class BusError(Exception):
    """A permanent error of the bus: a missing permission, a server too old. Ends the service."""


class DeniedError(BusError):
    """The broker denies its user a subject. Never retried: a stolen identity, or a wrong configuration."""

    def __init__(self, *, user: str, verb: str, subject: str) -> None:
        """`verb` is `publish` or `subscription`; subjects are reported in lower case (nats-py 2.16)."""
        what = {"publish": "publish to", "subscription": "listen to"}.get(verb.lower(), "use")
        super().__init__(
            f"permissions violation: the broker does not let {user!r} {what} {subject or 'a subject'!r}; is this "
            "process another service's user, or are the broker's users older than this release? (docs/security.md)"
        )
        self.user, self.verb, self.subject = user, verb, subject


class Probe(Enum):
    """Whether another process answers."""

    ANSWERED = "answered"
    ABSENT = "absent"
    """No connection of the broker subscribes to the subject: the process has ended, or lost its connection."""
    SILENT = "silent"
    """No answer in time."""
    UNKNOWN = "unknown"
    """This process is not connected."""


class Bus(Protocol):
    """Last-value streams with guarded writes."""

    async def write(self, write: Write, headers: dict[str, str]) -> Answer:
        """Publish once, guarded, in bounded time; pauses before reporting unknown. Raises BusError if denied."""

    def read(self, stream: Stream, filters: tuple[str, ...] = ()) -> AsyncIterator[list[Reading]]:
        """
        All last values under `filters` (the whole stream when empty), then the live tail, in batches.

        `ReadingStarted` is yielded before the server is asked, so that a reading explains every answer that came before
        it. After a gap, a missed heartbeat or a reconnect the reading restarts by itself; closing the iterator ends it.
        """

    def read_ledger(self, node: NodeName) -> AsyncIterator[list[Reading]]:
        """
        A node's ledger by its agent's durable: reset to the first entry at start and after each reconnect.

        A batch is acknowledged when the next one is asked for. While the durable does not exist (a wiped broker, an
        unknown node) a `ReadingStarted` without incarnation is yielded: the agent must publish its statuses again,
        because the durable is created only after they arrive.
        """

    def read_again(self, stream: Stream) -> None:
        """Restart every reader of `stream` in this process."""

    async def last(self, stream: Stream, subject: str) -> Entry | None:
        """The last value of one subject. Raises TimeoutError."""

    async def incarnation(self, stream: Stream) -> Incarnation:
        """The incarnation of the broker's data. Raises TimeoutError when there is no such stream."""

    async def ensure_streams(self, *, history_bytes: int = HISTORY_BYTES_MAX) -> None:
        """Create missing streams (PROTOCOL §1), as administrator. `history_bytes` is the size limit of HISTORY."""

    async def bound_agents(self) -> None:
        """Remove the slice statuses of nodes whose agents wrote too many. Raises TimeoutError, BusError."""

    async def ensure_agent(self, node: NodeName) -> None:
        """Create the durable of one node's agent if it is missing. Needs the administrator's rights."""

    def answering(self, subject: str) -> AbstractAsyncContextManager[None]:
        """Answer `probe`s of `subject` while the context lasts and this process runs. Raises BusError."""

    async def probe(self, subject: str, within_s: float) -> Probe:
        """Ask whether a process is `answering`; returns after at most `within_s`. Raises BusError."""

    @property
    def connected(self) -> bool:
        """Whether a server is connected, as far as is known now."""

    @property
    def unread_s(self) -> float:
        """How long a stream to be read has been unreadable; 0 while readings go on. Values read earlier stay valid."""

    async def close(self) -> None:
        """Drain and disconnect, within a bounded time."""

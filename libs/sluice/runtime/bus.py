"""
The port between a service and the bus: what the NATS bus and the memory bus both promise (one conformance suite).

Nothing here decides. Guards come in with the write, answers go out as they were given, and a write without an answer
is reported as unknown, not retried: settling it is the core's (`sluice.contracts.outbox`).
"""

from collections.abc import AsyncIterator
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
    """Something about the bus that waiting does not mend: no permission, a server too old. Ends the service."""


class DeniedError(BusError):
    """The broker denies its user a subject. Never tried again: somebody poses as a service, or it is set up badly."""

    def __init__(self, *, user: str, verb: str, subject: str) -> None:
        """`verb` is `publish` or `subscription`; subjects are told in lower case (nats-py 2.16)."""
        what = {"publish": "publish to", "subscription": "listen to"}.get(verb.lower(), "use")
        super().__init__(
            f"permissions violation: the broker does not let {user!r} {what} {subject or 'a subject'!r}; is this "
            "process another service's user, or are the broker's users older than this release? (docs/security.md)"
        )
        self.user, self.verb, self.subject = user, verb, subject


class Bus(Protocol):
    """Last-value streams with guarded writes."""

    async def write(self, write: Write, headers: dict[str, str]) -> Answer:
        """
        Publish once, guarded. Returns within a bounded time; pauses (bounded, jittered) before reporting unknown.

        Raises BusError when the server denies the subject.
        """

    def read(self, stream: Stream, filters: tuple[str, ...] = ()) -> AsyncIterator[list[Reading]]:
        """
        All last values under `filters` (the whole stream when empty), then the live tail, in batches.

        `ReadingStarted` is yielded before the server is asked, so that a reading explains every answer that came
        before it. After a gap, a missed heartbeat or a reconnect the reading starts anew by itself; closing the
        iterator ends it.
        """

    def read_ledger(self, node: NodeName) -> AsyncIterator[list[Reading]]:
        """
        A node's ledger by its agent's durable: reset to the first entry at start and after each reconnect.

        A batch is acknowledged when the next one is asked for. While the durable does not exist (a broker that was
        wiped, a node that was never heard of) a `ReadingStarted` without incarnation says that nothing is known: the
        agent must say its own words again, for its durable is only made when it is heard.
        """

    def read_again(self, stream: Stream) -> None:
        """Start every reader of `stream` in this process anew."""

    async def last(self, stream: Stream, subject: str) -> Entry | None:
        """The last value of one subject. Raises TimeoutError."""

    async def incarnation(self, stream: Stream) -> Incarnation:
        """Which life of the broker's data this is. Raises TimeoutError when there is no such stream."""

    async def ensure_streams(self, *, history_bytes: int = HISTORY_BYTES_MAX) -> None:
        """
        Declare the streams where they are missing (PROTOCOL §1). Needs the administrator's rights.

        `history_bytes` is what HISTORY may take of the broker's disk.
        """

    async def ensure_agent(self, node: NodeName) -> None:
        """Declare the durable of one node's agent where it is missing. Needs the administrator's rights."""

    @property
    def connected(self) -> bool:
        """Whether there is a server at the other end, as far as is known now."""

    @property
    def unread_s(self) -> float:
        """
        For how long already a stream that is to be read here cannot be; 0 while readings go on.

        What was read of it is what was: a server may be there and have no stream, or too few beside it.
        """

    async def close(self) -> None:
        """Drain and disconnect, within a bounded time."""

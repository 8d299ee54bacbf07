"""The port between a service and the bus, implemented by the NATS bus and by the tests' memory bus.

It only transports. A write without an answer is reported as unknown, not retried: the outbox settles it."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Protocol

from sluice.contracts.bus import events
from sluice.contracts.bus.store_sizes import HISTORY_BYTES_MAX
from sluice.contracts.ids import Incarnation, NodeName

Answer = events.WriteAccepted | events.WriteRefused | events.WriteUnknown
Reading = events.ReadingStarted | events.Observed | events.ReadingCaughtUp


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
    UNKNOWN = "unknown"


class Bus(Protocol):
    """Last-value streams with guarded writes."""

    async def write(self, write: events.Write, headers: dict[str, str]) -> Answer:
        """Publish once, guarded, in bounded time; pauses before reporting unknown. Raises BusError if denied."""

    def read(self, stream: events.Stream, filters: tuple[str, ...] = ()) -> AsyncIterator[list[Reading]]:
        """
        All last values under `filters` (the whole stream when empty), then the live tail, in batches.

        `ReadingStarted` is yielded before the server is asked, so that a reading explains every answer that came before
        it. After a gap, a missed heartbeat or a reconnect the reading restarts by itself; closing the iterator ends it.
        """

    def read_ledger(self, node: NodeName) -> AsyncIterator[list[Reading]]:
        """A node's ledger by its agent's durable, acknowledged by batch; without incarnation while that is missing."""

    def read_again(self, stream: events.Stream) -> None:
        """Restart every reader of `stream` in this process."""

    async def last(self, stream: events.Stream, subject: str) -> events.Entry | None:
        """The last value of one subject. Raises TimeoutError."""

    async def incarnation(self, stream: events.Stream) -> Incarnation:
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

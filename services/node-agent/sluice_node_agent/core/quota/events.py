"""Events and instructions of a home's token scheduler."""

from dataclasses import dataclass

from sluice_node_agent.core.quota.wire import Ask, GiveBack, Hello, ToClient

TenantName = str
Connection = int
"""Numbered by the shell; never used twice."""


@dataclass(frozen=True, slots=True)
class TenantSet:
    """A share joined the home, or has another size now."""

    tenant: TenantName
    request_ppm: int
    limit_ppm: int
    width_percent: int
    memory_bytes: int = 0
    """The most that one of its processes may allocate, for the library to enforce; 0 for no limit."""


@dataclass(frozen=True, slots=True)
class TenantRemoved:
    """A share left the home."""

    tenant: TenantName


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    """A process has connected to a tenant's socket, and may belong to that tenant."""

    connection: Connection
    tenant: TenantName


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A process sent a message."""

    connection: Connection
    message: Hello | Ask | GiveBack


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """A connection is closed: its process has ended, or was disconnected."""

    connection: Connection


@dataclass(frozen=True, slots=True)
class TimerDue:
    """The time of `WakeAt` has come, or nearly so."""


QuotaEvent = TenantSet | TenantRemoved | ConnectionOpened | MessageReceived | ConnectionClosed | TimerDue


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a process."""

    connection: Connection
    message: ToClient


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close a connection after its pending messages. No `ConnectionClosed` is needed for it."""

    connection: Connection
    why: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `TimerDue` at this time; replaces the last one. `at_us` None: never."""

    at_us: int | None


QuotaInstruction = Send | Disconnect | WakeAt

"""What happens to the token scheduler of a home, and what it wants done."""

from dataclasses import dataclass

from sluice_node_agent.core.quota.wire import Ask, GiveBack, Hello, ToClient

TenantName = str
Connection = int
"""Numbered by the shell; never used twice."""


@dataclass(frozen=True, slots=True)
class TenantSet:
    """A share is in the home, or has another size now."""

    tenant: TenantName
    request_ppm: int
    limit_ppm: int
    width_percent: int
    memory_bytes: int = 0
    """What a process of it may allocate, for the library to keep; 0 for no limit."""


@dataclass(frozen=True, slots=True)
class TenantRemoved:
    """A share is not in the home any more."""

    tenant: TenantName


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    """A process has connected to the socket of a tenant, and may be one of its."""

    connection: Connection
    tenant: TenantName


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A process said something."""

    connection: Connection
    message: Hello | Ask | GiveBack


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """A connection is closed: its process has ended, or was cut off."""

    connection: Connection


@dataclass(frozen=True, slots=True)
class TimerDue:
    """The time that `WakeAt` named has come, or nearly so."""


QuotaEvent = TenantSet | TenantRemoved | ConnectionOpened | MessageReceived | ConnectionClosed | TimerDue


@dataclass(frozen=True, slots=True)
class Send:
    """Tell a process."""

    connection: Connection
    message: ToClient


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close a connection, after what was sent to it. No `ConnectionClosed` is needed for it."""

    connection: Connection
    why: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `TimerDue` then, instead of what was named before. `at_us` is None for never."""

    at_us: int | None


QuotaInstruction = Send | Disconnect | WakeAt

"""Events, instructions and tunables of a home's token scheduler; clients get the tunables in WELCOME."""

from dataclasses import dataclass

import msgspec

from sluice_node_agent.core.quota.wire import Ask, GiveBack, Hello, ToClient

WHOLE_PPM = 1_000_000
"""All of the time, in millionths."""
LEAST_REQUEST_PPM = 1_000
"""What a request of 0 counts as (docs/sharing.md): one thousandth, so that no tenant starves."""


@dataclass(frozen=True, slots=True)
class QuotaConfig:
    """Times in microseconds."""

    window_us: int = 100_000
    """The period of requests and limits. Ten usual tokens: shorter than a person notices."""
    token_us: int = 10_000
    """How long a token is. A synchronisation costs tens of microseconds, far below 1 % of it."""
    least_us: int = 1_000
    """The shortest token: below it, synchronising would take most of it."""
    grace_us: int = 5_000
    """A token returned later than this counts as late; one asked for ahead and later than this is not extended."""
    overrun_max_us: int = 200_000
    """After this a token counts as stalled, and others run beside it. Kernels are rarely longer than two windows."""
    debt_max_us: int = 10_000_000
    """The largest debt: a process that hung for an hour is not kept out for hours."""
    debt_wait_us: int = 2_000_000
    """The longest that a tenant in debt is kept from starting beside a stalled token."""
    patience_us: int = 500_000
    """The shortest wait for an answer before a client fails open: long beside any answer, so no tenant gains by it."""
    connections_max: int = 64
    """Per tenant: more than a pod has CUDA processes (an MPS server takes 48 to 60)."""

    def __post_init__(self) -> None:
        if not 0 < self.least_us <= self.token_us <= self.window_us:
            raise ValueError(
                f"least_us, token_us and window_us are {self.least_us}, {self.token_us} and {self.window_us}; "
                "they must be above 0 and in that order"
            )
        if min(self.grace_us, self.overrun_max_us, self.debt_max_us, self.debt_wait_us) < 0 or self.connections_max < 1:
            raise ValueError(
                "grace_us, overrun_max_us, debt_max_us and debt_wait_us are at least 0, connections_max at least 1"
            )


TenantName = str
Connection = int
"""Numbered by the shell; never used twice."""


class TenantSet(msgspec.Struct, frozen=True):
    """A share joined the home, or has another size now."""

    tenant: TenantName
    request_ppm: int
    limit_ppm: int
    width_percent: int
    memory_bytes: int = 0
    """The most that one of its processes may allocate, for the library to enforce; 0 for no limit."""


class TenantRemoved(msgspec.Struct, frozen=True):
    """A share left the home."""

    tenant: TenantName


class ConnectionOpened(msgspec.Struct, frozen=True):
    """A process has connected to a tenant's socket, and may belong to that tenant."""

    connection: Connection
    tenant: TenantName


class MessageReceived(msgspec.Struct, frozen=True):
    """A process sent a message."""

    connection: Connection
    message: Hello | Ask | GiveBack


class ConnectionClosed(msgspec.Struct, frozen=True):
    """A connection is closed: its process has ended, or was disconnected."""

    connection: Connection


class TimerDue(msgspec.Struct, frozen=True):
    """The time of `WakeAt` has come, or nearly so."""


QuotaEvent = TenantSet | TenantRemoved | ConnectionOpened | MessageReceived | ConnectionClosed | TimerDue


class Send(msgspec.Struct, frozen=True):
    """Send a message to a process."""

    connection: Connection
    message: ToClient


class Disconnect(msgspec.Struct, frozen=True):
    """Close a connection after its pending messages. No `ConnectionClosed` is needed for it."""

    connection: Connection
    why: str


class WakeAt(msgspec.Struct, frozen=True):
    """Send `TimerDue` at this time; replaces the last one. `at_us` None: never."""

    at_us: int | None


QuotaInstruction = Send | Disconnect | WakeAt

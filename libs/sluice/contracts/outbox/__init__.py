"""
The rules of writing (PROTOCOL §2) as a state machine, so that no core has to know them by heart.

A core says what it wants on the bus; the outbox turns that into guarded writes, one in flight per guard, and settles
what has no answer by writing again, never by a read. It must not decide anything: whether a contested value is worth
fighting for is the core's question (`Contested`).
"""

from sluice.contracts.outbox.guard_queue import IN_FLIGHT_MAX
from sluice.contracts.outbox.outbox import (
    EXPLAIN_TIMEOUT_S,
    LAGS_MAX_S,
    REREAD_S,
    Contested,
    Outbox,
    OutboxReport,
    Settled,
)

__all__ = [
    "EXPLAIN_TIMEOUT_S",
    "IN_FLIGHT_MAX",
    "LAGS_MAX_S",
    "REREAD_S",
    "Contested",
    "Outbox",
    "OutboxReport",
    "Settled",
]

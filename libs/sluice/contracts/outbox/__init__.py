"""
The rules of writing (PROTOCOL §2) as a state machine, so that no core has to implement them.

A core states what it wants on the bus. The outbox turns that into guarded writes, one in flight per guard, and settles
an unanswered write by writing again, never by a read. The core decides whether a contested value is worth fighting for
(`Contested`).
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

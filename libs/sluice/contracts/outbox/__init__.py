"""The rules of writing (PROTOCOL §2): what a core wants on the bus becomes guarded writes, one in flight per guard.

An unanswered write is settled by writing again, never by a read. The core decides whether a contested value is worth
fighting for (`Contested`)."""

from sluice.contracts.outbox.guard_queue import IN_FLIGHT_MAX as IN_FLIGHT_MAX
from sluice.contracts.outbox.outbox import EXPLAIN_TIMEOUT_S as EXPLAIN_TIMEOUT_S
from sluice.contracts.outbox.outbox import LAGS_MAX_S as LAGS_MAX_S
from sluice.contracts.outbox.outbox import REREAD_S as REREAD_S
from sluice.contracts.outbox.outbox import Contested as Contested
from sluice.contracts.outbox.outbox import Outbox as Outbox
from sluice.contracts.outbox.outbox import OutboxReport as OutboxReport
from sluice.contracts.outbox.outbox import Settled as Settled

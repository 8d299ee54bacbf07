"""
The figures of a benchmark: duration of each hop, double allocations, and the comparison with the broker.

All times of a system's run come from its messages in the history, by the clocks of one machine.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter

from sluice.contracts.bus.trace_headers import COMMIT, milliseconds
from sluice.contracts.messages import AllocationRequested, AnyMessage, Booking, Bound, Closed, Grant, Revoke, SliceReady
from sluice_console.core.documents import VERSION, Document
from sluice_console.core.history.sentences import HistoryMessage

LANDED_AT = "Sluice-Sequence"
"""Header of a copy in HISTORY with the sequence of its original (`sluice.runtime.nats.history_writer`)."""
HOPS = ("asked to granted", "granted to ready", "ready to bound", "asked to bound")


class SpreadDocument(Document, frozen=True, kw_only=True):
    """Distribution of a time, in ms."""

    p50: float
    p90: float
    p99: float
    max: float


class HopDocument(Document, frozen=True, kw_only=True):
    """One hop."""

    hop: str
    """From one message to the next; the last until stored."""
    ms: SpreadDocument


class CeilingDocument(Document, frozen=True, kw_only=True):
    """The same messages on a bare broker: same streams, sizes, publishers and limit, each consumed once, no logic."""

    ms: SpreadDocument
    """First message sent to last one stored."""
    per_second: float
    seconds: float
    messages: int
    """Without the copies to HISTORY, which were sent too."""
    bytes: int
    publishers: int


class BenchDocument(Document, frozen=True, kw_only=True):
    """`sluice bench --json`."""

    version: int = VERSION
    requests: int
    bound: int
    refused: int
    overcommitted: int
    """Most memory slices in two allocations at once, by the ledger. Must be 0."""
    seconds: float
    """First manifest to last binding."""
    per_second: float
    """Requests bound."""
    hops: tuple[HopDocument, ...]
    released: bool
    """Whether everything was given back."""
    ceiling: CeilingDocument | None = None
    latency_ratio_p50: float | None = None
    """To the bare broker's. None without a ceiling."""
    throughput_ratio: float | None = None
    """Of the bare broker's. None without a ceiling."""
    nodes: int
    gpus: int
    agents: int
    """Agent processes."""
    mix: str
    rate: float
    """Requests a second; 0 is all at once."""


@dataclass(slots=True)
class RequestTimes:
    """One request's messages: Unix times, s."""

    asked_s: float = 0.0
    granted_s: float = 0.0
    ready_s: float = 0.0
    bound_s: float = 0.0
    stored_s: float = 0.0
    """When the broker had stored the binding."""

    @property
    def whole(self) -> bool:
        """Whether it was bound."""
        return self.stored_s > 0


def request_times(history: Iterable[HistoryMessage], requests: Mapping[str, str]) -> dict[str, RequestTimes]:
    """The times of each of `requests` (id -> pod name), by the first of each of its messages."""
    found = {request: RequestTimes() for request in requests}
    for happened in history:
        message = happened.envelope.message
        way = found.get(request_of(message) or happened.envelope.request)
        at_s = time_s(happened)
        if way is None or at_s is None:
            continue
        if isinstance(message, AllocationRequested):
            way.asked_s = way.asked_s or at_s
        elif isinstance(message, Grant):
            way.granted_s = way.granted_s or at_s
        elif isinstance(message, SliceReady):
            way.ready_s = way.ready_s or at_s
        elif isinstance(message, Bound) and not way.bound_s:
            way.bound_s = at_s
            way.stored_s = at_s + (milliseconds(happened.headers.get(COMMIT, "")) or 0.0) / 1000
    return found


def request_of(message: AnyMessage) -> str:
    """The request of a ledger message."""
    booking: Booking | None = getattr(message, "booking", None)
    return str(booking.request) if booking is not None else ""


def time_s(happened: HistoryMessage) -> float | None:
    """The Unix time of a message; None if unreadable."""
    try:
        found = datetime.fromisoformat(happened.envelope.time)
    except ValueError:
        return None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def hops_of(found: Iterable[RequestTimes]) -> tuple[HopDocument, ...]:
    """Duration of each hop, over bound requests."""
    whole = [way for way in found if way.whole]
    if not whole:
        return ()
    times = (
        [way.granted_s - way.asked_s for way in whole],
        [way.ready_s - way.granted_s for way in whole],
        [way.stored_s - way.ready_s for way in whole],
        [way.stored_s - way.asked_s for way in whole],
    )
    return tuple(HopDocument(hop=hop, ms=spread(each)) for hop, each in zip(HOPS, times, strict=True))


def spread(times_s: Sequence[float]) -> SpreadDocument:
    """Percentiles by the nearest rank, in ms. Raises ValueError for no times."""
    ordered = sorted(times_s)
    if not ordered:
        raise ValueError("there is no time to tell of")

    def rank(percent: int) -> float:
        return round(ordered[max(0, -(-percent * len(ordered) // 100) - 1)] * 1000, 2)

    return SpreadDocument(p50=rank(50), p90=rank(90), p99=rank(99), max=rank(100))


def overcommitted(bookings: Iterable[Booking]) -> int:
    """Memory slices that two exclusive places have at once, counted slice by slice.

    Shares of one device are one place."""
    taken: dict[tuple[str, str, int], set[str]] = {}
    for booking in bookings:
        for number, device in enumerate(booking.devices):
            home = f"home {device.profile} {device.start}" if device.share is not None else ""
            whose = home or f"{booking.allocation} {number}"
            for at in range(device.start, device.start + device.size):
                taken.setdefault((booking.node, device.gpu, at), set()).add(whose)
    return sum(len(owners) - 1 for owners in taken.values())


def overcommitted_ever(history: Iterable[HistoryMessage]) -> int:
    """The most memory slices allocated twice at any moment of a run, by ledger messages in order.

    A reservation (a grant that comes after others) is no second place."""
    words = [
        (int(each.headers[LANDED_AT]), each.envelope.message)
        for each in history
        if each.headers.get(LANDED_AT, "").isdecimal() and isinstance(each.envelope.message, Grant | Revoke | Closed)
    ]
    words.sort(key=itemgetter(0))
    standing: dict[str, Booking] = {}
    promised: dict[str, set[str]] = {}
    most = 0
    for _, message in words:
        if isinstance(message, Closed):
            standing.pop(message.allocation, None)
            for waits_for in promised.values():
                waits_for.discard(message.allocation)
            continue
        allocation = message.booking.allocation
        if allocation not in standing and isinstance(message, Grant):
            promised[allocation] = {str(other) for other in message.after}
        standing[allocation] = message.booking
        node = message.booking.node
        there = [each for name, each in standing.items() if each.node == node and not promised.get(name)]
        most = max(most, overcommitted(there))
    return most

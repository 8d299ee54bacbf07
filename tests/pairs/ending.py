"""When all pods are gone only closing messages are on the bus, and the allocator remembers nothing."""

from pairs.bus import Bus
from pairs.judge import ViolationError, brief

from sluice.contracts.bus.events import Entry, Stream
from sluice.contracts.messages import EvictionOver, Grant, Released, RequestWithdrawn, Revoke, SliceGone, WaitOver
from sluice_allocator.core.allocator import Allocator

QUEUES = ("committing", "assumed", "undecided", "strays", "to_try", "to_tell", "changed_requests")


def is_over(bus: Bus, core: Allocator) -> None:
    """All of it. Raises ViolationError."""
    for stream in (Stream.BOOK, Stream.STATE):
        for entry in bus.everything(stream):
            if not _closes(entry):
                raise ViolationError("left on the bus", f"{entry.subject}: {brief(entry.message)}")
    left = _left_in(core)
    if left:
        raise ViolationError("left in memory", f"{left}")


def _closes(entry: Entry) -> bool:
    message = entry.message
    match entry.subject.split(".")[1]:
        case "ledger":
            return not isinstance(message, Grant | Revoke)
        case "binding":
            return isinstance(message, Released)
        case "waiting":
            return isinstance(message, WaitOver)
        case "eviction":
            return isinstance(message, EvictionOver)
        case "request":
            return isinstance(message, RequestWithdrawn) and message.closing
        case "slice":
            return isinstance(message, SliceGone) and message.closing
        case _:
            return True


def _left_in(core: Allocator) -> dict[str, object]:
    ctx = core.ctx
    left = {name: getattr(ctx, name) for name in QUEUES}
    left |= {"booked": list(ctx.cluster.booked()), "waiting": len(ctx.queue)}
    left |= {f"moves.{name}": getattr(ctx.moves, name) for name in ("standing", "stays_since", "promises")}
    return {name: value for name, value in left.items() if value}

"""A promise that another allocator has ended before its own write was answered is not counted for ever."""

from factories.scheduling.allocator import Bench, asked, claim, gpu_report, snapshot

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked, Write, WriteAccepted
from sluice.contracts.ids import RunId
from sluice.contracts.messages import Closed, Grant, Revoke
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import LeaseChanged

WHOLE = claim(profile="7g.40gb")
AFTER_S = 300.0


def test_a_promise_that_was_ended_before_its_write_was_answered_is_not_counted_any_more():
    """Else the place that it had in the limit of promises is never free again, and no pod is promised anything."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig(promise_after_s=AFTER_S)))
    bench.read_all()
    bench.handle(LeaseChanged(held=True))
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0),)))
    bench.bound("p1", WHOLE)
    bench.land_all(bench.request(asked("big", WHOLE)))
    bench.now += AFTER_S
    (write,) = [w for w in bench.handle(Ticked()) if isinstance(w, Write) and isinstance(w.message, Grant)]
    promise = write.message
    assert isinstance(promise, Grant)
    assert promise.after

    landed_at = next(bench.sequence)  # the answer is on its way while the other allocator reads it, and ends it
    booking = promise.booking
    address = subjects.ledger(booking.node, booking.allocation)
    revoke = Revoke(
        revision=2,
        incarnation=promise.incarnation,
        booking=booking,
        cause="an earlier place is reserved for it",
        after=promise.after,
    )
    said = bench.observe(address, revoke)
    said += bench.handle(WriteAccepted(write.operation, landed_at))
    said += bench.gone(promise)
    closed = Closed(
        revision=2, allocation=booking.allocation, request=booking.request, node=booking.node, cause="promised before"
    )
    said += bench.observe(address, closed)
    bench.land_all(said)

    assert not bench.allocator.ctx.promised.of_model
    granted: list[Grant] = []
    for _ in range(1200):  # retries of promises double up to eight minutes
        bench.now += 1.0
        granted += [w.message for w in bench.land_all(bench.handle(Ticked())) if isinstance(w.message, Grant)]
    assert [(grant.booking.name, bool(grant.after)) for grant in granted] == [("big", True)]

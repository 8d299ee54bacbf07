"""A place that is kept for a pod that is moved, and who must not take it over."""

import msgspec
from factories.allocator import FOLDER, Bench, asked, claim, gpu_report, snapshot

from sluice.contracts import subjects
from sluice.contracts.exchange import Ticked, Write
from sluice.contracts.ids import AllocationId, RequestId, RunId
from sluice.contracts.messages import AllocationRequested, EvictionDone, Grant, Leeway, RequestWithdrawn, Revoke
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.events import GoOn, LeaseChanged
from sluice_allocator.core.rules import Rules

SMALL, WHOLE = claim(profile="1g.5gb"), claim(profile="7g.40gb")


def asks(name: str) -> AllocationRequested:
    """A pod that may be served by a larger profile, and is moved back."""
    return msgspec.structs.replace(asked(name, SMALL), leeway=Leeway(substitute="return"))


def all_of(bench: Bench, said: list) -> list[Write]:
    """Every write lands, and all that follows."""
    landed = bench.land_all(said)
    while bench.allocator.unfinished:
        landed += bench.land_all(bench.handle(GoOn()))
    return landed


def bound(bench: Bench, request: AllocationRequested) -> Grant:
    """A pod that has its slice."""
    (write,) = [each for each in all_of(bench, bench.request(request)) if isinstance(each.message, Grant)]
    all_of(bench, bench.ready(write.message))
    return write.message


def test_who_was_promised_a_place_loses_no_kept_place():
    """It may have one of the two: the other would be taken back, and the pod that was evicted for it have none."""
    bench = Bench(Allocator(RunId("r1"), Rules()))
    bench.read_all()
    bench.handle(LeaseChanged(held=True))
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0),)))
    bench.add_node(snapshot("node-b", (gpu_report("node-b", 0, model="a30-24gb"),)))
    full = bound(bench, asked("full", WHOLE))
    old = bound(bench, asks("web-1"))
    withdrawn = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
    all_of(bench, bench.observe(subjects.request(full.booking.request), withdrawn))
    all_of(bench, bench.gone(full))
    while bench.now < 660:
        bench.now += 30
        all_of(bench, bench.handle(Ticked()))
    world = bench.allocator.desk.world
    kept = [world.ledger[a] for a in world.allocations_of[RequestId("web-1")]][1]
    assert isinstance(kept, Grant)
    assert kept.after == (old.booking.allocation,)
    all_of(bench, bench.observe(subjects.evicted(RequestId("web-1")), EvictionDone(request=RequestId("web-1"))))
    # another allocator has promised web-2 the place of web-1, in its turn
    booking = msgspec.structs.replace(
        old.booking, allocation=AllocationId("web-2_r9_1"), request=RequestId("web-2"), name="web-2"
    )
    promise = msgspec.structs.replace(old, booking=booking, after=(old.booking.allocation,))
    all_of(bench, bench.observe(subjects.ledger(booking.node, booking.allocation), promise))
    writes = all_of(bench, bench.request(asks("web-2")))
    revoked = [w.message.booking.allocation for w in writes if isinstance(w.message, Revoke)]
    heirs = [w.message.booking.allocation for w in writes if isinstance(w.message, Grant) and w.message.evict]
    assert (revoked, heirs) == ([], [])

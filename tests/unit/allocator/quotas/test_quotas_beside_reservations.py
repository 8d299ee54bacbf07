"""What a promise counts for its namespace while its request has another place besides, beside what another grants."""

import msgspec
from factories.scheduling.allocator import FOLDER, Bench, all_said, claim, gpu_report, snapshot
from factories.scheduling.quotas import WHOLE, all_of, asks, bound, end, limit, read_back

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked, Write
from sluice.contracts.ids import AllocationId, RequestId, RunId
from sluice.contracts.messages import Bound, Grant, RequestWithdrawn, Revoke, Waived
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import LeaseChanged


def test_of_two_grants_at_once_the_later_is_taken_back_also_beside_a_promise():
    """A tenant that a reservation waited for stays once that is not needed: it would not be counted."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig(promise_after_s=300.0)))
    bench.read_all(all_said())
    bench.handle(LeaseChanged(held=True))
    for name in ("node-a", "node-b", "node-c"):
        bench.add_node(snapshot(name, (gpu_report(name, 0),)))
    tenant = bound(bench, "tenant", WHOLE)
    shops = [bound(bench, f"shop{n}", WHOLE, namespace="shop") for n in (1, 2)]
    limit(bench, gpus=2)
    all_of(bench, bench.request(asks("waits", WHOLE)))
    bench.now += 301
    (promise,) = [w.message for w in all_of(bench, bench.handle(Ticked())) if isinstance(w.message, Grant)]
    assert promise.after == (tenant.booking.allocation,)  # 1 of 2 devices, when that is gone
    read_back(bench, promise)

    writes = end(bench, shops[0])
    (free,) = [w.message for w in writes if isinstance(w.message, Grant)]
    assert (free.booking.name, free.after) == ("waits", ())  # with the tenant 2 of 2 devices
    read_back(bench, free)
    end(bench, shops[1])

    # another allocator, which had not read the promise, has granted one device on node-c
    all_of(bench, bench.request(asks("theirs", WHOLE)))
    (device,) = free.booking.devices
    node = shops[1].booking.node
    theirs = msgspec.structs.replace(
        free,
        booking=msgspec.structs.replace(
            free.booking,
            allocation=AllocationId("theirs_r9_1"),
            request=RequestId("theirs"),
            name="theirs",
            node=node,
            devices=(msgspec.structs.replace(device, gpu=f"GPU-{node}-0"),),
        ),
    )
    writes = all_of(bench, bench.observe(subjects.ledger(node, theirs.booking.allocation), theirs))
    writes += all_of(bench, bench.ready(theirs)) + all_of(bench, bench.ready(free))
    assert [w.message.booking.name for w in writes if isinstance(w.message, Revoke)] == ["theirs", "waits"]


TWO = claim(profile="7g.40gb", gpus=2)


def test_a_request_with_a_promise_and_what_it_is_exchanged_for_counts_once_and_not_never():
    """It would lose its place to a later grant of another allocator, which has not read that the quota is used up."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig(promise_after_s=300.0)))
    bench.read_all(all_said())
    bench.handle(LeaseChanged(held=True))
    bench.add_node(snapshot("node-a", tuple(gpu_report("node-a", i) for i in range(3))))
    shops = [bound(bench, f"shop{n}", WHOLE, namespace="shop") for n in (1, 2, 3)]
    bench.add_node(snapshot("node-b", tuple(gpu_report("node-b", i) for i in range(1))))
    others = [bound(bench, f"oth{n}", WHOLE, namespace="shop") for n in (1,)]
    limit(bench, gpus=2)
    all_of(bench, bench.request(asks("big", TWO)))
    bench.now += 301
    (promise,) = [w.message for w in all_of(bench, bench.handle(Ticked())) if isinstance(w.message, Grant)]
    read_back(bench, promise)
    mine = [s for s in shops if s.booking.allocation in promise.after]
    (third,) = [s for s in shops if s.booking.allocation not in promise.after]
    end(bench, mine[0])
    tenant = mine[1]
    withdrawn = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
    all_of(bench, bench.observe(subjects.request(tenant.booking.request), withdrawn))
    # the third ends: the exchange is booked and lands; the waiver is under way
    all_of(bench, bench.observe(subjects.request(third.booking.request), withdrawn))
    todo, held, exchange = [i for i in bench.gone(third) if isinstance(i, Write)], [], None
    while todo:
        w = todo.pop(0)
        if isinstance(w.message, Waived):
            held.append(w)
            continue
        if isinstance(w.message, Grant):
            exchange = w.message
        todo += [i for i in bench.land(w) if isinstance(i, Write)]
    assert exchange.after == (promise.booking.allocation,)
    read_back(bench, exchange)
    # now the tenant is gone: what was promised is free, too
    all_of(bench, bench.gone(tenant))
    # another allocator has granted one device on node-b, where the other shop has left
    end(bench, others[0])
    dev = exchange.booking.devices[0]
    theirs = msgspec.structs.replace(
        exchange,
        after=(),
        booking=msgspec.structs.replace(
            exchange.booking,
            allocation=AllocationId("theirs_r9_1"),
            request=RequestId("theirs"),
            name="theirs",
            node="node-b",
            devices=(msgspec.structs.replace(dev, gpu="GPU-node-b-0"),),
        ),
    )
    all_of(bench, bench.request(asks("theirs", WHOLE)))
    w = all_of(bench, bench.observe(subjects.ledger("node-b", theirs.booking.allocation), theirs))
    w += all_of(bench, bench.ready(theirs))
    for h in held:
        w += all_of(bench, [h])
    w += all_of(bench, bench.gone(promise))
    w += all_of(bench, bench.ready(exchange))
    b = [x.message.allocation for x in w if isinstance(x.message, Bound)]
    assert b == [exchange.booking.allocation]

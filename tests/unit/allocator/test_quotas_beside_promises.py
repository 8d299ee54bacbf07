"""What a promise counts for its namespace while its request has another place besides, beside what another grants."""

import msgspec
from factories.allocator import Bench, all_said, gpu_report, snapshot
from factories.quotas import WHOLE, all_of, asks, bound, end, limit, read_back

from sluice.contracts import subjects
from sluice.contracts.exchange import Ticked
from sluice.contracts.ids import AllocationId, RequestId, RunId
from sluice.contracts.messages import Grant, Revoke
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.events import LeaseChanged
from sluice_allocator.core.rules import Rules


def test_of_two_grants_at_once_the_later_is_taken_back_also_beside_a_promise():
    """The tenant whom a promise waits for stays where the promise is not needed any more: he would not be counted."""
    bench = Bench(Allocator(RunId("r1"), Rules(promise_after_s=300.0)))
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

"""Quotas where two allocators grant, and beside promises."""

import msgspec
import pytest
from factories.scheduling.allocator import Bench, claim, gpu_report, snapshot, working_allocator
from factories.scheduling.quotas import (
    SMALL,
    WHOLE,
    asks,
    bound,
    end,
    granted,
    limit,
    read_back,
)

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Observed, Stream, Ticked, Write
from sluice.contracts.ids import AllocationId, NodeName, OperationId, RequestId
from sluice_allocator.core.config import SchedulerConfig


def of_another(bench: Bench, name: str, node: str, start: int) -> msg.Grant:
    """What another allocator grants at the same time: read from the ledger."""
    mine = next(iter(bench.allocator.ctx.facts.ledger.values()))
    assert isinstance(mine, msg.Grant)
    return like(mine, name, node, start=start)


def like(grant: msg.Grant, name: str, node: str, **place: int) -> msg.Grant:
    """Another allocator's grant to another pod, of as large a place on another node."""
    device = msgspec.structs.replace(grant.booking.devices[0], gpu=f"GPU-{node}-0", **place)
    booking = msgspec.structs.replace(
        grant.booking,
        allocation=AllocationId(f"{name}_r9_1"),
        request=RequestId(name),
        name=name,
        node=NodeName(node),
        devices=(device,),
    )
    return msgspec.structs.replace(grant, booking=booking)


def read_grant(bench: Bench, grant: msg.Grant, sequence: int) -> list:
    address = subjects.ledger(grant.booking.node, grant.booking.allocation)
    return bench.handle(Observed(Stream.BOOK, Entry(address.subject, sequence, OperationId("other"), grant)))


@pytest.fixture
def pair(bench: Bench) -> Bench:
    bench.add_nodes("node-b")
    limit(bench, gpus=1)
    return bench


def written_at(bench: Bench, grant: msg.Grant) -> int:
    entry = subjects.ledger(grant.booking.node, grant.booking.allocation)
    return bench.allocator.ctx.facts.sequences[Stream.BOOK][entry.subject]


def test_of_two_grants_at_once_the_later_is_taken_back(pair):
    """Whichever allocator wrote it; the earlier one is left alone by both."""
    mine = granted(pair, "p1", SMALL)
    pair.observe(subjects.request(RequestId("p2")), asks("p2", SMALL))
    next(pair.sequence)
    later = of_another(pair, "p2", "node-b", 5)
    writes = pair.settle(read_grant(pair, later, written_at(pair, mine) + 1))
    (revoke,) = [write.message for write in writes if isinstance(write.message, msg.Revoke)]
    assert (revoke.booking, revoke.cause) == (
        later.booking,
        "an earlier grant used up the quota of namespace lab for devices",
    )


def test_an_own_grant_is_taken_back_when_an_earlier_one_is_read_after_it(pair):
    """A process knows its own writes first: order is the ledger's, and not that of hearing."""
    next(pair.sequence)
    mine = granted(pair, "p1", SMALL)
    earlier = of_another(pair, "p2", "node-b", 5)
    writes = pair.settle(read_grant(pair, earlier, written_at(pair, mine) - 1))
    assert [write.message.booking for write in writes if isinstance(write.message, msg.Revoke)] == [mine.booking]


def test_what_was_adopted_later_takes_nothing_from_an_earlier_grant(pair):
    """After a wipe one who has read on would take back what another binds, who has not."""
    mine = granted(pair, "p1", SMALL)
    pair.observe(subjects.request(RequestId("p2")), asks("p2", SMALL))
    adopted = msgspec.structs.replace(of_another(pair, "p2", "node-b", 5), adopted=True)
    pair.settle(read_grant(pair, adopted, written_at(pair, mine) + 1))
    pair.settle(pair.ready(adopted))
    assert [type(write.message) for write in pair.settle(pair.ready(mine))] == [msg.Bound]


def test_what_counts_as_bound_follows_each_word(bench):
    """A grant counts among those that may be taken back until it is bound, and again from its Revoke on."""
    opened = bench.allocator.ctx.cluster.namespace_usage.opened
    grant = granted(bench, "p1", SMALL)
    allocation = grant.booking.allocation
    assert list(opened("lab")) == [allocation]
    bench.settle(bench.ready(grant))
    assert list(opened("lab")) == []
    bench.settle(bench.ends("p1"))
    assert list(opened("lab")) == [allocation]
    bench.settle(bench.gone(grant))
    assert list(opened("lab")) == []


def test_nobody_is_bound_to_what_may_still_be_taken_back(pair):
    """The word that it is waived is on its way; a Revoke that follows would end a pod that runs."""
    next(pair.sequence)
    mine = granted(pair, "p1", SMALL)
    earlier = of_another(pair, "p2", "node-b", 5)
    pair.observe(subjects.request(RequestId("p2")), asks("p2", SMALL))
    said = [each for each in read_grant(pair, earlier, written_at(pair, mine) - 1) if isinstance(each, Write)]
    assert [type(each.message) for each in said] == [msg.Waived]  # and it has no answer
    read_back(pair, mine)
    gone = pair.gone(earlier)  # now there is room again
    assert [each for each in [*gone, *pair.ready(mine)] if isinstance(getattr(each, "message", None), msg.Bound)] == []
    landed = pair.land_all(said)
    assert [type(write.message) for write in landed if isinstance(write.message, msg.Bound)] == []


def test_of_two_grants_at_once_the_later_is_taken_back_also_beside_a_promise():
    """A tenant that a reservation waited for stays once that is not needed: it would not be counted."""
    bench = working_allocator(SchedulerConfig(promise_after_s=300.0))
    bench.add_nodes("node-a", "node-b", "node-c")
    tenant = bound(bench, "tenant", WHOLE)
    shops = [bound(bench, f"shop{n}", WHOLE, namespace="shop") for n in (1, 2)]
    limit(bench, gpus=2)
    bench.settle(bench.request(asks("waits", WHOLE)))
    bench.now += 301
    (promise,) = [w.message for w in bench.settle(bench.handle(Ticked())) if isinstance(w.message, msg.Grant)]
    assert promise.after == (tenant.booking.allocation,)  # 1 of 2 devices, when that is gone
    read_back(bench, promise)

    writes = end(bench, shops[0])
    (free,) = [w.message for w in writes if isinstance(w.message, msg.Grant)]
    assert (free.booking.name, free.after) == ("waits", ())  # with the tenant 2 of 2 devices
    read_back(bench, free)
    end(bench, shops[1])

    # another allocator, which had not read the promise, has granted one device on node-c
    bench.settle(bench.request(asks("theirs", WHOLE)))
    theirs = like(free, "theirs", shops[1].booking.node)
    writes = bench.settle(bench.reads(theirs))
    writes += bench.settle(bench.ready(theirs)) + bench.settle(bench.ready(free))
    assert [w.message.booking.name for w in writes if isinstance(w.message, msg.Revoke)] == ["theirs", "waits"]


TWO = claim(profile="7g.40gb", gpus=2)


def test_a_request_with_a_promise_and_what_it_is_exchanged_for_counts_once_and_not_never():
    """It would lose its place to a later grant of another allocator, which has not read that the quota is used up."""
    bench = working_allocator(SchedulerConfig(promise_after_s=300.0))
    bench.add_node(snapshot("node-a", tuple(gpu_report("node-a", i) for i in range(3))))
    shops = [bound(bench, f"shop{n}", WHOLE, namespace="shop") for n in (1, 2, 3)]
    bench.add_node(snapshot("node-b", tuple(gpu_report("node-b", i) for i in range(1))))
    others = [bound(bench, f"oth{n}", WHOLE, namespace="shop") for n in (1,)]
    limit(bench, gpus=2)
    bench.settle(bench.request(asks("big", TWO)))
    bench.now += 301
    (promise,) = [w.message for w in bench.settle(bench.handle(Ticked())) if isinstance(w.message, msg.Grant)]
    read_back(bench, promise)
    mine = [s for s in shops if s.booking.allocation in promise.after]
    (third,) = [s for s in shops if s.booking.allocation not in promise.after]
    end(bench, mine[0])
    tenant = mine[1]
    bench.settle(bench.ends(tenant.booking.request))
    # the third ends: the exchange is booked and lands; the waiver is under way
    bench.settle(bench.ends(third.booking.request))
    todo, held, exchange = [i for i in bench.gone(third) if isinstance(i, Write)], [], None
    while todo:
        w = todo.pop(0)
        if isinstance(w.message, msg.Waived):
            held.append(w)
            continue
        if isinstance(w.message, msg.Grant):
            exchange = w.message
        todo += [i for i in bench.land(w) if isinstance(i, Write)]
    assert exchange.after == (promise.booking.allocation,)
    read_back(bench, exchange)
    # now the tenant is gone: what was promised is free, too
    bench.settle(bench.gone(tenant))
    # another allocator has granted one device on node-b, where the other shop has left
    end(bench, others[0])
    theirs = msgspec.structs.replace(like(exchange, "theirs", "node-b"), after=())
    bench.settle(bench.request(asks("theirs", WHOLE)))
    w = bench.settle(bench.reads(theirs))
    w += bench.settle(bench.ready(theirs))
    for h in held:
        w += bench.settle([h])
    w += bench.settle(bench.gone(promise))
    w += bench.settle(bench.ready(exchange))
    b = [x.message.allocation for x in w if isinstance(x.message, msg.Bound)]
    assert b == [exchange.booking.allocation]

"""Quotas where two allocators grant, and beside promises."""

import pytest
from factories.scheduling.allocator import Bench, claim, kinds, messages, only, working_allocator
from factories.scheduling.quotas import SMALL, WHOLE, asks, bound, end, granted, limit, read_back
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Observed, Stream, Write
from sluice.contracts.ids import AllocationId, NodeName, OperationId, RequestId
from sluice_allocator.core.config import SchedulerConfig


def of_another(bench: Bench, name: str, node: str, start: int) -> msg.Grant:
    """What another allocator grants at the same time: read from the ledger."""
    mine = next(iter(bench.allocator.ctx.facts.ledger.values()))
    return like(mine, name, node, start=start)


def like(grant: msg.Grant, name: str, node: str, **place: int) -> msg.Grant:
    """Another allocator's grant to another pod, of as large a place on another node."""
    device = replace(grant.booking.devices[0], gpu=f"GPU-{node}-0", **place)
    of_pod = {"allocation": AllocationId(f"{name}_r9_1"), "request": RequestId(name), "name": name}
    return replace(grant, booking=replace(grant.booking, node=NodeName(node), devices=(device,), **of_pod))


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
    (revoke,) = only(msg.Revoke, pair.settle(read_grant(pair, later, written_at(pair, mine) + 1)))
    assert revoke.booking == later.booking
    assert revoke.cause == "an earlier grant used up the quota of namespace lab for devices"


def test_an_own_grant_is_taken_back_when_an_earlier_one_is_read_after_it(pair):
    """A process knows its own writes first: order is the ledger's, and not that of hearing."""
    next(pair.sequence)
    mine = granted(pair, "p1", SMALL)
    earlier = of_another(pair, "p2", "node-b", 5)
    (revoke,) = only(msg.Revoke, pair.settle(read_grant(pair, earlier, written_at(pair, mine) - 1)))
    assert revoke.booking == mine.booking


def test_what_was_adopted_later_takes_nothing_from_an_earlier_grant(pair):
    """After a wipe one who has read on would take back what another binds, who has not."""
    mine = granted(pair, "p1", SMALL)
    pair.observe(subjects.request(RequestId("p2")), asks("p2", SMALL))
    adopted = replace(of_another(pair, "p2", "node-b", 5), adopted=True)
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
    """The waiver is on its way; a Revoke that follows would end a pod that runs."""
    next(pair.sequence)
    mine = granted(pair, "p1", SMALL)
    earlier = of_another(pair, "p2", "node-b", 5)
    pair.observe(subjects.request(RequestId("p2")), asks("p2", SMALL))
    said = read_grant(pair, earlier, written_at(pair, mine) - 1)
    assert kinds(messages(said)) == [msg.Waived]  # and it has no answer
    read_back(pair, mine)
    gone = pair.gone(earlier)  # now there is room again
    assert only(msg.Bound, [*gone, *pair.ready(mine)]) == []
    assert only(msg.Bound, pair.land_all(said)) == []


def test_of_two_grants_at_once_the_later_is_taken_back_also_beside_a_promise():
    """A tenant that a reservation waited for stays once that is not needed: it would not be counted."""
    bench = working_allocator(SchedulerConfig(promise_after_s=300.0))
    bench.add_nodes("node-a", "node-b", "node-c")
    tenant = bound(bench, "tenant", WHOLE)
    shops = [bound(bench, f"shop{n}", WHOLE, namespace="shop") for n in (1, 2)]
    limit(bench, gpus=2)
    bench.asks(asks("waits", WHOLE))
    (promise,) = only(msg.Grant, bench.passes(301))
    assert promise.after == (tenant.booking.allocation,)  # 1 of 2 devices, when that is gone
    read_back(bench, promise)

    (free,) = only(msg.Grant, end(bench, shops[0]))
    assert (free.booking.name, free.after) == ("waits", ())  # with the tenant 2 of 2 devices
    read_back(bench, free)
    end(bench, shops[1])

    # another allocator, which had not read the promise, has granted one device on node-c
    bench.asks(asks("theirs", WHOLE))
    theirs = like(free, "theirs", shops[1].booking.node)
    writes = bench.settle(bench.reads(theirs))
    writes += bench.settle(bench.ready(theirs)) + bench.settle(bench.ready(free))
    assert [each.booking.name for each in only(msg.Revoke, writes)] == ["theirs", "waits"]


def test_a_request_with_a_promise_and_what_it_is_exchanged_for_counts_once_and_not_never():
    """It would lose its place to a later grant of another allocator, which has not read that the quota is used up."""
    bench = working_allocator(SchedulerConfig(promise_after_s=300.0))
    bench.add_nodes("node-a", gpus=3)
    shops = [bound(bench, f"shop{n}", WHOLE, namespace="shop") for n in (1, 2, 3)]
    bench.add_nodes("node-b")
    other = bound(bench, "other", WHOLE, namespace="shop")
    limit(bench, gpus=2)
    bench.asks(asks("big", claim(profile="7g.40gb", gpus=2)))
    (promise,) = only(msg.Grant, bench.passes(301))
    read_back(bench, promise)
    first, tenant = [shop for shop in shops if shop.booking.allocation in promise.after]
    (third,) = [shop for shop in shops if shop.booking.allocation not in promise.after]
    end(bench, first)
    bench.withdraw(tenant.booking.name)
    # the third ends: the exchange is booked and lands; the waiver is under way
    bench.withdraw(third.booking.name)
    todo, held, exchange = [each for each in bench.gone(third) if isinstance(each, Write)], [], None
    while todo:
        write = todo.pop(0)
        if isinstance(write.message, msg.Waived):
            held.append(write)
            continue
        if isinstance(write.message, msg.Grant):
            exchange = write.message
        todo += [each for each in bench.land(write) if isinstance(each, Write)]
    assert exchange.after == (promise.booking.allocation,)
    read_back(bench, exchange)
    # now the tenant is gone: what was promised is free, too
    bench.settle(bench.gone(tenant))
    # another allocator has granted one device on node-b, where the other shop has left
    end(bench, other)
    theirs = replace(like(exchange, "theirs", "node-b"), after=())
    bench.asks(asks("theirs", WHOLE))
    said = bench.words(bench.reads(theirs)) + bench.words(bench.ready(theirs)) + bench.words(held)
    said += bench.words(bench.gone(promise)) + bench.words(bench.ready(exchange))
    assert [each.allocation for each in only(msg.Bound, said)] == [exchange.booking.allocation]

"""Two allocators that grant at the same time: what of it stands where a namespace may have only so much."""

import msgspec
import pytest
from factories.scheduling.allocator import FOLDER, Bench, claim, gpu_report, snapshot
from factories.scheduling.quotas import SMALL, all_of, asks, bound, granted, limit, read_back, with_a_gpu_to_share

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Observed, Stream, Write
from sluice.contracts.ids import AllocationId, NodeName, OperationId, RequestId
from sluice.contracts.messages import Amounts, Bound, Grant, Pending, QuotaSet, RequestWithdrawn, Revoke, Waived
from sluice_allocator.core.quotas.quota import forbids_place


@pytest.fixture
def bench(empty: Bench) -> Bench:
    """An allocator with node-a open: one empty A100-40GB, which may be shared."""
    return with_a_gpu_to_share(empty)


def of_another(bench: Bench, name: str, node: str, start: int) -> Grant:
    """What another allocator grants at the same time: read from the ledger."""
    mine = next(iter(bench.allocator.ctx.facts.ledger.values()))
    assert isinstance(mine, Grant)
    (device,) = mine.booking.devices
    booking = msgspec.structs.replace(
        mine.booking,
        allocation=AllocationId(f"{name}_r9_1"),
        request=RequestId(name),
        name=name,
        node=NodeName(node),
        devices=(msgspec.structs.replace(device, gpu=f"GPU-{node}-0", start=start),),
    )
    return msgspec.structs.replace(mine, booking=booking)


def read_grant(bench: Bench, grant: Grant, sequence: int) -> list:
    address = subjects.ledger(grant.booking.node, grant.booking.allocation)
    return bench.handle(Observed(Stream.BOOK, Entry(address.subject, sequence, OperationId("other"), grant)))


@pytest.fixture
def pair(bench: Bench) -> Bench:
    bench.add_node(snapshot("node-b", (gpu_report("node-b", 0),)))
    limit(bench, gpus=1)
    return bench


def written_at(bench: Bench, grant: Grant) -> int:
    return bench.allocator.ctx.facts.sequences[subjects.ledger(grant.booking.node, grant.booking.allocation).subject]


def test_of_two_grants_at_once_the_later_is_taken_back(pair):
    """Whichever allocator wrote it; the earlier one is left alone by both."""
    mine = granted(pair, "p1", SMALL)
    pair.observe(subjects.request(RequestId("p2")), asks("p2", SMALL))
    next(pair.sequence)
    later = of_another(pair, "p2", "node-b", 5)
    writes = all_of(pair, read_grant(pair, later, written_at(pair, mine) + 1))
    (revoke,) = [write.message for write in writes if isinstance(write.message, Revoke)]
    assert (revoke.booking, revoke.cause) == (
        later.booking,
        "an earlier grant used up the quota of namespace lab for devices",
    )


def test_an_own_grant_is_taken_back_when_an_earlier_one_is_read_after_it(pair):
    """A process knows its own writes first: order is the ledger's, and not that of hearing."""
    next(pair.sequence)
    mine = granted(pair, "p1", SMALL)
    earlier = of_another(pair, "p2", "node-b", 5)
    writes = all_of(pair, read_grant(pair, earlier, written_at(pair, mine) - 1))
    assert [write.message.booking for write in writes if isinstance(write.message, Revoke)] == [mine.booking]


def test_nobody_is_bound_while_a_limit_that_came_before_its_grant_may_be_unread(bench):
    """Another allocator that has read the limit takes the grant back, under a pod that runs by then."""
    limited_at = next(bench.sequence)
    mine = granted(bench, "p1", SMALL)
    assert all_of(bench, bench.ready(mine)) == []
    quota = QuotaSet(namespace="lab", total=Amounts(gpus=0))
    entry = Entry(subjects.quota("lab").subject, limited_at, OperationId("operator"), quota)
    assert all_of(bench, bench.handle(Observed(Stream.BOOK, entry))) == []
    said = [write.message for write in all_of(bench, read_back(bench, mine)) if not isinstance(write.message, Pending)]
    assert [type(each) for each in said] == [Waived, Revoke]
    assert said[0].allocations == (mine.booking.allocation,)
    assert said[1].booking == mine.booking


def test_a_grant_that_lands_after_the_limit_of_one_pod_is_taken_back(bench):
    """An operator limits what one pod may have; a grant whose write is repeated seconds later would be bound."""
    limited_at = next(bench.sequence)
    mine = granted(bench, "p1", SMALL)
    assert all_of(bench, bench.ready(mine)) == []
    quota = QuotaSet(namespace="lab", request=Amounts(memory_mib=4000))
    entry = Entry(subjects.quota("lab").subject, limited_at, OperationId("operator"), quota)
    bench.handle(Observed(Stream.BOOK, entry))
    said = [write.message for write in all_of(bench, read_back(bench, mine)) if not isinstance(write.message, Pending)]
    assert [type(each) for each in said] == [Waived, Revoke]
    assert (said[1].booking, said[1].cause) == (
        mine.booking,
        "it has more MiB of memory than namespace lab allows one pod",
    )


def test_a_grant_that_is_too_much_for_one_pod_takes_nothing_from_a_later_one(bench):
    """It goes, and would take its neighbour's grant along, which fits."""
    limited_at = next(bench.sequence)
    large = granted(bench, "p1", claim(profile="2g.10gb"))
    small = granted(bench, "p2", SMALL)
    quota = QuotaSet(namespace="lab", total=Amounts(memory_mib=12000), request=Amounts(memory_mib=8000))
    entry = Entry(subjects.quota("lab").subject, limited_at, OperationId("operator"), quota)
    writes = all_of(bench, [*bench.ready(large), *bench.ready(small), *bench.handle(Observed(Stream.BOOK, entry))])
    writes += all_of(bench, [*read_back(bench, large), *read_back(bench, small)])
    assert [write.message.booking for write in writes if isinstance(write.message, Revoke)] == [large.booking]


def test_nobody_is_bound_to_what_may_still_be_taken_back(pair):
    """The word that it is waived is on its way; a Revoke that follows would end a pod that runs."""
    next(pair.sequence)
    mine = granted(pair, "p1", SMALL)
    earlier = of_another(pair, "p2", "node-b", 5)
    pair.observe(subjects.request(RequestId("p2")), asks("p2", SMALL))
    said = [each for each in read_grant(pair, earlier, written_at(pair, mine) - 1) if isinstance(each, Write)]
    assert [type(each.message) for each in said] == [Waived]  # and it has no answer
    read_back(pair, mine)
    gone = pair.gone(earlier)  # now there is room again
    assert [each for each in [*gone, *pair.ready(mine)] if isinstance(getattr(each, "message", None), Bound)] == []
    landed = pair.land_all(said)
    assert [type(write.message) for write in landed if isinstance(write.message, Bound)] == []


def test_what_was_adopted_later_takes_nothing_from_an_earlier_grant(pair):
    """After a wipe one who has read on would take back what another binds, who has not."""
    mine = granted(pair, "p1", SMALL)
    pair.observe(subjects.request(RequestId("p2")), asks("p2", SMALL))
    adopted = msgspec.structs.replace(of_another(pair, "p2", "node-b", 5), adopted=True)
    all_of(pair, read_grant(pair, adopted, written_at(pair, mine) + 1))
    all_of(pair, pair.ready(adopted))
    assert [type(write.message) for write in all_of(pair, pair.ready(mine))] == [Bound]


def test_a_promise_and_the_place_that_came_first_count_once(pair):
    """A request that is promised a place could take no other one that is free earlier, where its limit is tight."""
    mine = granted(pair, "p1", SMALL)
    pair.observe(subjects.request(RequestId("p2")), asks("p2", SMALL))
    other = of_another(pair, "theirs", "node-b", 5)
    other = msgspec.structs.replace(other, booking=msgspec.structs.replace(other.booking, namespace="shop"))
    read_grant(pair, other, written_at(pair, mine) + 1)
    promise = of_another(pair, "p1", "node-b", 5)
    promise = msgspec.structs.replace(promise, after=(other.booking.allocation,))
    writes = all_of(pair, read_grant(pair, promise, written_at(pair, mine) + 2))
    assert mine.booking not in [write.message.booking for write in writes if isinstance(write.message, Revoke)]
    assert forbids_place(pair.allocator.ctx, RequestId("p1"), "lab", ()) == ()


def test_what_counts_as_bound_follows_each_word(bench):
    """A grant counts among those that may be taken back until it is bound, and again from its Revoke on."""
    opened = bench.allocator.ctx.cluster.namespace_usage.opened
    grant = granted(bench, "p1", SMALL)
    allocation = grant.booking.allocation
    assert list(opened("lab")) == [allocation]
    all_of(bench, bench.ready(grant))
    assert list(opened("lab")) == []
    withdrawn = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
    all_of(bench, bench.observe(subjects.request(RequestId("p1")), withdrawn))
    assert list(opened("lab")) == [allocation]
    all_of(bench, bench.gone(grant))
    assert list(opened("lab")) == []


def test_a_bound_share_stays_bound_when_it_is_booked_with_another_size(bench):
    """Else an adjustment that comes to nothing lets it stand behind grants it was before, and both are had."""
    share = claim(profile=None, modes=("mps",), memory_mib=1000, uid=7)
    running, waiting = bound(bench, "p1", share), granted(bench, "p2", share)
    fleet = bench.allocator.ctx.cluster
    for grant in (running, waiting):
        (device,) = grant.booking.devices
        larger = msgspec.structs.replace(device, share=msgspec.structs.replace(device.share, memory_mib=2000))
        assert fleet.book(msgspec.structs.replace(grant.booking, devices=(larger,)))
    assert list(fleet.namespace_usage.opened("lab")) == [waiting.booking.allocation]


def test_a_slice_that_was_adopted_is_not_taken_back(pair):
    """After the broker was wiped the pods run on, and are bound again, whatever the limits say now."""
    mine = granted(pair, "p1", SMALL)
    pair.observe(subjects.request(RequestId("p2")), asks("p2", SMALL))
    adopted = msgspec.structs.replace(of_another(pair, "p2", "node-b", 5), adopted=True)
    writes = all_of(pair, read_grant(pair, adopted, written_at(pair, mine) + 1))
    assert [write for write in writes if isinstance(write.message, Revoke)] == []

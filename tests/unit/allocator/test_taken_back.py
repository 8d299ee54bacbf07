"""What another allocator takes back is not granted again at once: that one may know more of the request."""

import pytest
from factories.allocator import Bench, asked, gpu_report, snapshot
from msgspec.structs import replace

from sluice.contracts import subjects
from sluice.contracts.exchange import Ticked, Write
from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import AnyMessage, Grant, Pending, Revoke, SliceFailed, WaitOver
from sluice.contracts.refusals import WaitReason
from sluice_allocator.core.events import Instruction


@pytest.fixture
def pair(bench: Bench) -> Bench:
    """Two nodes: there is always another place."""
    bench.add_node(snapshot("node-b", (gpu_report("node-b", 0),)))
    bench.said.clear()
    return bench


def writes(said: list[Instruction]) -> list[Write]:
    """Those of them that are for the bus."""
    return [each for each in said if isinstance(each, Write)]


def taken_back(bench: Bench, grant: Grant, cause: str = "pod gone") -> list[AnyMessage]:
    """Another allocator revokes a grant; what this one writes then."""
    address = subjects.ledger(grant.booking.node, grant.booking.allocation)
    revoke = Revoke(revision=2, incarnation=grant.incarnation, booking=grant.booking, cause=cause)
    return [write.message for write in bench.land_all(bench.observe(address, revoke))]


def after(bench: Bench, seconds: float) -> list[AnyMessage]:
    """Time passes, tick by tick; what is written meanwhile."""
    written: list[AnyMessage] = []
    for _ in range(round(seconds * 2)):
        bench.now += 0.5
        written += [write.message for write in bench.land_all(bench.handle(Ticked()))]
    return written


def test_it_rests_longer_each_time_and_is_told_so(pair: Bench):
    """Else two allocators write as fast as the bus carries it, and each round makes and unmakes a slice."""
    grant = pair.granted("p")
    (told,) = taken_back(pair, grant)
    assert isinstance(told, Pending)
    assert told.message == "another allocator took its last place back; it is tried again within 30 s"
    assert [(reason.reason, reason.count) for reason in told.reasons] == [(WaitReason.GPU_AVOIDED, 1)]

    assert after(pair, 0.5) == []
    grant, over = after(pair, 1.0)
    assert isinstance(grant, Grant)
    assert over == WaitOver(request=grant.booking.request)

    assert [type(word) for word in taken_back(pair, grant)] == [Pending]
    assert after(pair, 1.5) == []
    assert [type(word) for word in after(pair, 1.0)] == [Grant, WaitOver]


def test_who_is_new_is_not_held_up_by_who_rests(pair: Bench):
    """Only the request that was taken back rests."""
    taken_back(pair, pair.granted("p"))
    (write,) = writes(pair.request(asked("other")))
    assert isinstance(write.message, Grant)
    assert write.message.booking.request == "other"


def test_a_slice_that_failed_is_tried_on_another_gpu_at_once_whoever_took_it_back(pair: Bench):
    """The other allocator was only faster with its Revoke: the pod need not wait for it."""
    grant = pair.granted("p")
    booking = grant.booking
    failed = SliceFailed(
        allocation=booking.allocation, request=booking.request, revision=1, error="NoMemory", message="full"
    )
    mine, again = writes(pair.observe(subjects.slice_(booking.node, booking.allocation), failed))
    assert isinstance(mine.message, Revoke)
    assert isinstance(again.message, Grant)
    assert again.message.booking.node != booking.node
    theirs = replace(mine.message, cause="making the slice failed")
    assert writes(pair.observe(subjects.ledger(booking.node, booking.allocation), theirs)) == []
    assert not pair.allocator.desk.attempts.rests(booking.request, pair.now)


def test_a_pod_that_ran_does_not_rest(pair: Bench):
    """An eviction or an end is no quarrel."""
    grant = pair.bound("p")
    assert taken_back(pair, grant, "evicted") == []
    assert not pair.allocator.desk.attempts.rests(grant.booking.request, pair.now)


def test_what_an_earlier_run_granted_is_no_quarrel_with_this_one(pair: Bench):
    """After a failover the new allocator puts right what the old one did; nobody waits for that."""
    other = pair.granted("q")
    foreign = Grant(
        revision=1,
        incarnation=other.incarnation,
        booking=replace(other.booking, allocation=AllocationId("q_elsewhere-r9_1")),
    )
    taken_back(pair, foreign)
    assert not pair.allocator.desk.attempts.rests(other.booking.request, pair.now)

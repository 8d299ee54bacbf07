"""What another allocator takes back is not granted again at once: that one may know more of the request."""

import pytest
from factories.scheduling.allocator import Bench, asked, gpu_report, snapshot
from factories.scheduling.gangs import WHOLE, ask, fleet, grants, member
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked, Write
from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import AnyMessage, Grant, Pending, Revoke, SliceFailed, WaitOver
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.events import Instruction


@pytest.fixture
def pair(bench: Bench) -> Bench:
    bench.add_node(snapshot("node-b", (gpu_report("node-b", 0),)))
    bench.said.clear()
    return bench


def writes(said: list[Instruction]) -> list[Write]:
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
    assert told.message == "another allocator revoked its last place; it is retried within 30 s"
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
    assert not pair.allocator.ctx.backoff.rests(booking.request, pair.now)


def test_what_an_earlier_run_granted_is_no_quarrel_with_this_one(pair: Bench):
    """After a failover the new allocator puts right what the old one did; no pod waits for that."""
    other = pair.granted("q")
    foreign = Grant(
        revision=1,
        incarnation=other.incarnation,
        booking=replace(other.booking, allocation=AllocationId("q_elsewhere-r9_1")),
    )
    taken_back(pair, foreign)
    assert not pair.allocator.ctx.backoff.rests(other.booking.request, pair.now)


@pytest.mark.parametrize("size", [1, 2])
def test_a_job_rests_like_one_pod_and_keeps_its_turn(size: int):
    """A job that is deleted while one of two allocators reads late: neither an endless quarrel, nor forgotten."""
    bench = fleet(2 * size)
    pods = [member(f"m{number}", WHOLE, size=size) for number in range(size)]
    granted = grants(ask(bench, *pods))

    def goes_on(seconds: float) -> list[AnyMessage | None]:
        said: list[AnyMessage | None] = []
        for _ in range(round(seconds * 2)):
            bench.now += 0.5
            landed = bench.land_all(bench.handle(Ticked()))
            while landed:
                said += [write.message for write in landed]
                landed = [more for write in landed for more in read_back(bench, write)]
        return said

    for pause_s in (1, 2, 4):
        told = [write for grant in granted.values() for write in revoked(bench, grant)]
        assert {type(write.message) for write in told} == {Pending}
        assert [more for write in told for more in read_back(bench, write) if isinstance(more.message, Grant)] == []
        assert grants(goes_on(pause_s - 0.5)) == {}
        for grant in granted.values():
            bench.land_all(bench.gone(grant))
        granted = grants(goes_on(1.0))
        assert sorted(granted) == [pod.name for pod in pods]


def revoked(bench: Bench, grant: Grant) -> list[Write]:
    address = subjects.ledger(grant.booking.node, grant.booking.allocation)
    revoke = Revoke(revision=2, incarnation=grant.incarnation, booking=grant.booking, cause="pod gone")
    return bench.land_all(bench.observe(address, revoke))


def read_back(bench: Bench, write: Write) -> list[Write]:
    """A word that this process has written is read by it; what it writes then."""
    if not isinstance(write.message, Pending):
        return []
    address = subjects.waiting(write.message.request)
    return bench.land_all(bench.observe(address, write.message, write.operation))

"""A grant that is not to stand, by what one allocator read last: another may have bound it since."""

import pytest
from factories.scheduling.allocator import FOLDER, INCARNATION, Bench, asked, bound_of, claim, messages, only
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write, WriteRefused
from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.reasons import Refusal, RefusalReason

P1, BINDING = RequestId("p1"), subjects.binding(RequestId("p1"))
OTHER = AllocationId("p1_r9_1")
TOO_MUCH = claim(profile=None, gpus=9)
WRONG = Refusal(reason=RefusalReason.UNKNOWN_PROFILE, message="no such profile")


def _other_grant(grant: msg.Grant, **booked: int) -> msg.Grant:
    booking = replace(grant.booking, allocation=OTHER, request=P1, owner="p1", name="p1", **booked)
    return replace(grant, booking=booking)


def _waived_by_another(bench: Bench, other: msg.Grant) -> None:
    """It is read to be granted, and to be waived since."""
    bench.reads(other)
    cause, life = "its node does not answer", INCARNATION
    waived = msg.Waived(request=P1, request_revision=2, allocations=(OTHER,), cause=cause, incarnation=life, alone=True)
    bench.observe(BINDING, waived)


@pytest.fixture(params=["bound elsewhere", "refused", "rejected", "refused before a wipe, and rejected"])
def late(request: pytest.FixtureRequest, bench: Bench) -> tuple[msg.Grant, list[Write]]:
    """The grant of an allocator that reads late, after an answer without it; and what is written then."""
    grant = _other_grant(bench.granted("template"))
    if "bound" in request.param:
        bench.bound("p1")
    if "refused" in request.param:  # by its configuration; the other allocator has another one
        bench.asks(asked("p1", TOO_MUCH))
    if "rejected" in request.param:
        rejected = msg.RequestRejected(revision=1, source=FOLDER, origin="p1.yaml", name="p1", refusal=WRONG)
        bench.observe(subjects.request(P1), rejected)
    return grant, [each for each in bench.reads(grant) if isinstance(each, Write)]


def test_a_grant_is_waived_under_the_guard_of_its_binding_before_it_is_revoked(bench: Bench, late) -> None:
    _, written = late
    waiver, revoke = bench.land_all(written)
    assert waiver.subject == BINDING.subject
    assert isinstance(revoke.message, msg.Revoke)
    assert revoke.message.booking.allocation == OTHER
    waived = waiver.message.allocations if isinstance(waiver.message, msg.Waived) else waiver.message.waives
    assert waived == (OTHER,)


def test_a_slice_that_another_has_bound_is_not_revoked_by_one_that_reads_late(bench: Bench, late) -> None:
    """What it read was waived or edited since: the pod runs on the slice."""
    grant, (waiver,) = late
    decided = bench.handle(WriteRefused(waiver.operation, next(bench.sequence) + 1))
    decided += bench.observe(BINDING, bound_of(grant))
    assert OTHER not in {each.booking.allocation for each in only(msg.Revoke, bench.words(decided))}


def test_a_binding_waives_what_else_its_request_was_granted(bench: Bench) -> None:
    """One message less, and no allocator has to find out."""
    grant = bench.granted("p1")
    bench.reads(_other_grant(grant))
    bound, revoke = bench.land_all(bench.ready(grant))
    assert bound.message.waives == (OTHER,)
    assert revoke.message.booking.allocation == OTHER


def test_a_waived_grant_is_not_bound_when_the_bound_slice_is_declined(bench: Bench) -> None:
    """Its Revoke may be under way: a pod would be started on a slice that goes."""
    grant = bench.bound("p1")
    other = _other_grant(grant)
    (waiver,) = (each for each in bench.reads(other) if isinstance(each, Write))
    bench.land(waiver)  # its Revoke is written, and not answered
    bench.ready(other)
    declined = replace(asked("p1"), revision=2, declined=grant.booking.allocation)
    (waived,) = messages(bench.request(declined))
    assert set(waived.allocations) == {grant.booking.allocation, OTHER}


def test_a_refusal_repeats_what_is_waived_and_still_granted(bench: Bench) -> None:
    """It answers the revision that was read. Who knows the edit, and not the waiver that this replaces, would bind the
    slice while it is being revoked."""
    _waived_by_another(bench, _other_grant(bench.granted("template"), request_revision=2))
    (refused,) = only(msg.Refused, bench.asks(asked("p1", TOO_MUCH)))
    assert refused.waives == (OTHER,)


def test_a_binding_repeats_what_is_waived_and_being_revoked(bench: Bench) -> None:
    """Who reads late finds its Revoke replaced by Closed, and this before that: it would bind the slice when this one
    is declined."""
    grant = bench.granted("p1")
    _waived_by_another(bench, other := _other_grant(grant))
    bench.reads(msg.Revoke(revision=2, incarnation=INCARNATION, booking=other.booking, cause="waived"))
    (bound,) = only(msg.Bound, bench.words(bench.ready(grant)))
    assert bound.waives == (OTHER,)


def test_a_waived_grant_is_not_bound_when_the_bound_slice_is_gone(bench: Bench) -> None:
    """It was found on its node after a wipe, and would have been bound instead, had nothing waived it."""
    grant = bench.bound("p1")
    other = replace(_other_grant(grant), adopted=True)
    bench.ready(other)
    (waiver,) = (each for each in bench.reads(other) if isinstance(each, Write))
    bench.land(waiver)  # its Revoke is written, and not answered
    booking = grant.booking
    closed = msg.Closed(revision=1, allocation=booking.allocation, request=P1, node=booking.node, cause="lost")
    said = bench.observe(subjects.ledger(booking.node, booking.allocation), closed)
    assert OTHER not in {each.allocation for each in only(msg.Bound, bench.words(said))}

"""A grant that is not to stand, by what one allocator read last: another may have bound it since."""

from collections.abc import Callable

import msgspec
import pytest
from factories.scheduling.allocator import FOLDER, Bench, asked, claim, ready_of

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write, WriteRefused
from sluice.contracts.ids import RequestId
from sluice.contracts.reasons import Refusal, RefusalReason

P1, BINDING = RequestId("p1"), subjects.binding(RequestId("p1"))
WRONG = Refusal(reason=RefusalReason.UNKNOWN_PROFILE, message="no such profile")


def _bound_elsewhere(bench: Bench) -> None:
    bench.bound("p1")


def _refused(bench: Bench) -> None:
    """By its configuration; the other allocator has another one."""
    bench.land_all(bench.request(asked("p1", claim(profile=None, gpus=9))))


def _rejected(bench: Bench) -> None:
    bench.observe(
        subjects.request(P1),
        msg.RequestRejected(revision=1, source=FOLDER, origin="p1.yaml", name="p1", refusal=WRONG),
    )


def _bound_by_another(grant: msg.Grant) -> msg.Bound:
    booking, ready = grant.booking, ready_of(grant)
    return msg.Bound(
        request=P1,
        request_revision=1,
        allocation=booking.allocation,
        node=booking.node,
        revision=1,
        ticket=ready.ticket,
        containers=ready.containers,
        source=FOLDER,
    )


def _granted_by_another(bench: Bench, answered: Callable[[Bench], None]) -> tuple[msg.Grant, list[Write]]:
    """The grant of an allocator that reads late, after an answer without it; and what is written then."""
    template = bench.granted("template")
    answered(bench)
    booking = msgspec.structs.replace(template.booking, allocation="p1_r9_1", request=P1, owner="p1", name="p1")
    grant = msgspec.structs.replace(template, booking=booking)
    return grant, [each for each in bench.reads(grant) if isinstance(each, Write)]


ANSWERS = pytest.mark.parametrize("answered", [_bound_elsewhere, _refused, _rejected])


@ANSWERS
def test_a_grant_is_waived_under_the_guard_of_its_binding_before_it_is_revoked(
    bench: Bench, answered: Callable[[Bench], None]
) -> None:
    grant, written = _granted_by_another(bench, answered)
    waiver, revoke = bench.land_all(written)
    assert waiver.subject == BINDING.subject
    assert isinstance(revoke.message, msg.Revoke)
    assert revoke.message.booking.allocation == grant.booking.allocation
    waived = waiver.message.allocations if isinstance(waiver.message, msg.Waived) else waiver.message.waives
    assert waived == (grant.booking.allocation,)


@ANSWERS
def test_a_slice_that_another_has_bound_is_not_revoked_by_one_that_reads_late(
    bench: Bench, answered: Callable[[Bench], None]
) -> None:
    """What it read was waived or edited since: the pod runs on the slice."""
    grant, (waiver,) = _granted_by_another(bench, answered)
    bound = _bound_by_another(grant)
    decided = bench.handle(WriteRefused(waiver.operation, next(bench.sequence) + 1))
    decided += bench.observe(BINDING, bound)
    about_it = [each for each in bench.words(decided) if isinstance(each, msg.Revoke)]
    assert grant.booking.allocation not in {each.booking.allocation for each in about_it}


def test_a_binding_waives_what_else_its_request_was_granted(bench: Bench) -> None:
    """One message less, and no allocator has to find out."""
    grant = bench.granted("p1")
    booking = msgspec.structs.replace(grant.booking, allocation="p1_r9_1")
    bench.reads(msgspec.structs.replace(grant, booking=booking))
    bound, revoke = bench.land_all(bench.ready(grant))
    assert bound.message.waives == ("p1_r9_1",)
    assert revoke.message.booking.allocation == "p1_r9_1"


def test_a_waived_grant_is_not_bound_when_the_bound_slice_is_declined(bench: Bench) -> None:
    """Its Revoke may be under way: a pod would be started on a slice that goes."""
    grant = bench.bound("p1")
    booking = msgspec.structs.replace(grant.booking, allocation="p1_r9_1")
    other = msgspec.structs.replace(grant, booking=booking)
    (waiver,) = (each for each in bench.reads(other) if isinstance(each, Write))
    bench.land(waiver)  # its Revoke is written, and not answered
    bench.ready(other)
    declined = msgspec.structs.replace(asked("p1"), revision=2, declined=grant.booking.allocation)
    (waived,) = (each for each in bench.request(declined) if isinstance(each, Write))
    assert isinstance(waived.message, msg.Waived)
    assert set(waived.message.allocations) == {grant.booking.allocation, "p1_r9_1"}

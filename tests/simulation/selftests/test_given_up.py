"""What a process has given up may no longer land; what it only did not choose may."""

from factories.words import booking_of, write_of
from simulation.judges.given_up import GivenUp

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream, Write
from sluice.contracts.ids import NodeName, OperationId, RequestId, RunId
from sluice.contracts.messages import Grant, Released

NODE, REQUEST, RUN = NodeName("node-0"), RequestId("r"), RunId("allocator-b")


def ordered(allocation: str, revision: int = 1) -> Write:
    booking = booking_of(allocation, NODE, request=REQUEST, owner="pod", name="pod", namespace="lab")
    address = subjects.ledger(NODE, booking.allocation)
    grant = Grant(revision=revision, incarnation="1", booking=booking)
    return write_of(address, grant, None, f"{allocation}-{revision}", request=REQUEST)


def test_an_order_that_lands_after_another_was_chosen_is_found() -> None:
    """A slice without a request: its place would be booked until an operator notices."""
    judge, first, second = GivenUp(), ordered("a"), ordered("b")
    judge.sent(RUN, first, "1")
    judge.sent(RUN, second, "1")
    assert "ordered b instead" in judge.landed(first, 0.0)
    assert judge.landed(second, 0.0) == ""


def test_a_change_of_what_another_has_granted_gives_nothing_up() -> None:
    """A run of hours would end at a surplus that is revoked like any other (seed 2000009285)."""
    judge, own, change = GivenUp(), ordered("a"), ordered("anothers", revision=2)
    judge.sent(RUN, own, "1")
    judge.sent(RUN, change, "1")
    assert judge.landed(change, 0.0) == ""
    assert judge.landed(own, 0.0) == ""


def test_a_request_is_granted_nothing_while_it_counts_as_gone() -> None:
    """A slice without a request; but when that message has expired and its pod remains, it asks like any other."""
    judge, address, early, late = GivenUp(), subjects.binding(REQUEST), ordered("a"), ordered("b")
    word = Released(request=REQUEST, cause="slice lost")
    said = Write(OperationId("r"), 1, Stream.BOOK, address.subject, address.guard, 0, word, REQUEST, ttl_s=20)
    judge.sent(RUN, said, "1")
    assert judge.landed(said, 5.0) == ""
    judge.sent(RUN, early, "1")
    assert "r is released" in judge.landed(early, 24.0)
    judge.sent(RUN, late, "1")
    assert judge.landed(late, 25.5) == ""

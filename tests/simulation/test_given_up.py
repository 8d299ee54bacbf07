"""What a process has given up must not land; what it only did not choose may."""

from simulation.given_up import GivenUp

from sluice.contracts import subjects
from sluice.contracts.exchange import Stream, Write
from sluice.contracts.ids import AllocationId, NodeName, OperationId, RequestId, RunId, SourceName
from sluice.contracts.messages import Booking, Grant

NODE, REQUEST, RUN = NodeName("node-0"), RequestId("r"), RunId("allocator-b")


def ordered(allocation: str, revision: int = 1) -> Write:
    """A grant on its way."""
    booking = Booking(
        allocation=AllocationId(allocation),
        request=REQUEST,
        request_revision=1,
        source=SourceName("folder"),
        owner="pod",
        namespace="lab",
        name="pod",
        node=NODE,
        devices=(),
    )
    address = subjects.ledger(NODE, booking.allocation)
    return Write(
        operation=OperationId(f"{allocation}-{revision}"),
        attempt=1,
        stream=Stream.BOOK,
        subject=address.subject,
        guard=address.guard,
        expected=0,
        message=Grant(revision=revision, incarnation="1", booking=booking),
        request=REQUEST,
    )


def test_an_order_that_lands_after_another_was_chosen_is_found() -> None:
    """A slice for nobody: its place would be booked until somebody sees that it is one too many."""
    judge, first, second = GivenUp(), ordered("a"), ordered("b")
    judge.sent(RUN, first, "1")
    judge.sent(RUN, second, "1")
    assert "ordered b instead" in judge.landed(first)
    assert judge.landed(second) == ""


def test_a_change_of_what_another_has_granted_gives_nothing_up() -> None:
    """A run of hours would end at a surplus that is revoked like any other (seed 2000009285)."""
    judge, own, change = GivenUp(), ordered("a"), ordered("anothers", revision=2)
    judge.sent(RUN, own, "1")
    judge.sent(RUN, change, "1")
    assert judge.landed(change) == ""
    assert judge.landed(own) == ""

"""Where the first word of a slice will be, so that it is looked at while the slice is made."""

import pytest
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, ReadLast, Stream
from sluice.contracts.ids import AllocationId, NodeName, OperationId
from sluice.contracts.messages import Booking, DeviceGrant, Grant, Revoke
from sluice_node_agent.shell.runner.agent_runner import first_status_subject

NODE, ALLOCATION = NodeName("gpu-1.example"), AllocationId("r1_run_1")
BOOKING = Booking(
    allocation=ALLOCATION,
    request="r1",
    request_revision=1,
    source="folder",
    owner="r1",
    namespace="default",
    name="p",
    node=NODE,
    devices=(DeviceGrant(container="main", gpu="GPU-1", profile="1g.5gb", start=0, size=1),),
)
REVOKE = Revoke(booking=BOOKING, incarnation="1", revision=2, cause="pod gone")
GRANT = Grant(booking=BOOKING, incarnation="1", revision=1)


def _entry(message):
    return Entry(subjects.ledger(NODE, ALLOCATION).subject, 7, OperationId("o1"), message)


def test_a_new_slice_is_spoken_of_where_its_agent_will_write():
    """The agent would look at another subject, and ask for its own when the pod waits for it."""
    wanted = ReadLast(Stream.STATE, subjects.slice_(NODE, ALLOCATION).subject)
    assert first_status_subject(_entry(GRANT)) == wanted


@pytest.mark.parametrize("message", [None, replace(GRANT, revision=2), replace(GRANT, adopted=True), REVOKE])
def test_what_was_spoken_of_before_is_not_looked_at_early(message):
    """An agent that has said a word knows more than the broker could tell it from before that."""
    assert first_status_subject(_entry(message)) is None

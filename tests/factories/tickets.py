"""Orders for tickets of slices without devices, for tests of ticket paths."""

from sluice.contracts.ids import AllocationId, NodeName, RequestId, SourceName
from sluice.contracts.messages import Booking, ContainerDevices
from sluice_node_agent.core.instructions import MakeTicket
from sluice_node_agent.core.journal_records import TicketRecord


def make_ticket(
    ticket: str,
    *,
    token: int = 1,
    allocation: str = "a1",
    owner: str = "pod-1",
    boot_id: str = "b",
    containers: tuple[ContainerDevices, ...] = (),
) -> MakeTicket:
    """An order for a ticket of this name."""
    booking = Booking(
        allocation=AllocationId(allocation),
        request=RequestId("req"),
        request_revision=1,
        source=SourceName("folder"),
        owner=owner,
        namespace="default",
        name="pod",
        node=NodeName("n1.example"),
        devices=(),
    )
    return MakeTicket(token, ticket, TicketRecord(booking=booking, revision=1, boot_id=boot_id, devices=()), containers)

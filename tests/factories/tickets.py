"""Orders for tickets of slices without devices, for tests of ticket paths."""

from factories.words import booking_of

from sluice.contracts.messages import ContainerDevices
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
    booking = booking_of(allocation, "n1.example", request="req", owner=owner, name="pod")
    return MakeTicket(token, ticket, TicketRecord(booking=booking, revision=1, boot_id=boot_id, devices=()), containers)

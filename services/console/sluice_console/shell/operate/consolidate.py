"""`sluice consolidate`: asks the allocator which nodes could be empty."""

from sluice.contracts.pb.allocator_pb2 import ConsolidateRequest
from sluice_console.core.operate.consolidation import document_of, lines_of
from sluice_console.shell.live.allocator_client import allocator
from sluice_console.shell.live.connect import connected
from sluice_console.shell.output.answer import Answer
from sluice_console.shell.output.printer import write_lines

WITHIN_S = 15.0
"""For a search of some dozen nodes by a busy allocator."""


async def consolidate(url: str) -> Answer:
    """The nodes that would be empty. Raises BusError, NotAskableError."""
    async with connected(url) as bus, allocator(bus) as asked:
        answer = await asked.Consolidate(ConsolidateRequest(), timeout=WITHIN_S)
    return Answer((document_of(answer),), lambda document: write_lines(lines_of(document)))

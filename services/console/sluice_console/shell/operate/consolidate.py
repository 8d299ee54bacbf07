"""`sluice consolidate`: asks the allocator which nodes could be empty."""

import sys

from sluice.contracts.pb.allocator_pb2 import ConsolidateRequest
from sluice_console.core.operate.consolidation import document_of, lines_of
from sluice_console.core.output.sanitize import sanitize
from sluice_console.shell.live.allocator_client import NotAskableError, allocator
from sluice_console.shell.live.connect import connected
from sluice_console.shell.output.formats import OutputFormat, is_for_programs, print_document

EXIT_FAILED = 1
WITHIN_S = 15.0
"""For a search of some dozen nodes by a busy allocator."""


async def consolidate(url: str, form: OutputFormat) -> int:
    """Print the nodes that would be empty. Returns the exit code. Raises BusError."""
    try:
        async with connected(url) as bus, allocator(bus) as asked:
            answer = await asked.Consolidate(ConsolidateRequest(), timeout=WITHIN_S)
    except NotAskableError as error:
        sys.stderr.write(f"sluice consolidate: {sanitize(str(error))}\n")
        return EXIT_FAILED
    document = document_of(answer)
    if is_for_programs(form):
        print_document(document, form)
    else:
        sys.stdout.write("".join(f"{sanitize(line)}\n" for line in lines_of(document)))
    return 0

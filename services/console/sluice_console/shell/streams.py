"""`sluice streams ensure`: needs the administrator's rights on the server, and nothing else of Sluice."""

import sys

from sluice_console.shell.connect import connected


async def ensure(url: str) -> int:
    """Declare the streams where they are missing. Raises BusError when one exists with other settings."""
    async with connected(url) as bus:
        await bus.ensure_streams()
    sys.stdout.write("the streams BOOK, STATE and HISTORY are there\n")
    return 0

"""`sluice web`: serves the page of a running system until Ctrl-C. Read-only."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Collection, Iterator

from sluice_console.core.web.board import Board
from sluice_console.shell.live.connect import StoredTimes, settings_of_console
from sluice_console.shell.web.app import make_app
from sluice_console.shell.web.feed import Feed
from sluice_console.shell.web.hub import Hub
from sluice_console.shell.web.listen_address import listen, name_of_host, url_of
from sluice_console.shell.web.reports import Reports
from sluice_console.shell.web.server import serving
from sluice_console.shell.web.stories import Stories
from sluice_console.shell.web.usage import Usages


async def web(url: str, address: str, hosts: Collection[str]) -> int:
    """Serve the page at `address` from the broker at `url`, also while that is away; end at SIGINT or SIGTERM.

    Raises NotServedError, and BusError if waiting would not help."""
    trace_viewer = settings_of_console().trace_viewer
    names = frozenset(map(name_of_host, hosts))
    taken = listen(address)
    times = StoredTimes()
    board = Board(stored_at=times.at)
    hub = Hub(board)
    feed = Feed(board, hub, times)
    app = make_app(board, hub, Stories(url), Usages(), Reports(url), hosts=names, trace_viewer=trace_viewer)
    stop = asyncio.Event()
    with _on_signal(stop):
        async with serving(app, hub, taken):
            with contextlib.suppress(OSError):  # its reader has gone, or its disk is full
                sys.stdout.write(f"the page is at {url_of(*taken.getsockname()[:2])} (Ctrl-C stops it)\n")
                sys.stdout.flush()
            feeding = asyncio.ensure_future(feed.run(url))
            stopping = asyncio.ensure_future(stop.wait())
            try:
                await asyncio.wait((feeding, stopping), return_when=asyncio.FIRST_COMPLETED)
                if feeding.done():
                    await feeding
            finally:
                for task in (feeding, stopping):
                    task.cancel()
                await asyncio.gather(feeding, stopping, return_exceptions=True)
    return 0


@contextlib.contextmanager
def _on_signal(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)

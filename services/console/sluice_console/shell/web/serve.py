"""`sluice web`: serves the page of a running system until Ctrl-C. Read-only."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Collection, Iterator

from sluice_console.core.web.board import Board
from sluice_console.shell.errors import CommandError
from sluice_console.shell.live.connect import StoredTimes
from sluice_console.shell.web.app import make_app
from sluice_console.shell.web.feed import Feed
from sluice_console.shell.web.hub import Hub
from sluice_console.shell.web.listen_address import listen, name_of_host, url_of
from sluice_console.shell.web.reports import Reports
from sluice_console.shell.web.server import serving
from sluice_console.shell.web.stories import Stories
from sluice_console.shell.web.usage import Usages


class TraceUrlError(CommandError):
    """The template of trace addresses is none. One sentence."""


async def web(url: str, address: str, hosts: Collection[str], trace_url: str) -> int:
    """
    Serve the page at `address` from the broker at `url`, also while that is away; end at SIGINT or SIGTERM.

    Raises NotServedError, TraceUrlError, and BusError if waiting would not help.
    """
    if trace_url and not (trace_url.startswith(("http://", "https://")) and "{trace_id}" in trace_url):
        example = "https://jaeger.example/trace/{trace_id}"
        raise TraceUrlError(f"--trace-url {trace_url}: must be an http(s) address with {{trace_id}}, such as {example}")
    names = frozenset(map(name_of_host, hosts))
    taken = listen(address)
    times = StoredTimes()
    board = Board(stored_at=times.at)
    hub = Hub(board)
    feed = Feed(board, hub, times)
    app = make_app(board, hub, Stories(url), Usages(), Reports(url), hosts=names, trace_url=trace_url)
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

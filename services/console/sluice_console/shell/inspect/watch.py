"""`--watch`: prints a view again when it changes. On a terminal full-screen, elsewhere block by block."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NoReturn

from sluice.runtime.bus import Bus
from sluice_console.core.documents import Document
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.shell.inspect.nodes import IdleSince
from sluice_console.shell.inspect.top import Since, top_on
from sluice_console.shell.inspect.views import FleetView
from sluice_console.shell.live.connect import StoredTimes, connected
from sluice_console.shell.live.live_fleet import READ_TIMEOUT_S, LiveFleet, following
from sluice_console.shell.output.formats import OutputFormat, as_text, is_for_programs
from sluice_console.shell.output.printer import console, say
from sluice_console.shell.output.terminal import Terminal

PAUSE_S = 0.5
"""Minimum between two blocks: a busy fleet is shown twice a second."""
ASK_EVERY_S = 10.0
"""Seconds between two questions to agents: usage is not on the bus, and they measure every 30 s."""
Ask = Callable[[FleetState], Awaitable[tuple[dict[str, str], list[str]]]]
"""Usage by request, and agents that could not be asked."""


async def watch(url: str, looked: FleetView, form: OutputFormat) -> int:
    """Show it until interrupted. Raises BusError, NotAnsweringError."""
    times = StoredTimes()
    async with connected(url, times=times) as bus:
        if form == "text" and sys.stdin.isatty() and sys.stdout.isatty():
            await top_on(bus, Terminal(sys.stdin.fileno(), sys.stdout.fileno()), IdleSince(url).of, looked)
        else:
            await watch_on(bus, looked, form, IdleSince(url).of, _asking(looked, form), times=times)
    return 0


def _asking(looked: FleetView, form: OutputFormat) -> Ask | None:
    if looked.view != "pods" or form != "wide":
        return None
    from sluice_console.shell.inspect.usage import use_by_request  # noqa: PLC0415 - of gRPC only this needs anything

    return use_by_request


async def watch_on(
    bus: Bus,
    looked: FleetView,
    form: OutputFormat,
    since: Since,
    ask: Ask | None = None,
    *,
    times: StoredTimes | None = None,
) -> NoReturn:
    """Print a bus, block by block; with `ask` also when usage changes."""
    changed = asyncio.Event()
    shown: tuple[Document, dict[str, str] | None] | None = None
    async with following(bus, lambda _subject, _message: changed.set()) as live:
        await live.until(
            lambda fleet_state: fleet_state, within_s=READ_TIMEOUT_S, what="the bus to show its last values"
        )
        if times is not None:
            live.fleet_state.stored_at = times.at
        async with _using(live, ask, changed) as use:
            while True:
                changed.clear()
                idle = await since(live.fleet_state) if looked.view == "nodes" else {}
                now = (looked.document(live.fleet_state, idle), use())
                if now != shown:
                    _show(looked, now[0], form, live.fleet_state, use=now[1], first=shown is None)
                    shown = now
                await asyncio.sleep(PAUSE_S)
                await changed.wait()


@dataclass(slots=True)
class _Use:
    """The agents' last answers."""

    live: LiveFleet
    ask: Ask
    changed: asyncio.Event
    now: dict[str, str] = field(default_factory=dict)
    _unasked: list[str] = field(default_factory=list)

    async def look(self) -> None:
        """Ask once; print agents that cannot be asked if they changed."""
        now, unasked = await self.ask(self.live.fleet_state)
        if unasked != self._unasked:
            say(unasked)
            self._unasked = unasked
        if now != self.now:
            self.now = now
            self.changed.set()

    async def keep(self) -> NoReturn:
        """Keep asking."""
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            await self.look()


@asynccontextmanager
async def _using(
    live: LiveFleet, ask: Ask | None, changed: asyncio.Event
) -> AsyncIterator[Callable[[], dict[str, str] | None]]:
    """Usage, kept current in the background: silent agents delay nothing."""
    if ask is None:
        yield lambda: None
        return
    use = _Use(live, ask, changed)
    await use.look()
    keeping = asyncio.ensure_future(use.keep())
    keeping.add_done_callback(lambda _: changed.set())

    def last() -> dict[str, str]:
        if keeping.done():
            keeping.result()  # our own error ends this, and is reported
        return use.now

    try:
        yield last
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


def _show(
    looked: FleetView,
    document: Document,
    form: OutputFormat,
    fleet_state: FleetState,
    *,
    use: dict[str, str] | None,
    first: bool,
) -> None:
    if is_for_programs(form):
        sys.stdout.write(as_text(document, form, one_line=True))
    else:
        out = console()
        if not first:
            out.print()
        looked.show(out, document, fleet_state, wide=form == "wide", use=use)
    sys.stdout.flush()

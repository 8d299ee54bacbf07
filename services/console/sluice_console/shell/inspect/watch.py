"""`--watch`: prints a view again when it changes. On a terminal full-screen, elsewhere block by block."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from sluice.runtime.bus import Bus
from sluice_console.core.documents import Document
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.usage import UsagesDocument, silent_lines, use_by_request
from sluice_console.shell.inspect.look_up import PastRequests, asking, past_requests
from sluice_console.shell.inspect.nodes import IdleSince
from sluice_console.shell.inspect.top import ASK_EVERY_S, Beside, Since, top_on
from sluice_console.shell.inspect.views import UNASKED, FleetView
from sluice_console.shell.live.connect import StoredTimes, connected
from sluice_console.shell.live.live_fleet import READ_TIMEOUT_S, LiveFleet, following
from sluice_console.shell.output.formats import OutputFormat, as_text, is_for_programs
from sluice_console.shell.output.printer import console, say
from sluice_console.shell.output.terminal import Terminal

if TYPE_CHECKING:
    from sluice_console.shell.inspect.usage import Ask

PAUSE_S = 0.5
"""Minimum between two blocks: a busy fleet is shown twice a second."""


async def watch(url: str, looked: FleetView, form: OutputFormat) -> int:
    """Show it until interrupted. Raises BusError, NotAnsweringError."""
    times = StoredTimes()
    past = await past_requests(url) if looked.with_ended else {}
    async with connected(url, times=times) as bus:
        if form == "text" and sys.stdin.isatty() and sys.stdout.isatty():
            await top_on(
                bus, Terminal(sys.stdin.fileno(), sys.stdout.fileno()), Beside.of(url, bus, times, past), looked
            )
        else:
            await watch_on(bus, looked, form, IdleSince(url).of, asking(looked, form), times=times, past=past)
    return 0


async def watch_on(
    bus: Bus,
    looked: FleetView,
    form: OutputFormat,
    since: Since,
    ask: "Ask | None" = None,
    *,
    times: StoredTimes | None = None,
    past: PastRequests | None = None,
) -> NoReturn:
    """Print a bus, block by block; with `ask` also when usage changes."""
    changed = asyncio.Event()
    shown: tuple[Document, dict[str, str]] | None = None
    async with following(bus, lambda _subject, _message: changed.set()) as live:
        await live.until(
            lambda fleet_state: fleet_state, within_s=READ_TIMEOUT_S, what="the bus to show its last values"
        )
        if times is not None:
            live.fleet_state.stored_at = times.at
        live.fleet_state.past |= past or {}
        async with _using(live, ask, changed) as use:
            while True:
                changed.clear()
                idle = await since(live.fleet_state) if looked.view == "nodes" else {}
                usages = use()
                document = looked.document(live.fleet_state, idle, usages or UNASKED)
                now = (document, use_by_request(usages) if looked.view == "pods" and usages is not None else {})
                if now != shown:
                    _show(looked, document, form, live.fleet_state, usages=usages, first=shown is None)
                    shown = now
                await asyncio.sleep(PAUSE_S)
                await changed.wait()


@dataclass(slots=True)
class _Use:
    """The agents' last answers."""

    live: LiveFleet
    ask: "Ask"
    changed: asyncio.Event
    now: UsagesDocument = UNASKED
    _silent: list[str] = field(default_factory=list)

    async def look(self) -> None:
        """Ask once; print agents that cannot be asked if they changed."""
        now = await self.ask(self.live.fleet_state)
        silent = silent_lines(now)
        if silent != self._silent:
            say(silent)
            self._silent = silent
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
    live: LiveFleet, ask: "Ask | None", changed: asyncio.Event
) -> AsyncIterator[Callable[[], UsagesDocument | None]]:
    """Usage, kept current in the background: silent agents delay nothing."""
    if ask is None:
        yield lambda: None
        return
    use = _Use(live, ask, changed)
    await use.look()
    keeping = asyncio.ensure_future(use.keep())
    keeping.add_done_callback(lambda _: changed.set())

    def last() -> UsagesDocument:
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
    usages: UsagesDocument | None,
    first: bool,
) -> None:
    if is_for_programs(form):
        sys.stdout.write(as_text(document, form, one_line=True))
    else:
        out = console()
        if not first:
            out.print()
        looked.show(out, document, fleet_state, wide=form == "wide", usages=usages)
    sys.stdout.flush()

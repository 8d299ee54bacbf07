"""`--watch`: prints a view again when it changes. On a terminal full-screen, elsewhere block by block."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from sluice.runtime.bus import Bus
from sluice_console.core.fleet.usage import UsagesDocument, silent_lines
from sluice_console.core.history.sentences import HistoryMessage
from sluice_console.shell.inspect.look_up import PastRequests, StoryTeller, asking, past_requests, view_answer
from sluice_console.shell.inspect.nodes import IdleSince
from sluice_console.shell.inspect.top import ASK_EVERY_S, LOOK_AGAIN_S, Beside, Since, top_on
from sluice_console.shell.inspect.views import UNASKED, FleetView
from sluice_console.shell.live.connect import StoredTimes, connected
from sluice_console.shell.live.history import follow_history, readable
from sluice_console.shell.live.live_fleet import LiveFleet, caught_up, is_current
from sluice_console.shell.output.answer import Answer, repeated
from sluice_console.shell.output.formats import OutputFormat
from sluice_console.shell.output.printer import say
from sluice_console.shell.output.terminal import Terminal

if TYPE_CHECKING:
    from sluice_console.shell.inspect.usage import Ask


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
    async with caught_up(bus, changed) as live, _kept(_tell_when_lost(bus), changed):
        if times is not None:
            live.fleet_state.stored_at = times.at
        live.fleet_state.past |= past or {}
        async with _using(live, ask, changed) as use:

            async def now() -> Answer:
                idle = await since(live.fleet_state) if looked.view == "nodes" else {}
                return view_answer(looked, live.fleet_state, idle, use(), form)

            await repeated(now, form, changed)


async def watch_story(url: str, wanted: str, tell: StoryTeller, form: OutputFormat) -> NoReturn:
    """Tell of requests again whenever the bus or its history has more of them. Raises BusError, NotFoundError."""
    changed, times = asyncio.Event(), StoredTimes()
    async with (
        connected(url, times=times) as bus,
        caught_up(bus, changed) as live,
        _kept(_tell_when_lost(bus), changed),
        aclosing(follow_history(url)) as history,
    ):
        live.fleet_state.stored_at = times.at
        told: list[HistoryMessage] = []
        while recorded := await anext(history):
            told += readable(recorded)

        async def keep() -> None:
            async for more in history:
                told.extend(readable(more))
                changed.set()

        async with _kept(keep(), changed) as check:

            async def now() -> Answer:
                check()
                return await tell(url, wanted, live.fleet_state, told)

            await repeated(now, form, changed)


async def _tell_when_lost(bus: Bus) -> NoReturn:
    """Print when what was shown is no longer the present state, and when it is again."""
    was_current = True
    while True:
        await asyncio.sleep(LOOK_AGAIN_S)
        if is_current(bus) is not was_current:
            was_current = not was_current
            say(["the broker answers again" if was_current else "the broker is lost: this is the last known state"])


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
    async with _kept(use.keep(), changed) as check:

        def last() -> UsagesDocument:
            check()
            return use.now

        yield last


@asynccontextmanager
async def _kept(work: Coroutine[None, None, None], changed: asyncio.Event) -> AsyncIterator[Callable[[], None]]:
    """Keep something current in the background, and say whether it failed: then `changed` is set, for a look at it."""
    keeping = asyncio.ensure_future(work)
    keeping.add_done_callback(lambda _: changed.set())

    def check() -> None:
        if keeping.done():
            keeping.result()  # our own error ends this, and is reported

    try:
        yield check
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

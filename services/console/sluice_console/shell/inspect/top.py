"""`sluice top`: the fleet in the terminal, redrawn on changes; in a pipe, printed once."""

import asyncio
import contextlib
import io
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace

from rich.console import Console

from sluice.runtime.bus import Bus
from sluice_console.core.fleet.filters import EVERYTHING, FleetFilter
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.gpus import gpus_document
from sluice_console.core.fleet.pods import pods_document
from sluice_console.core.output.top_view import FRAME_LINES, HELP, TopView, heading, keys_of
from sluice_console.shell.inspect.nodes import IdleSince
from sluice_console.shell.inspect.views import FleetView
from sluice_console.shell.live.connect import connected
from sluice_console.shell.live.live_fleet import READ_TIMEOUT_S, UNREAD_MAX_S, LiveFleet, following, read_fleet_state
from sluice_console.shell.output.printer import console
from sluice_console.shell.output.terminal import Terminal

PAUSE_S = 0.25
"""Minimum between two redraws of a busy fleet; keys are answered at once."""
LOOK_AGAIN_S = 2.0
"""Maximum between two redraws, so that a silent broker is noticed."""


async def top(url: str, picked: FleetFilter = EVERYTHING) -> int:
    """Show it until q or a signal. Raises BusError, NotAnsweringError."""
    async with connected(url) as bus:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            _print_once(await read_fleet_state(bus), picked)
            return 0
        await top_on(
            bus, Terminal(sys.stdin.fileno(), sys.stdout.fileno()), IdleSince(url).of, FleetView("gpus", filter=picked)
        )
        return 0


def _print_once(fleet_state: FleetState, picked: FleetFilter) -> None:
    out = console()
    out.print(heading(gpus_document(fleet_state), pods_document(fleet_state), connected=True), markup=False)
    for looked in (FleetView("gpus", filter=picked), FleetView("pods", filter=picked)):
        out.print()
        looked.show(out, looked.document(fleet_state, {}), fleet_state, wide=False)


_MAP = FleetView("gpus")
Since = Callable[[FleetState], Awaitable[dict[str, str]]]
"""Since when nodes are idle."""


async def top_on(bus: Bus, terminal: Terminal, since: Since, first: FleetView = _MAP) -> None:
    """Show a bus on a terminal, starting with one view."""
    changed = asyncio.Event()
    async with following(bus, lambda _subject, _message: changed.set()) as live:
        await live.until(
            lambda fleet_state: fleet_state, within_s=READ_TIMEOUT_S, what="the bus to show its last values"
        )
        await _Shown(bus, live, terminal, since, changed, first, TopView(first.view)).run()


@dataclass(slots=True)
class _Shown:
    """The terminal's content and state."""

    bus: Bus
    live: LiveFleet
    terminal: Terminal
    since: Since
    changed: asyncio.Event
    first: FleetView
    """The first view, with its options."""
    top: TopView
    _typed: str = ""
    _heading: str = ""
    _lines: list[str] = field(default_factory=list)
    _size: tuple[int, int] = (0, 0)
    _idle_since: dict[str, str] = field(default_factory=dict)

    async def run(self) -> None:
        """Run until the end."""
        with _ending(self._end):
            async with self.terminal.taken(self._type, self._draw):
                while not self.top.over:
                    self.changed.clear()
                    if self.top.view == "nodes":
                        self._idle_since = await self.since(self.live.fleet_state)
                    self._look()
                    self._draw()
                    await asyncio.sleep(PAUSE_S)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_AGAIN_S):
                            await self.changed.wait()

    def _end(self) -> None:
        self._press("quit")

    def _type(self, text: str) -> None:
        keys, self._typed = keys_of(self._typed + text)
        for key in keys:
            self._press(key)
        self._draw()

    def _press(self, key: str) -> None:
        view = self.top.view
        self.top = self.top.press(key, lines=len(self._lines), room=self._room())
        if self.top.view != view or key in {"pause", "quit"}:
            self.changed.set()
        if self.top.view != view:
            self._look(even_if_paused=True)

    def _room(self) -> int:
        return max(1, self.terminal.size()[1] - FRAME_LINES)

    def _look(self, *, even_if_paused: bool = False) -> None:
        """Refresh, unless paused."""
        if self.top.paused and not even_if_paused and self._lines:
            return
        fleet_state = self.live.fleet_state
        current = self.bus.connected and self.bus.unread_s <= UNREAD_MAX_S
        self._heading = heading(gpus_document(fleet_state), pods_document(fleet_state), connected=current)
        self._lines = self._rendered(fleet_state)
        self._size = self.terminal.size()

    def _rendered(self, fleet_state: FleetState) -> list[str]:
        looked = replace(self.first, view=self.top.view)
        drawn = io.StringIO()
        columns, _ = self.terminal.size()
        out = Console(
            file=drawn, force_terminal=True, width=columns, highlight=False, soft_wrap=self.top.view == "gpus",
            color_system="auto", legacy_windows=False,
        )  # fmt: skip
        looked.show(out, looked.document(fleet_state, self._idle_since), fleet_state, wide=False)
        return drawn.getvalue().splitlines()

    def _draw(self) -> None:
        if self.terminal.size() != self._size and self._lines:
            self._look(even_if_paused=True)
        paused = "paused  |  " if self.top.paused else ""
        head = f"\x1b[1m{paused}{self._heading}\x1b[0m"
        room = self._room()
        shown = self.top.shown(self._lines, room)
        rest = max(0, len(self._lines) - self.top.first - len(shown))
        more = f"   ({rest} more lines)" if rest else ""
        self.terminal.draw([head, *shown, *([""] * (room - len(shown))), f"\x1b[2m{HELP}{more}\x1b[0m"])


@contextlib.contextmanager
def _ending(end: Callable[[], None]) -> Iterator[None]:
    """End on signals in order, so that the terminal is restored."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)

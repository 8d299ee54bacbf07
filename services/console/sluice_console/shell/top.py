"""`sluice top`: the fleet in the terminal, drawn anew when something changes; in a pipe, once."""

import asyncio
import contextlib
import io
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace

from rich.console import Console

from sluice.runtime.bus import Bus
from sluice_console.core.gpus import gpus_document
from sluice_console.core.pods import pods_document
from sluice_console.core.top import FRAME_LINES, HELP, Top, heading, keys_of
from sluice_console.core.world import World
from sluice_console.shell.connect import connected
from sluice_console.shell.fleet_nodes import IdleSince
from sluice_console.shell.live import READ_TIMEOUT_S, UNREAD_MAX_S, LiveWorld, following, read_world
from sluice_console.shell.present import console
from sluice_console.shell.terminal import Terminal
from sluice_console.shell.views import Looked

PAUSE_S = 0.25
"""At least between two looks at a busy fleet; keys are answered at once."""
LOOK_AGAIN_S = 2.0
"""At most between two, so that a broker that is gone is seen, of which nothing is heard."""


async def top(url: str) -> int:
    """Show it until q or a signal. Raises BusError, NotAnsweringError."""
    async with connected(url) as bus:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            _print_once(await read_world(bus))
            return 0
        await top_on(bus, Terminal(sys.stdin.fileno(), sys.stdout.fileno()), IdleSince(url).of)
        return 0


def _print_once(world: World) -> None:
    out = console()
    out.print(heading(gpus_document(world), pods_document(world), connected=True), markup=False)
    for looked in (Looked("gpus"), Looked("pods")):
        out.print()
        looked.show(out, looked.document(world, {}), world, wide=False)


_MAP = Looked("gpus")
Since = Callable[[World], Awaitable[dict[str, str]]]
"""Since when nodes have nothing on them."""


async def top_on(bus: Bus, terminal: Terminal, since: Since, first: Looked = _MAP) -> None:
    """Show a bus on a terminal, beginning with one view."""
    changed = asyncio.Event()
    async with following(bus, lambda _subject, _message: changed.set()) as live:
        await live.until(lambda world: world, within_s=READ_TIMEOUT_S, what="the bus to show its last values")
        await _Shown(bus, live, terminal, since, changed, first, Top(first.view)).run()


@dataclass(slots=True)
class _Shown:
    """What is on the terminal, and how it came there."""

    bus: Bus
    live: LiveWorld
    terminal: Terminal
    since: Since
    changed: asyncio.Event
    first: Looked
    """What it began with: also what of its view."""
    top: Top
    _typed: str = ""
    _heading: str = ""
    _lines: list[str] = field(default_factory=list)
    _size: tuple[int, int] = (0, 0)
    _idle_since: dict[str, str] = field(default_factory=dict)

    async def run(self) -> None:
        """Until it is over."""
        with _ending(self._end):
            async with self.terminal.taken(self._type, self._draw):
                while not self.top.over:
                    self.changed.clear()
                    if self.top.view == "nodes":
                        self._idle_since = await self.since(self.live.world)
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
        """See how it is now, unless that was asked to wait."""
        if self.top.paused and not even_if_paused and self._lines:
            return
        world = self.live.world
        current = self.bus.connected and self.bus.unread_s <= UNREAD_MAX_S
        self._heading = heading(gpus_document(world), pods_document(world), connected=current)
        self._lines = self._rendered(world)
        self._size = self.terminal.size()

    def _rendered(self, world: World) -> list[str]:
        looked = replace(self.first, view=self.top.view)
        drawn = io.StringIO()
        columns, _ = self.terminal.size()
        out = Console(
            file=drawn, force_terminal=True, width=columns, highlight=False, soft_wrap=self.top.view == "gpus",
            color_system="auto", legacy_windows=False,
        )  # fmt: skip
        looked.show(out, looked.document(world, self._idle_since), world, wide=False)
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
    """Signals end it in order, so that the terminal is given back as it was."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)

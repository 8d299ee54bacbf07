"""`sluice top`: the fleet in the terminal, redrawn on changes; in a pipe, printed once."""

import asyncio
import contextlib
import io
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING

from rich.console import Console

from sluice.runtime.bus import Bus, BusError
from sluice_console.core.fleet.filters import EVERYTHING, FleetFilter
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.gpus import gpus_document
from sluice_console.core.fleet.pods import pods_document
from sluice_console.core.fleet.usage import UsagesDocument, silent_lines
from sluice_console.core.output.node_shares import SPAN_S, NodeShares, recorded_shares, shares_of
from sluice_console.core.output.top_view import FRAME_LINES, HELP, TopView, heading, keys_of
from sluice_console.shell.inspect.look_up import PastRequests, asking
from sluice_console.shell.inspect.nodes import IdleSince
from sluice_console.shell.inspect.views import UNASKED, FleetView
from sluice_console.shell.live.connect import StoredTimes, connected
from sluice_console.shell.live.live_fleet import LiveFleet, caught_up, is_current, read_fleet_state
from sluice_console.shell.output.printer import console, said, say
from sluice_console.shell.output.terminal import Terminal

if TYPE_CHECKING:
    from sluice_console.shell.inspect.usage import Ask

PAUSE_S = 0.25
"""Minimum between two redraws of a busy fleet; keys are answered at once."""
LOOK_AGAIN_S = 2.0
"""Maximum between two redraws, so that a silent broker is noticed."""


ASK_EVERY_S = 10.0
"""Seconds between two questions to agents: usage is not on the bus, and they measure every 30 s."""
RECORDED_WITHIN_S = 3.0

Since = Callable[[FleetState], Awaitable[dict[str, str]]]
"""Since when nodes are idle."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What the bus does not hold."""

    since: Since
    ask: "Ask"
    recorded: Callable[[], Awaitable[Iterable[tuple[str, int, float]]]]
    """The share of each node in the last minutes (`recorded_shares`)."""
    times: StoredTimes = field(default_factory=StoredTimes)
    past: PastRequests = field(default_factory=dict)

    @classmethod
    def of(cls, url: str, bus: Bus, times: StoredTimes, past: PastRequests) -> "Beside":
        """The history, the agents, and the recorder if there is one."""
        from sluice_console.shell.inspect.usage import usages_or_why  # noqa: PLC0415 - imports gRPC

        return cls(IdleSince(url).of, usages_or_why, lambda: _recorded(bus), times, past)


async def _recorded(bus: Bus) -> Iterable[tuple[str, int, float]]:
    from sluice_console.shell.inspect.report import asked_report  # noqa: PLC0415 - imports gRPC
    from sluice_console.shell.live.allocator_client import NotAskableError  # noqa: PLC0415

    try:
        report = await asked_report(bus, since_s=SPAN_S, by="node", points=True, within_s=RECORDED_WITHIN_S)
    except (BusError, NotAskableError):
        return ()
    return recorded_shares(report)


async def top(url: str, picked: FleetFilter = EVERYTHING) -> int:
    """Show it until q or a signal. Raises BusError, NotAnsweringError."""
    first, times = FleetView("gpus", filter=picked), StoredTimes()
    async with connected(url, times=times) as bus:
        if sys.stdin.isatty() and sys.stdout.isatty():
            await top_on(bus, Terminal(sys.stdin.fileno(), sys.stdout.fileno()), Beside.of(url, bus, times, {}), first)
        else:
            await _print_once(replace(await read_fleet_state(bus), stored_at=times.at), first)
        return 0


async def _print_once(fleet_state: FleetState, first: FleetView) -> None:
    ask, out = asking(first, "text"), console()
    usages = await ask(fleet_state) if ask is not None else UNASKED
    out.print(heading(gpus_document(fleet_state), pods_document(fleet_state), connected=True), markup=False)
    for looked in (first, replace(first, view="pods")):
        out.print()
        looked.show(out, looked.document(fleet_state, {}, usages), fleet_state, wide=False)
    say(silent_lines(usages))


_MAP = FleetView("gpus")


async def top_on(bus: Bus, terminal: Terminal, beside: Beside, first: FleetView = _MAP) -> None:
    """Show a bus on a terminal, starting with one view."""
    changed = asyncio.Event()
    async with caught_up(bus, changed) as live:
        live.fleet_state.stored_at = beside.times.at
        live.fleet_state.past |= beside.past
        shown = _Shown(bus, live, terminal, beside, changed, first, TopView(first.view))
        try:
            await shown.run()
        finally:
            await shown.stop_asking()


@dataclass(slots=True)
class _Shown:
    """The terminal's content and state."""

    bus: Bus
    live: LiveFleet
    terminal: Terminal
    beside: Beside
    changed: asyncio.Event
    first: FleetView
    """The first view, with its options."""
    top: TopView
    _typed: str = ""
    _heading: str = ""
    _lines: list[str] = field(default_factory=list)
    _size: tuple[int, int] = (0, 0)
    _idle_since: dict[str, str] = field(default_factory=dict)
    _shares: NodeShares = field(default_factory=NodeShares)
    _usages: UsagesDocument | None = None
    _asked_at: float = -inf
    _questions: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        """Run until the end."""
        self._ask(self._read_recorder())
        with _ending(self._end):
            async with self.terminal.taken(self._type, self._draw):
                while not self.top.over:
                    self.changed.clear()
                    if self.top.view == "nodes":
                        self._idle_since = await self.beside.since(self.live.fleet_state)
                    self._keep_asking()
                    self._look()
                    self._draw()
                    await asyncio.sleep(PAUSE_S)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_AGAIN_S):
                            await self.changed.wait()

    def _keep_asking(self) -> None:
        """Ask agents again if that is shown, and due; nothing waits for the answer."""
        for done in [each for each in self._questions if each.done()]:
            self._questions.remove(done)
            done.result()  # our own error ends this, and is reported
        now = asyncio.get_running_loop().time()
        if (self.top.view == "usage" or self.first.filter.needs_use) and now - self._asked_at >= ASK_EVERY_S:
            self._asked_at = now
            self._ask(self._read_usages())

    def _ask(self, question: Coroutine[None, None, None]) -> None:
        self._questions.add(asyncio.create_task(question))

    async def stop_asking(self) -> None:
        """Leave no question open."""
        for each in self._questions:
            each.cancel()
        await asyncio.gather(*self._questions, return_exceptions=True)

    async def _read_usages(self) -> None:
        self._usages = await self.beside.ask(self.live.fleet_state)
        self.changed.set()

    async def _read_recorder(self) -> None:
        self._shares.add(await self.beside.recorded(), time.time())
        self.changed.set()

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
        fleet_state = self.live.fleet_state
        gpus = gpus_document(fleet_state)
        self._shares.see(time.time(), shares_of(gpus))
        if self.top.paused and not even_if_paused and self._lines:
            return
        self._heading = heading(gpus, pods_document(fleet_state), connected=is_current(self.bus))
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
        document = looked.document(fleet_state, self._idle_since, self._usages or UNASKED)
        if isinstance(document, UsagesDocument) and self._usages is None:
            return ["asking the agents ..."]
        lines = {node: self._shares.line(node, time.time()) for node in fleet_state.inventories()}
        looked.show(out, document, fleet_state, wide=False, lines=lines)
        if isinstance(document, UsagesDocument):
            out.print(said("\n".join(silent_lines(document))))
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

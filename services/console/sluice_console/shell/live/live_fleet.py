"""The last values of the running system: read once, or followed until a condition holds."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from sluice.contracts.bus.events import Observed, ReadingCaughtUp, ReadingStarted, Stream, stream_of
from sluice.contracts.messages import AllocationRequested, AnyMessage, RequestRejected, RequestWithdrawn
from sluice.runtime.bus import Bus, Reading
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.shell.errors import CommandError

STREAMS = (Stream.BOOK, Stream.STATE)
READ_TIMEOUT_S = 15.0
UNREAD_MAX_S = 5.0
"""Reading again takes under a second; longer means that the broker has no readable streams."""

T = TypeVar("T")
Heard = Callable[[str, AnyMessage | None], None]
"""Gets each changed subject with its value, in order; None if it was removed."""


class NotAnsweringError(CommandError):
    """The awaited state did not appear in time. The message names it."""


class LiveFleet:
    """Follows both streams of last values. `fleet_state` is complete once `caught_up` is set.

    Filled by `following`."""

    def __init__(self, heard: Heard | None = None) -> None:
        """Start empty. `heard` gets complete readings only."""
        self.fleet_state = FleetState()
        self._heard = heard
        self._incarnation = ""
        self._fresh: dict[Stream, dict[str, AnyMessage]] = {}
        self._fresh_unread: dict[Stream, dict[str, str]] = {}
        self._complete: set[Stream] = set()
        self._changed = asyncio.Condition()

    @property
    def caught_up(self) -> bool:
        """Whether both streams were read to their ends."""
        return self._complete >= set(STREAMS)

    @property
    def rereads(self) -> bool:
        """Whether a stream is being reread, so that its values may be old."""
        return bool(self._fresh)

    async def apply(self, batch: list[Reading]) -> None:
        """Apply what was read, and wake waiters."""
        for reading in batch:
            self._apply(reading)
        async with self._changed:
            self._changed.notify_all()

    def _apply(self, reading: Reading) -> None:
        match reading:
            case ReadingStarted(stream, incarnation):
                self._fresh[stream], self._fresh_unread[stream] = {}, {}
                if stream is Stream.BOOK:
                    self._incarnation = incarnation
            case Observed(stream, entry):
                values = self._fresh.get(stream, self.fleet_state.values)
                unread = self._fresh_unread.get(stream, self.fleet_state.unread)
                before_it = values.get(entry.subject)
                if entry.message is None:
                    values.pop(entry.subject, None)
                    unread[entry.subject] = entry.why
                else:
                    unread.pop(entry.subject, None)
                    values[entry.subject] = entry.message
                    if isinstance(entry.message, RequestWithdrawn) and isinstance(
                        before_it, AllocationRequested | RequestRejected
                    ):
                        self.fleet_state.past[entry.subject] = before_it
                if self._heard is not None and stream not in self._fresh:
                    self._heard(entry.subject, entry.message)
            case ReadingCaughtUp(stream):
                before = self.fleet_state.values
                others = {s: m for s, m in self.fleet_state.values.items() if stream_of(s.split(".")[1]) is not stream}
                self.fleet_state.values = others | self._fresh.pop(stream, {})
                unread_others = {
                    s: w for s, w in self.fleet_state.unread.items() if stream_of(s.split(".")[1]) is not stream
                }
                self.fleet_state.unread = unread_others | self._fresh_unread.pop(stream, {})
                self.fleet_state.past = {s: m for s, m in self.fleet_state.past.items() if s in self.fleet_state.values}
                self._complete.add(stream)
                if stream is Stream.BOOK:
                    self.fleet_state.incarnation = self._incarnation
                if self._heard is not None:
                    self._tell_difference(self._heard, before)

    def _tell_difference(self, heard: Heard, before: dict[str, AnyMessage]) -> None:
        for subject in before.keys() - self.fleet_state.values.keys():
            heard(subject, None)
        for subject, message in self.fleet_state.values.items():
            if subject not in before or before[subject] != message:
                heard(subject, message)

    async def until(self, condition: Callable[[FleetState], T | None], *, within_s: float, what: str) -> T:
        """The value of `condition` as soon as it is neither None nor False; evaluated after every change.

        Raises NotAnsweringError after `within_s`, naming `what`."""
        try:
            async with asyncio.timeout(within_s), self._changed:
                while True:
                    found = condition(self.fleet_state) if self.caught_up else None
                    if found is not None and found is not False:
                        return found
                    await self._changed.wait()
        except TimeoutError:
            raise NotAnsweringError(f"waited {within_s:g} s for {what}") from None

    async def calm(self, *, quiet_s: float, within_s: float) -> bool:
        """Wait until no message has come for `quiet_s`. False if that did not happen within `within_s`."""
        ends_at = asyncio.get_running_loop().time() + within_s
        while asyncio.get_running_loop().time() < ends_at:
            try:
                async with asyncio.timeout(quiet_s), self._changed:
                    await self._changed.wait()
            except TimeoutError:
                return True
        return False


@asynccontextmanager
async def following(bus: Bus, heard: Heard | None = None) -> AsyncIterator[LiveFleet]:
    """A fleet state kept current during the context. A failing reader ends the context with its error."""
    live = LiveFleet(heard)

    async def follow(stream: Stream) -> None:
        async for batch in bus.read(stream):
            await live.apply(batch)

    try:
        async with asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(follow(stream), name=f"follow {stream}") for stream in STREAMS]
            yield live
            for reader in readers:
                reader.cancel()
    except BaseExceptionGroup as group:
        if len({(type(error), str(error)) for error in group.exceptions}) == 1:  # one error may end both readers
            raise group.exceptions[0] from None
        raise


def is_current(bus: Bus) -> bool:
    """Whether what is read from a bus is its present state."""
    return bus.connected and bus.unread_s <= UNREAD_MAX_S


@asynccontextmanager
async def caught_up(bus: Bus, changed: asyncio.Event) -> AsyncIterator[LiveFleet]:
    """`following` from when all last values are there; `changed` is set whenever one changes."""
    async with following(bus, lambda _subject, _message: changed.set()) as live:
        what = "the bus to show its last values; run `sluice doctor` to find out why it does not"
        await live.until(lambda fleet_state: fleet_state, within_s=READ_TIMEOUT_S, what=what)
        yield live


async def read_fleet_state(bus: Bus) -> FleetState:
    """All last values. Raises NotAnsweringError if the bus does not answer."""
    async with caught_up(bus, asyncio.Event()) as live:
        return live.fleet_state

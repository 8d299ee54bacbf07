"""Wraps the core to count its decisions by reason, and to time each phase of a request. The core knows nothing of it.
Times are of this process's clock, from reading one message to reading the next. Messages read during a replay are not
timed, nor is anything on a standby, so the counts of several allocators add up."""

from collections import OrderedDict
from dataclasses import dataclass

from sluice.contracts import messages as msg
from sluice.contracts.bus.events import Entry, Observed, ReadingCaughtUp, ReadingStarted, Stream, Write
from sluice.contracts.ids import Incarnation
from sluice.runtime.prometheus import metrics
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.events import Event, Instruction
from sluice_allocator.shell.metrics import DECISIONS, PHASE_SECONDS

FOLLOWED_MAX = 100_000  # most requests timed at once; the oldest are dropped beyond that
_PLAIN = "none"
_THERE = {msg.AllocationRequested: "serve", msg.Grant: "place", msg.SliceReady: "make", msg.Bound: "bind"}
_BACK = {msg.RequestWithdrawn: "give_back", msg.Revoke: "revoke", msg.SliceGone: "unmake", msg.Released: "release"}
"""The phases of a request's start and end: per message, the phase that it ends; the first names the whole."""
_STEPS: dict[type, tuple[tuple[str, ...], int]] = {
    word: (tuple(way.values()), number) for way in (_THERE, _BACK) for number, word in enumerate(way)
}


@dataclass(slots=True)
class _RequestPhases:
    step: int
    step_at: float
    began_at: float | None  # none when its first message was not seen


class DecisionCounter:
    """The core, measured."""

    def __init__(self, core: Allocator) -> None:
        self._core = core
        self._reading: set[Stream] = set()
        self._lives: dict[Stream, Incarnation] = {}
        self._followed: OrderedDict[tuple[str, str], _RequestPhases] = OrderedDict()

    def handle(self, event: Event, now: float) -> list[Instruction]:
        match event:
            case Observed() if self._core.ctx.outbox.paused:
                self._followed.clear()  # another allocator decides; its requests are not timed
            case Observed(entry=entry) if self._reading:
                self._catch_up(entry)
            case Observed(entry=entry):
                self._follow(entry, now)
            case ReadingStarted(stream=stream, incarnation=life):
                self._reading.add(stream)
                if self._lives.setdefault(stream, life) != life:
                    self._lives[stream] = life
                    self._followed.clear()  # everything is replayed
            case ReadingCaughtUp(stream=stream):
                self._reading.discard(stream)
        instructions = self._core.handle(event, now)
        for instruction in instructions:
            if isinstance(instruction, Write) and instruction.attempt == 1:
                decided = decision(instruction.message)
                if decided is not None:
                    metrics.count(DECISIONS, *decided)
        return instructions

    def _catch_up(self, entry: Entry) -> None:
        """Note a replayed message: when it was published is unknown."""
        self._leave_the_way(entry)
        way, step = _STEPS.get(type(entry.message), ((), 0))
        key = _request_of(entry), way[0] if way else ""
        known = self._followed.get(key)
        if known is not None and known.step < step:
            del self._followed[key]

    def _leave_the_way(self, entry: Entry) -> None:
        if isinstance(entry.message, msg.Refused | msg.RequestWithdrawn):
            self._followed.pop((_request_of(entry), "serve"), None)

    def _follow(self, entry: Entry, now: float) -> None:
        self._leave_the_way(entry)
        found = _STEPS.get(type(entry.message))
        if found is None:
            return
        way, step = found
        key = _request_of(entry), way[0]
        known = self._followed.get(key)
        if known is not None and known.step >= step:
            return  # the same message again, or an older one
        if known is not None and known.step == step - 1:
            metrics.observe(PHASE_SECONDS, now - known.step_at, way[step])
        began_at = now if step == 0 else known.began_at if known is not None else None
        if step < len(way) - 1:
            self._followed[key] = _RequestPhases(step, now, began_at)
            while len(self._followed) > FOLLOWED_MAX:
                self._followed.popitem(last=False)
            return
        self._followed.pop(key, None)
        if began_at is not None:
            metrics.observe(PHASE_SECONDS, now - began_at, way[0])


def decision(message: object) -> tuple[str, str] | None:
    """The decision and reason in an allocator's message; None for a message that decides nothing about a request."""
    match message:
        case msg.Grant(adopted=True):
            return None
        case msg.Grant(after=after):
            return ("promised" if after else "granted"), _PLAIN
        case msg.Pending(reasons=reasons):
            return "waits", str(reasons[0].reason) if reasons else _PLAIN
        case msg.Refused(refusal=refusal):
            return "refused", str(refusal.reason)
        case msg.Revoke():
            return "revoked", _PLAIN
        case msg.EvictionOrdered():
            return "evicted", _PLAIN
        case _:
            return None


def _request_of(entry: Entry) -> str:
    match entry.message:
        case msg.Grant(booking=booking) | msg.Revoke(booking=booking):
            return str(booking.request)
        case msg.Bound() | msg.Released() | msg.SliceReady() | msg.SliceGone():
            return str(entry.message.request)
        case _:
            return entry.subject.rpartition(".")[2]

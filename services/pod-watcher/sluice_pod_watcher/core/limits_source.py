"""Publish limits and cordons from a file, and withdraw those that it no longer names. Each message carries its source's
name, so a restart knows its own. A missing or invalid file changes nothing. Losing the pauses costs time only. Two
watchers of one file publish the same; with different files (a rollout) each leaves the other's message for a pause that
grows. If two sources name the same namespace or node, the first keeps it until its file drops it."""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from sluice.contracts.bus import events as bus_events
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import BusEvent, BusInstruction, Stream
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import Incarnation, NodeName, RunId, SourceName
from sluice.contracts.messages import BY_HAND, AnyMessage, Cordoned, QuotaSet, QuotaUnset, Uncordoned
from sluice.contracts.outbox import Outbox
from sluice.contracts.quotas.limits_file import read_limits, suspicious_limits
from sluice.contracts.toml_tables import TableError
from sluice_pod_watcher.core.folder.events import WriteLogLine

READS: tuple[tuple[Stream, tuple[str, ...]], ...] = ((Stream.BOOK, ("sluice.quota.>", "sluice.cordon.>")),)
"""What to read: its own messages, and those of others about the same namespaces and nodes."""
WRITES = frozenset({"quota", "cordon"})  # the nouns it writes
PAUSE_FIRST_S = 30.0  # before a rival's message is overwritten: usually its file becomes the same
PAUSE_MAX_S = 3600.0  # two files that stay different cost two messages and warnings an hour each

LimitMessage = QuotaSet | Cordoned


class LimitsRead(msgspec.Struct, frozen=True):
    """The whole text of the file, unchanged for a moment."""

    text: str


class LimitsUnreadable(msgspec.Struct, frozen=True):
    """The file is absent (`missing`) or cannot be read. The limits in force stay."""

    why: str
    missing: bool = False


class LimitsPublished(msgspec.Struct, frozen=True):
    """The file's limits are on the bus, or there is nothing to publish: requests may be published. Emitted once per
    incarnation of the bus: a limit does not revoke earlier grants, so limits go first after a wipe too."""

    incarnation: Incarnation  # the incarnation of BOOK for which this holds


Event = BusEvent | bus_events.Ticked | LimitsRead | LimitsUnreadable
Instruction = BusInstruction | WriteLogLine | LimitsPublished


class _Pause(msgspec.Struct, frozen=True):
    sequence: int
    until: float
    length_s: float


class LimitsSource:
    """Keeps the bus equal to the limits file of one source."""

    def __init__(self, run: RunId, source: SourceName, *, origin: str, closing_ttl_s: int) -> None:
        self._run, self._source, self._origin, self._closing_ttl_s = run, source, origin, closing_ttl_s
        self._outbox = Outbox(run, WRITES)
        self._wanted: Mapping[Address, LimitMessage] | None = None  # as last read; None before the first time
        self._reading = self._outbox.paused = True  # nothing is written meanwhile: which source was first is open
        self._heard: dict[Address, None] = {}  # addresses observed in the present or last reading, and since
        self._pauses: dict[Address, _Pause] = {}  # the latest per address with a rival; cleared with each new file
        self._waiting: dict[Address, None] = {}  # addresses whose pause is not over
        self._others: dict[Address, SourceName] = {}  # addresses that another source's file named first: logged once
        self._told: list[WriteLogLine] = []
        self._looked = False  # whether the file was looked at, even if absent
        self._incarnation: Incarnation | None = None  # the incarnation of BOOK, from the last reading
        self._unsaid: dict[Address, None] | None = {}  # of this incarnation's first file, not on the bus yet

    def handle(self, event: Event, now: float) -> list[Instruction]:
        match event:
            case bus_events.Ticked():
                self._outbox.tick(now)
                over = [address for address in self._waiting if now >= self._pauses[address].until]
                for address in over:
                    del self._waiting[address]
                self._look_at(over, now)
            case LimitsRead():
                self._looked = True
                self._take(event.text, now)
            case LimitsUnreadable():
                self._looked = True
                # A file that never existed: a fleet without such limits.
                self._log_stays(event.why, "info" if event.missing and self._wanted is None else "warning")
            case _:
                self._exchange_event(event, now)
        told, self._told = self._told, []
        return [*told, *self._first_said(), *self._outbox.drain()]

    def _log(self, sentence: str, level: Literal["info", "warning"] = "info") -> None:
        self._told.append(WriteLogLine(level, sentence))

    def _log_stays(self, why: str, level: Literal["info", "warning"]) -> None:
        stays = "what it said before" if self._wanted is not None else "what is on the bus"
        self._log(f"{why}; {stays} stays in force", level)

    def _first_said(self) -> list[LimitsPublished]:
        """Whether all limits are on the bus, for the first time in this incarnation. True with nothing to publish."""
        if self._unsaid is None or self._reading or not self._looked or self._incarnation is None:
            return []
        while self._unsaid:
            address = next(iter(self._unsaid))
            kept = self._outbox.kept(address)
            if kept is not None and kept != self._on_bus(address):
                return []
            del self._unsaid[address]
        self._unsaid = None
        return [LimitsPublished(self._incarnation)]

    def _take(self, text: str, now: float) -> None:
        try:
            wanted = read_limits(text, origin=self._origin, source=self._source)
        except TableError as error:
            self._log_stays(str(error), "warning")
            return
        before, self._wanted = self._wanted or {}, wanted
        self._pauses, self._waiting, self._others = {}, {}, {}
        if self._unsaid is not None:
            self._unsaid = dict.fromkeys(wanted)
        nodes = sum(address.kind == "cordon" for address in wanted)
        self._log(f"{self._origin} names {len(wanted) - nodes} namespaces and {nodes} nodes")
        for doubt in suspicious_limits(text, origin=self._origin):
            self._log(doubt, "warning")
        self._look_at((*before, *wanted, *self._heard), now)

    def _exchange_event(self, event: BusEvent, now: float) -> None:
        self._outbox.handle(event, now)  # its effects show in the last values
        match event:
            case bus_events.ReadingStarted():
                self._reading = self._outbox.paused = True
                self._heard = {}
                if event.incarnation != self._incarnation:
                    self._incarnation = event.incarnation
                    self._unsaid = dict.fromkeys(self._wanted or ())
            case bus_events.Observed():
                address = subjects.parse(event.entry.subject)
                if address.kind in WRITES:
                    self._heard[address] = None
                    if not self._reading:
                        self._make_way(address, now)
                        self._look_at((address,), now)
            case bus_events.ReadingCaughtUp():
                self._reading = self._outbox.paused = False
                self._look_at((*(self._wanted or ()), *self._heard), now)

    def _make_way(self, address: Address, now: float) -> None:
        """Another watcher of our source published something else: leave its message, for longer each time."""
        entry, wanted = self._outbox.current(address), self._wanted
        if wanted is None or entry is None or entry.operation.startswith(f"{self._run}-"):
            return
        right = wanted.get(address) or _ending(address, self._source)  # the file's limit, or its end
        if getattr(entry.message, "source", BY_HAND) != self._source or entry.message == right:
            return
        last = self._pauses.get(address)
        if last is not None and last.sequence == entry.sequence:
            return
        length_s = min(last.length_s * 2, PAUSE_MAX_S) if last is not None else PAUSE_FIRST_S
        self._pauses[address] = _Pause(entry.sequence, now + length_s, length_s)
        self._waiting[address] = None
        rival = f"another pod-watcher of source {self._source!r} has a different limits file: it sets other limits"
        self._log(f"{rival} for {_name(address)}; retrying in {length_s:.0f} s", "warning")

    def _look_at(self, addresses: Iterable[Address], now: float) -> None:
        if self._wanted is not None and not self._reading:
            for address in dict.fromkeys(addresses):
                self._look(address, self._wanted.get(address), now)

    def _look(self, address: Address, wanted: LimitMessage | None, now: float) -> None:
        said, pause, entry = self._on_bus(address), self._pauses.get(address), self._outbox.current(address)
        standing = said if isinstance(said, LimitMessage) else None
        is_let_be = pause is not None and entry is not None and entry.sequence == pause.sequence and now < pause.until
        if standing is not None and standing.source not in {BY_HAND, self._source}:
            self._outbox.forget(address)
            if wanted is not None and self._others.get(address) != standing.source:
                self._others[address] = standing.source
                self._log(f"{_name(address)} keeps what the limits file of {standing.source!r} set first", "warning")
        elif is_let_be:
            self._outbox.forget(address)
        elif wanted is not None:
            self._keep(address, wanted, standing)
        elif standing is not None and standing.source == self._source:
            self._end(address)
        else:
            self._outbox.forget(address)

    def _keep(self, address: Address, wanted: LimitMessage, standing: LimitMessage | None) -> None:
        if standing is not None and standing.source == BY_HAND:
            self._log(f"{_name(address)}: {self._origin} replaces what an operator set")
        self._outbox.keep(address, wanted)

    def _on_bus(self, address: Address) -> AnyMessage | None:
        entry = self._outbox.current(address)
        return entry.message if entry is not None else None

    def _end(self, address: Address) -> None:
        ending = _ending(address, self._source)
        if self._outbox.kept(address) != ending:
            what = "no longer has limits" if address.kind == "quota" else "may be used again"
            self._log(f"{_name(address)} {what}: {self._origin} does not name it")
            self._outbox.keep(address, ending, ttl_s=self._closing_ttl_s)


def _ending(address: Address, source: SourceName) -> QuotaUnset | Uncordoned:
    if address.kind == "quota":
        return QuotaUnset(namespace=address.key[0], source=source)
    return Uncordoned(node=NodeName(address.key[0]), source=source)


def _name(address: Address) -> str:
    return f"{'namespace' if address.kind == 'quota' else 'node'} {address.key[0]}"

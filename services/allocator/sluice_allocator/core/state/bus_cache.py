"""Caches the last value of every noun that the allocator reads, and nothing derived from two of them. It follows
snapshots: a value not observed again between `ReadingStarted` and `ReadingCaughtUp` is gone."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard, TypeVar

from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Observed, ReadingStarted, Stream, stream_of
from sluice.contracts.bus.subjects import Address, parse
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, OperationId, RequestId, SourceName
from sluice_allocator.core.key_index import drop, put
from sluice_allocator.core.state.interning import Interning

LEDGER = (msg.Grant, msg.Revoke, msg.Closed)
SLICE = (msg.SliceReady, msg.SliceFailed, msg.SliceDegraded, msg.SliceQuarantined, msg.SliceGone)
REQUEST = (msg.AllocationRequested, msg.RequestRejected, msg.RequestWithdrawn)
BINDING = (msg.Bound, msg.Refused, msg.Released, msg.Waived)

RequestFact = msg.AllocationRequested | msg.RequestRejected | msg.RequestWithdrawn
BindingFact = msg.Bound | msg.Refused | msg.Released | msg.Waived
Entries = Mapping[AllocationId, msg.LedgerEntry]
_NO_ENTRIES: Entries = {}
SliceFact = msg.SliceReady | msg.SliceFailed | msg.SliceDegraded | msg.SliceQuarantined | msg.SliceGone
_PLAIN: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "cordon": ("cordons", msg.Cordoned),
    "waiting": ("waiting", msg.Pending),
    "eviction": ("evictions", msg.EvictionOrdered),
    "evicted": ("evicted", (msg.EvictionDone, msg.EvictionBlocked)),
    "quota": ("quotas", msg.QuotaSet),
    "pool": ("pools", msg.PoolDemand),
}
"""By noun: the field that keeps its last values as they are, and their messages."""


class Outdated(msg.Waived, frozen=True, kw_only=True):
    """A binding of an earlier incarnation that landed in this one: it binds nothing, but its slice may exist."""

    named: msg.Held | None = None


@dataclass(slots=True)
class BusCache:
    """Every fact by its key. `sequences` tells how old a subject's value is."""

    incarnation: Incarnation = field(default=Incarnation(""))  # the incarnation of BOOK, which orders name
    incarnations: dict[Stream, Incarnation] = field(default_factory=dict)
    awaited: dict[Stream, None] = field(default_factory=dict)  # streams to be reread because the other one started over
    requests: dict[RequestId, RequestFact] = field(default_factory=dict)
    bindings: dict[RequestId, BindingFact] = field(default_factory=dict)
    ledger: dict[AllocationId, msg.LedgerEntry] = field(default_factory=dict)
    allocations_of: dict[RequestId, dict[AllocationId, msg.LedgerEntry]] = field(default_factory=dict)
    heads: dict[NodeName, msg.NodeOpened] = field(default_factory=dict)
    closed_heads: dict[NodeName, msg.NodeClosed] = field(default_factory=dict)  # of removed nodes, not opened since
    on_their_way: dict[AllocationId, NodeName] = field(default_factory=dict)
    """Slices that a head adopted and this reading has not shown yet: an entry that was overwritten before we read it is
    read later than the head that followed it."""
    unreadable: dict[NodeName, dict[str, None]] = field(default_factory=dict)  # subjects; such a node is not used
    slices: dict[AllocationId, SliceFact] = field(default_factory=dict)
    slice_nodes: dict[AllocationId, NodeName] = field(default_factory=dict)  # the node whose agent reports each slice
    slice_operations: dict[AllocationId, OperationId] = field(default_factory=dict)  # of the agent's last report
    slices_of: dict[RequestId, dict[AllocationId, None]] = field(default_factory=dict)  # those that were reported
    allocations_on: dict[NodeName, dict[AllocationId, None]] = field(default_factory=dict)  # closed ones included
    news: dict[NodeName, msg.NodeChanged] = field(default_factory=dict)
    removed: dict[NodeName, msg.NodeRemoved] = field(default_factory=dict)  # by their last message
    inventories: dict[NodeName, msg.NodeInventory] = field(default_factory=dict)
    reported_of: dict[RequestId, dict[AllocationId, NodeName]] = field(default_factory=dict)  # by pulled snapshots
    hosts: dict[NodeName, msg.HostFacts] = field(default_factory=dict)
    cordons: dict[NodeName, msg.Cordoned] = field(default_factory=dict)
    sources: dict[SourceName, msg.SourceSynced] = field(default_factory=dict)
    waiting: dict[RequestId, msg.Pending] = field(default_factory=dict)
    evictions: dict[RequestId, msg.EvictionOrdered] = field(default_factory=dict)  # orders that stand
    evicted: dict[RequestId, msg.EvictionDone | msg.EvictionBlocked] = field(default_factory=dict)
    quotas: dict[str, msg.QuotaSet] = field(default_factory=dict)  # by namespace
    pools: dict[str, msg.PoolDemand] = field(default_factory=dict)
    promises: dict[AllocationId, dict[AllocationId, None]] = field(default_factory=dict)  # grants that come after it
    unpromised: dict[AllocationId, tuple[AllocationId, ...]] = field(default_factory=dict)  # of overwritten grants
    requested_by: dict[SourceName, dict[RequestId, None]] = field(default_factory=dict)  # live ones
    sequences: dict[Stream, dict[str, int]] = field(default_factory=lambda: {Stream.BOOK: {}, Stream.STATE: {}})
    first_words: dict[RequestId, int] = field(default_factory=dict)  # sequence of an edited request's first message
    book_read: int = 0  # everything written to BOOK up to here was read, or overwritten by a later value
    reading: dict[Stream, dict[str, None]] = field(default_factory=dict)  # being reread: subjects not seen since
    gone: dict[str, None] = field(default_factory=dict)
    """Subjects known before a complete reading, which it did not show: still to be forgotten."""
    lost_unknown: bool = False  # whether BOOK was read since `lost` was found
    all_new: dict[Stream, bool] = field(default_factory=dict)  # whether nothing was known when its reading began
    complete: dict[Stream, None] = field(default_factory=dict)  # read whole once, in this incarnation
    sharing: Interning = field(default_factory=Interning)
    settled: bool = False  # whether both streams are whole, and all that they show is booked
    unbooked: deque[AllocationId] = field(default_factory=deque)  # of a complete reading: still to be booked
    unlisted: int = 0
    """Of the two other places with allocations to book, the cluster and `slices`: listing all at once takes long."""
    lost: dict[AllocationId, None] = field(default_factory=dict)
    """Bound allocations without a ledger entry, as a complete reading showed. Otherwise a value that was overwritten on
    its way looks like a missing one."""

    @property
    def is_whole(self) -> bool:
        """Whether both streams are known completely, what is gone is forgotten, and none is being reread."""
        return not self.reading and not self.gone and len(self.complete) == 2

    @property
    def is_being_taken_in(self) -> bool:
        """Whether something that a complete reading showed, or did not show, is left to be taken in."""
        return bool(self.gone or self.unbooked or self.unlisted)

    def speaks_of(self, request: RequestId) -> bool:
        """Whether a source has a message about a request on the bus, even one that this process cannot read."""
        return request in self.requests or subjects.request(request).subject in self.sequences[Stream.STATE]

    def not_told_of(self, requests: Iterable[RequestId]) -> set[RequestId]:
        """Those of these requests that no message is about."""
        messages = (self.requests, self.bindings, self.allocations_of, self.waiting, self.evictions, self.evicted)
        return set(requests).difference(*messages, self.slices_of, self.reported_of)

    def wanted(self, request: RequestId) -> msg.AllocationRequested | None:
        asked = self.requests.get(request)
        return asked if isinstance(asked, msg.AllocationRequested) else None

    def live(self, request: RequestId) -> msg.AllocationRequested:
        """A request that waits: withdrawn ones have left the queue, and ended their gang's trial, before."""
        asked = self.requests[request]
        assert isinstance(asked, msg.AllocationRequested)
        return asked

    def entries_of(self, request: RequestId) -> Entries:
        return self.allocations_of.get(request, _NO_ENTRIES)

    def granted(self, allocation: AllocationId) -> msg.Grant | None:
        entry = self.ledger.get(allocation)
        return entry if isinstance(entry, msg.Grant) else None

    def grants(self, allocations: Iterable[AllocationId]) -> list[msg.Grant]:
        """Those of these allocations that the ledger grants."""
        return [entry for each in allocations if isinstance(entry := self.ledger.get(each), msg.Grant)]

    def grants_of(self, request: RequestId) -> list[msg.Grant]:
        return [entry for entry in self.entries_of(request).values() if isinstance(entry, msg.Grant)]

    def answer_to(self, request: RequestId) -> BindingFact | None:
        """The binding of a request as it is now: a refusal of what it was before an edit does not count."""
        binding, asked = self.bindings.get(request), self.requests.get(request)
        if isinstance(binding, msg.Refused) and asked is not None and asked.revision > binding.request_revision:
            return None
        return binding

    def bound_to(self, request: RequestId) -> AllocationId | None:
        """The allocation that a request is bound to; None while it is bound to none."""
        binding = self.bindings.get(request)
        return binding.allocation if isinstance(binding, msg.Bound) else None

    def waived_by(self, request: RequestId) -> tuple[AllocationId, ...]:
        """The allocations that are not to be bound to a request any more, by its last answer."""
        match self.bindings.get(request):
            case msg.Waived(allocations=named) | msg.Bound(waives=named) | msg.Refused(waives=named):
                return named
            case _:
                return ()

    def came_at(self, request: RequestId) -> int:
        """The sequence of a request's first message, which decides its turn, as far as this process knows it."""
        at = self.first_words.get(request)
        return at if at is not None else self.sequences[Stream.STATE].get(subjects.request(request).subject, 0)

    def start_reading(self, event: ReadingStarted) -> bool:
        """A snapshot of one stream begins. True when the broker was wiped since: values of the other stream may be of
        an earlier incarnation, and it must be reread. An earlier STATE shows slices that do not exist; an earlier BOOK
        shows nodes that are not open, and an order for one with nothing under its guard would be accepted. Streams that
        were not made together are of one incarnation when one of them was found unchanged after the other began to be
        read."""
        known = self.sequences[event.stream]
        self.reading[event.stream] = dict.fromkeys(known)
        self.gone = {each: None for each in self.gone if each not in known}
        self.all_new[event.stream] = not known
        self.settled = False
        self.unbooked.clear()
        self.unlisted = 0
        before = self.incarnations.get(event.stream, event.incarnation)
        self.incarnations[event.stream] = event.incarnation
        if event.stream is Stream.BOOK:
            self.incarnation, self.lost_unknown = event.incarnation, False
        awaited = self.awaited.pop(event.stream, False) is not False
        if before == event.incarnation:
            return False
        self._number_anew(event.stream)
        other = Stream.STATE if event.stream is Stream.BOOK else Stream.BOOK
        if awaited and self.incarnations.get(other) == event.incarnation:
            return False  # made together; otherwise the other may have been read of an incarnation between the two
        was_complete = self.complete.pop(other, False) is not False
        was_reading = self.reading.pop(other, None) is not None
        if was_complete or was_reading:
            self.awaited[other] = None
        return was_complete or was_reading

    def observe(self, event: Observed) -> Address | None:
        """Store one value. Returns its address, or None when it is older than what is known."""
        entry, stream = event.entry, event.stream
        if self.reading and stream in self.reading:
            self.reading[stream].pop(entry.subject, None)
        # What this process wrote itself is known before it is read: then older values of BOOK still come by. STATE may
        # forget what it acknowledged and reuse numbers, so there whatever is read is the current value.
        if stream is Stream.BOOK:
            self.book_read = max(self.book_read, entry.sequence)
            if self.sequences[stream].get(entry.subject, -1) >= entry.sequence:
                return None
        address = parse(entry.subject)
        self.learn(stream, entry, address)
        return address

    def wrote(self, entry: Entry, address: Address) -> None:
        """A value of this process landed. If it follows what was read, nothing between is unknown."""
        stream = stream_of(address.kind)
        if stream is Stream.BOOK and entry.sequence == self.book_read + 1:
            self.book_read = entry.sequence
        if self.reading and stream in self.reading and entry.subject not in self.sequences[stream]:
            self.reading[stream][entry.subject] = None
        self.learn(stream, entry, address)

    def learn(self, stream: Stream, entry: Entry, address: Address) -> None:
        """Store one value: read, or written by this process."""
        if address.kind == "request":
            self._remember_first_word(RequestId(address.key[-1]), entry)
        elif address.kind == "slice":
            self.slice_operations[AllocationId(address.key[-1])] = entry.operation
        self.sequences[stream][entry.subject] = entry.sequence
        if self.gone:
            self.gone.pop(entry.subject, None)
        self._put(address, entry.message)

    def catch_up(self, stream: Stream, is_there: Callable[[Stream, str], bool]) -> None:
        """The snapshot is complete: what it did not show is `gone`, unless it is there all the same."""
        if stream not in self.reading:
            return  # a reading that began before the broker was wiped; it is repeated
        self.gone |= {each: None for each in self.reading.pop(stream) if not is_there(stream, each)}
        self.complete[stream] = None
        self.lost_unknown |= stream is Stream.BOOK

    def forget(self, subject: str) -> Address:
        """Forget one value that is gone, and return its address."""
        del self.gone[subject]
        address = parse(subject)
        self.drop(address)
        return address

    def find_lost(self) -> None:
        """BOOK was read, and what is gone from it is forgotten."""
        self.lost_unknown = False
        self.on_their_way.clear()
        bound = (each.allocation for each in self.bindings.values() if type(each) is msg.Bound)
        self.lost = {each: None for each in bound if each not in self.ledger}

    def drop(self, address: Address) -> None:
        self.sequences[stream_of(address.kind)].pop(address.subject, None)
        if address.kind == "request":
            self.first_words.pop(RequestId(address.key[-1]), None)
        elif address.kind == "slice":
            self.slice_operations.pop(AllocationId(address.key[-1]), None)
        self._put(address, None)

    def _remember_first_word(self, request: RequestId, entry: Entry) -> None:
        """The first message of an edited request is not on the bus any more, and decides its turn."""
        before, at = self.requests.get(request), self.sequences[Stream.STATE].get(entry.subject, -1)
        if isinstance(before, msg.AllocationRequested) and isinstance(entry.message, msg.AllocationRequested):
            if entry.message.revision > before.revision and at >= 0:
                self.first_words.setdefault(request, at)
        elif self.first_words:
            self.first_words.pop(request, None)

    def _number_anew(self, stream: Stream) -> None:
        """In a new incarnation of a stream no value is older than one of the earlier one: sequences start at the time
        of creation, by a clock that may be an hour behind."""
        self.sequences[stream] = dict.fromkeys(self.sequences[stream], -1)
        if stream is Stream.STATE:
            self.first_words.clear()
        if stream is Stream.BOOK:
            self.book_read = int(self.incarnation or 0) - 1  # its first sequence: before that there is nothing

    def _put(self, address: Address, message: msg.AnyMessage | None) -> None:
        key = address.key[-1]
        match address.kind:
            case "request":
                self._put_request(RequestId(key), message if self._says_something_now(message) else None)
            case "ledger":
                self._put_ledger(address, message)
            case "binding":
                _set(self.bindings, RequestId(key), self._answer(message))
            case "slice":
                self._put_slice(NodeName(address.key[0]), AllocationId(key), message)
            case "node":
                news = replace(message, gpus=()) if isinstance(message, msg.NodeChanged) else None
                _set(self.news, NodeName(key), news)
                _set(self.removed, NodeName(key), message if isinstance(message, msg.NodeRemoved) else None)
            case "inventory":
                self._put_inventory(NodeName(key), message if isinstance(message, msg.NodeInventory) else None)
            case "host":
                host = self.sharing.host(message) if isinstance(message, msg.HostFacts) else None
                _set(self.hosts, NodeName(key), host)
            case "source":
                _set(self.sources, SourceName(key), self._told_all(message))
            case _ if address.kind in _PLAIN:
                facts, types = _PLAIN[address.kind]
                _set(getattr(self, facts), key, message if isinstance(message, types) else None)
            case _:
                pass  # a noun the allocator does not read

    def _answer(self, message: msg.AnyMessage | None) -> BindingFact | None:
        """The binding of a request. A place waived in an earlier incarnation may have been bound there since, and a
        bound one may have been waived: such a message names no place, and is ended like any other."""
        if isinstance(message, msg.Bound | msg.Waived) and message.incarnation not in {"", self.incarnation}:
            return Outdated(
                request=message.request,
                request_revision=message.request_revision,
                allocations=(),
                cause="published before the bus was recreated",
                incarnation=message.incarnation,
                source=message.source,
                named=named_by(message),
            )
        return message if isinstance(message, BINDING) else None

    def _told_all(self, message: msg.AnyMessage | None) -> msg.SourceSynced | None:
        """The completeness message of a source in this incarnation: what it published before a wipe is gone."""
        if isinstance(message, msg.SourceSynced) and message.incarnation in {"", self.incarnations.get(Stream.STATE)}:
            return message
        return None

    def _says_something_now(self, message: msg.AnyMessage | None) -> TypeGuard[RequestFact]:
        """Whether this is a source's message about a request in this incarnation of the bus. One of before a wipe that
        landed late counts as unread (`speaks_of`): its source publishes it again."""
        if isinstance(message, msg.AllocationRequested):
            return message.incarnation in {"", self.incarnations.get(Stream.STATE)}
        return isinstance(message, REQUEST)

    def _put_request(self, request: RequestId, message: RequestFact | None) -> None:
        before = self.requests.get(request)
        if isinstance(before, msg.AllocationRequested):
            drop(self.requested_by, before.source, request)
        if isinstance(message, msg.AllocationRequested):
            put(self.requested_by, message.source, request)
        _set(self.requests, request, message)

    def _put_slice(self, node: NodeName, allocation: AllocationId, message: msg.AnyMessage | None) -> None:
        before = self.slices.pop(allocation, None)
        self.slice_nodes.pop(allocation, None)
        if before is not None:
            drop(self.slices_of, before.request, allocation)
        if isinstance(message, SLICE):
            self.slices[allocation] = message
            self.slice_nodes[allocation] = node
            put(self.slices_of, message.request, allocation)

    def _put_inventory(self, node: NodeName, message: msg.NodeInventory | None) -> None:
        before = self.inventories.get(node)
        for report in before.snapshot.slices if before is not None else ():
            drop(self.reported_of, report.booking.request, report.booking.allocation)
        for report in message.snapshot.slices if message is not None else ():
            self.reported_of.setdefault(report.booking.request, {})[report.booking.allocation] = node
        kept = self.sharing.inventory(message, before, self.ledger) if message is not None else None
        _set(self.inventories, node, kept)

    def _put_ledger(self, address: Address, message: msg.AnyMessage | None) -> None:
        node, token = NodeName(address.key[0]), address.key[1]
        if self.unreadable:
            drop(self.unreadable, node, address.subject)
        if message is None and address.subject in self.sequences[Stream.BOOK]:
            put(self.unreadable, node, address.subject)
        if token == "head":  # noqa: S105  # a subject's token, not a secret
            self._put_head(node, message if isinstance(message, msg.NodeOpened) else None)
            _set(self.closed_heads, node, message if isinstance(message, msg.NodeClosed) else None)
            return
        allocation = AllocationId(token)
        before = self.ledger.get(allocation)
        if before is not None:
            drop(self.allocations_of, request_of(before), allocation)
        entry = message if isinstance(message, LEDGER) and not self._went_in_another_life(message) else None
        if isinstance(before, msg.Grant) and before.after:
            self.unpromised[allocation] = before.after
            for other in before.after:
                drop(self.promises, other, allocation)
        for other in entry.after if isinstance(entry, msg.Grant) else ():
            put(self.promises, other, allocation)
        if entry is not None:
            self.allocations_of.setdefault(request_of(entry), {})[allocation] = entry
            self.lost.pop(allocation, None)
            self.on_their_way.pop(allocation, None)
            put(self.allocations_on, node, allocation)
        elif before is not None:
            drop(self.allocations_on, node, allocation)
        _set(self.ledger, allocation, entry)

    def _went_in_another_life(self, entry: msg.LedgerEntry) -> bool:
        """Whether a slice went with its node in an earlier incarnation of the bus: such an entry says nothing. It
        landed late. In this incarnation the node may never have been reported gone, and its agent may be running."""
        return isinstance(entry, msg.Closed) and entry.removed and entry.incarnation not in {"", self.incarnation}

    def _put_head(self, node: NodeName, head: msg.NodeOpened | None) -> None:
        self.on_their_way = {a: on for a, on in self.on_their_way.items() if on != node}
        for allocation in head.adopted if head is not None else ():
            if allocation not in self.ledger:
                self.on_their_way[allocation] = node
        _set(self.heads, node, head)


def request_of(entry: msg.LedgerEntry) -> RequestId:
    return entry.request if isinstance(entry, msg.Closed) else entry.booking.request


def named_by(binding: BindingFact | None) -> msg.Held | None:
    """The slice that a binding names, of whichever incarnation it is."""
    match binding:
        case msg.Bound():
            return msg.Held(node=binding.node, allocation=binding.allocation)
        case Outdated():
            return binding.named
        case _:
            return None


_K = TypeVar("_K")
_V = TypeVar("_V")


def _set(facts: dict[_K, _V], key: _K, value: _V | None) -> None:
    if value is None:
        facts.pop(key, None)
    else:
        facts[key] = value

"""
What the pod-watcher says on the bus, and when it may.

A word about a request is said once its source may say it (a folder: once its identity is on disk; a cluster: once it is
known whether the pod was bound). `SourceSynced` is said once everything it counts is on the bus. A rival's word
(another pod-watcher of the same source, or a predecessor's late one) stands until the next listing, so that two never
duel at the speed of the bus. What there is to say is decided elsewhere (`RequestSource`).
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Protocol

from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import BusEvent, BusInstruction, Observed, ReadingCaughtUp, ReadingStarted, Stream
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import Incarnation, NodeName, RequestId, RunId, SourceName
from sluice.contracts.messages import (
    AllocationRequested,
    AnyMessage,
    Bound,
    EvictionBlocked,
    EvictionDone,
    EvictionOrdered,
    HostFacts,
    NodeRemoved,
    RequestMessage,
    RequestRejected,
    RequestWithdrawn,
    SourceSynced,
)
from sluice.contracts.outbox import Contested, Outbox, OutboxReport
from sluice_pod_watcher.core.folder.events import WriteLogLine

PUBLISHED_PER_TURN_MAX = 250
"""Requests that are spoken of in one turn: with all 10,000 of a cluster at once, nobody else would get a turn."""
WRITES = frozenset({"request", "source", "host", "evicted", "node"})
"""The nouns whose writer a pod-watcher is."""


class RequestSource(Protocol):
    """Who knows the requests of a source, and what is to be said of each."""

    due: dict[RequestId, None]
    """Whose word on the bus has to be looked at; taken when that is done."""

    def all_requests(self) -> Iterable[RequestId]:
        """Every request about which the last word was not said."""

    def asking(self) -> int:
        """How many of them ask for a slice."""

    def has_seen_all(self) -> bool:
        """Whether there is nobody who may ask, and of whom it is not known yet."""

    def may_publish(self, uid: RequestId) -> bool:
        """Whether its present word may be said already."""

    def word(self, uid: RequestId) -> RequestMessage | None:
        """Its present word; None when there is nothing to be said (any more)."""

    def drop(self, uid: RequestId) -> None:
        """The last word about it was said."""


class RequestPublisher:
    """The outbox, and what has to be true before something goes into it."""

    def __init__(self, run: RunId, source: SourceName, closing_ttl_s: int, request_source: RequestSource) -> None:
        """Nothing to say yet."""
        self._run = run
        self._name = source
        self._closing_ttl_s = closing_ttl_s
        self._request_source = request_source
        self._outbox = Outbox(run, WRITES)
        self._source = subjects.source(source)
        self._held_back: dict[RequestId, None] = {}
        """Whose word may not be said yet."""
        self._unconfirmed: dict[RequestId, None] = {}
        """Whose present word may not be on the bus yet."""
        self._to_republish: dict[RequestId, None] = {}
        """Whose word has to be compared with the bus once more; some at a time."""
        self._closing: dict[RequestId, None] = {}
        """About whom the last word is being said, or was said by somebody."""
        self._state_is_read = False
        self._incarnation = self._read_incarnation = Incarnation("")
        """Of STATE, when it was read whole; and of the reading that is under way."""
        self.book_incarnation = Incarnation("")
        """Of BOOK, as it is being read or was read last."""
        self._epoch = 0
        self._sync_due = False

    # -- hearing --------------------------------------------------------------------------------------------------

    def handle(self, event: BusEvent, now: float) -> list[OutboxReport]:
        """Take in one event of the exchange; what it reports goes to `yield_to_rivals` when the event is understood."""
        reports = self._outbox.handle(event, now)
        match event:
            case ReadingStarted(stream=Stream.BOOK):
                self.book_incarnation = event.incarnation
            case ReadingStarted(stream=Stream.STATE):
                self._state_is_read, self._read_incarnation = False, event.incarnation
                self._outbox.forget(self._source)  # if the broker was wiped, everything else is said before it again
            case ReadingCaughtUp(stream=Stream.STATE):
                self._state_is_read = True
                self._enter_incarnation(self._read_incarnation)
                self._sync_due = self._epoch > 0
                self._recount()
            case Observed() if isinstance(event.entry.message, RequestWithdrawn) and event.entry.message.closing:
                self._closing[RequestId(subjects.parse(event.entry.subject).key[0])] = None
            case _:
                pass
        return reports

    def _enter_incarnation(self, life: Incarnation) -> None:
        """STATE was read in this life: what asks names it, so it is all said anew in another one."""
        if life == self._incarnation:
            return
        self._incarnation = life
        for uid in self._request_source.all_requests():
            self._outbox.forget(subjects.request(uid))
            self._to_republish[uid] = None

    def tick(self, now: float) -> None:
        """Time has passed."""
        self._outbox.tick(now)
        self._drop_closed()

    def request_on_bus(self, uid: RequestId) -> RequestMessage | None:
        """The last word about a request of our source that is known to be on the bus."""
        entry = self._outbox.current(subjects.request(uid))
        message = entry.message if entry is not None else None
        match message:
            case AllocationRequested() | RequestRejected() | RequestWithdrawn() if message.source == self._name:
                return message
            case _:
                return None

    @property
    def is_new_incarnation(self) -> bool:
        """Whether the reading that is under way is of another life than the last one."""
        return self._incarnation not in {"", self._read_incarnation}

    def is_of_this_life(self, order: EvictionOrdered) -> bool:
        """Whether an order was given in the life of STATE in which it is read; one that has landed late is nobody's."""
        return order.incarnation in {"", self._read_incarnation}

    def is_bound_in_this_life(self, bound: Bound) -> bool:
        """Whether a pod was bound in the life of BOOK in which that is read; one that has landed late binds nobody."""
        return bound.incarnation in {"", self.book_incarnation}

    def eviction_on_bus(self, uid: RequestId) -> AnyMessage | None:
        """What the bus has of the eviction of a request's pod."""
        entry = self._outbox.current(subjects.evicted(uid))
        return entry.message if entry is not None else None

    def yield_to_rivals(self, reports: list[OutboxReport]) -> list[WriteLogLine]:
        """Leave what somebody else wrote over our words; the next listing says them again if they still hold."""
        told: list[WriteLogLine] = []
        for report in reports:
            if not isinstance(report, Contested):
                continue
            if report.entry.operation.startswith(f"{self._run}-") and not self._asks_over_a_withdrawal(report):
                continue
            self._outbox.forget(report.address)
            if isinstance(report.entry.message, SourceSynced):
                told.append(
                    WriteLogLine(
                        "warning", f"another pod-watcher speaks for the source {self._name!r}; each needs its own name"
                    )
                )
        return told

    def _asks_over_a_withdrawal(self, report: Contested) -> bool:
        """
        Whether we would ask again for what was withdrawn, be it by ourselves: a reading that a lagging server answered
        has shown an old ask of a request that we had closed and forgotten, and it was taken over.
        """
        kept = self._outbox.kept(report.address)
        return isinstance(report.entry.message, RequestWithdrawn) and not isinstance(kept, RequestWithdrawn)

    def saved(self) -> None:
        """More may be said than before."""
        self._request_source.due |= self._held_back
        self._held_back = {}

    # -- saying ---------------------------------------------------------------------------------------------------

    def hold_back(self, uid: RequestId) -> None:
        """What was said of a request may not hold any more: nothing is, not even again, until its word is due."""
        self._held_back[uid] = None
        self._outbox.forget(subjects.request(uid))

    def listed(self, hosts: Mapping[NodeName, HostFacts]) -> None:
        """All was listed and compared: say everything (again), and then that it is everything."""
        self._epoch += 1
        self._sync_due = True
        self._to_republish |= dict.fromkeys(self._request_source.all_requests())
        self._recount()
        for node, facts in hosts.items():
            self.host(node, facts)

    def host(self, node: NodeName, facts: HostFacts) -> None:
        """What a node has besides GPUs."""
        self._outbox.keep(subjects.host(node), facts)

    def rewrite_host(self, node: NodeName, facts: HostFacts, ttl_s: int | None = None) -> None:
        """The same, written whether it is there already or not: for it may be there for some time only, or shall be."""
        self._outbox.forget(subjects.host(node))
        self._outbox.commit(subjects.host(node), facts, ttl_s=ttl_s)

    def publish_host_with_ttl(self, node: NodeName, facts: HostFacts) -> None:
        """The same, where nobody is to see to it any more; what is there already goes by itself, or was so long ago."""
        self._outbox.keep(subjects.host(node), facts, ttl_s=self._closing_ttl_s)

    def node_on_bus(self, node: NodeName) -> AnyMessage | None:
        """The last word about a node that is known to be on the bus: its agent's, or that it is not there."""
        entry = self._outbox.current(subjects.node(node))
        return entry.message if entry is not None else None

    def removed(self, message: NodeRemoved, no_room: HostFacts) -> bool:
        """A node is not there any more, unless its agent speaks meanwhile. False while that is being said already."""
        address = subjects.node(message.node)
        if self._outbox.busy(address):
            return False
        self._outbox.commit(address, message, ttl_s=self._closing_ttl_s)
        self.rewrite_host(message.node, no_room, self._closing_ttl_s)
        return True

    def evicted(self, uid: RequestId, outcome: EvictionDone | EvictionBlocked) -> None:
        """What became of an eviction; that it is done is said for some time only."""
        ttl_s = self._closing_ttl_s if isinstance(outcome, EvictionDone) else None
        self._outbox.keep(subjects.evicted(uid), outcome, request=uid, ttl_s=ttl_s)

    def drain(self) -> list[BusInstruction]:
        """What to do now. Call at the end of every `handle`."""
        return self._outbox.drain()

    @property
    def is_behind(self) -> bool:
        """Whether there is more to be said again than one turn allows."""
        return bool(self._to_republish)

    def publish_due(self) -> None:
        """Say what is due and may be said, and some of what is to be said again; say that all is said when it is."""
        if self._request_source.due or self._to_republish:
            self._publish_some()
        if self._sync_due and self._state_is_read and self._request_source.has_seen_all() and self._all_confirmed():
            self._sync_due = False
            synced = SourceSynced(
                source=self._name,
                run=self._run,
                epoch=self._epoch,
                count=self._request_source.asking(),
                incarnation=self._incarnation,
            )
            self._outbox.keep(self._source, synced)

    def _publish_some(self) -> None:
        """All that is due, and of what is to be said again as much as one turn allows."""
        due, self._request_source.due = self._request_source.due, {}
        if len(due) > PUBLISHED_PER_TURN_MAX:
            self._to_republish = due | self._to_republish
            due = {}
        for uid in list(islice(self._to_republish, PUBLISHED_PER_TURN_MAX)):
            del self._to_republish[uid]
            due[uid] = None
        for uid in due:
            self._held_back.pop(uid, None)
            message = self._word(uid)
            if message is None:
                continue
            if not self._request_source.may_publish(uid):
                self._held_back[uid] = None
                continue
            closing = isinstance(message, RequestWithdrawn) and message.closing
            if closing:
                self._closing[uid] = None
            ttl_s = self._closing_ttl_s if closing else None
            self._outbox.keep(subjects.request(uid), message, request=uid, ttl_s=ttl_s)

    def _word(self, uid: RequestId) -> RequestMessage | None:
        """What is to be said of a request in this life of the bus."""
        word = self._request_source.word(uid)
        return replace(word, incarnation=self._incarnation) if isinstance(word, AllocationRequested) else word

    def _recount(self) -> None:
        self._unconfirmed = dict.fromkeys(self._request_source.all_requests())

    def _all_confirmed(self) -> bool:
        while self._unconfirmed:
            uid = next(iter(self._unconfirmed))
            if not self._is_confirmed(uid):
                return False
            del self._unconfirmed[uid]
        return True

    def _is_confirmed(self, uid: RequestId) -> bool:
        """Whether the bus has our present word about a request, or a rival's that we leave for now."""
        address = subjects.request(uid)
        if uid in self._to_republish:
            return False
        if uid in self._held_back:
            return self.request_on_bus(uid) == self._word(uid)
        kept, current = self._outbox.kept(address), self._outbox.current(address)
        return kept is None or (current is not None and current.message == kept)

    def _drop_closed(self) -> None:
        """Forget those about whom the last word is on the bus. Costs what is being closed, whatever else there is."""
        for uid in list(self._closing):
            word, entry = self._request_source.word(uid), self._outbox.current(subjects.request(uid))
            current = entry.message if entry is not None else None
            if word is None and self._state_is_read:
                del self._closing[uid]
                is_kept = self._outbox.kept(subjects.evicted(uid)) is not None  # and the bus was wiped since
                if is_kept or isinstance(
                    self.request_on_bus(uid), RequestWithdrawn
                ):  # whoever has said it may have died then
                    self._let_expire(subjects.evicted(uid))
            elif isinstance(word, RequestWithdrawn) and isinstance(current, RequestWithdrawn) and current.closing:
                del self._closing[uid]
                self._outbox.forget(subjects.request(uid))
                self._let_expire(subjects.evicted(uid))
                self._request_source.drop(uid)

    def _let_expire(self, address: Address) -> None:
        """Nobody waits for an eviction that was blocked any more: that is said again, for some time only."""
        self._outbox.forget(address)
        entry = self._outbox.current(address)
        if entry is not None and isinstance(entry.message, EvictionBlocked):
            self._outbox.commit(address, entry.message, request=entry.message.request, ttl_s=self._closing_ttl_s)

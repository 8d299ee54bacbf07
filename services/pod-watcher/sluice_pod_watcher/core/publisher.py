"""Publish the requests of a source (`RequestSource`), each once its source allows it, and `SourceSynced` once
everything it counts is on the bus. A rival's message (another pod-watcher of the source, a late write) stands until the
next listing, so that two never overwrite each other at the speed of the bus."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Literal, Protocol

from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import BusEvent, BusInstruction, Observed, ReadingCaughtUp, ReadingStarted, Stream
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import Incarnation, NodeName, RequestId, RunId, SourceName
from sluice.contracts.messages import BindingMessage, Bound, Refused
from sluice.contracts.outbox import Contested, Outbox, OutboxReport
from sluice_pod_watcher.core.folder.events import WriteLogLine

PUBLISHED_PER_TURN_MAX = 250  # Requests per turn. Publishing all 10,000 of a cluster at once would starve other work.
WRITES = frozenset({"request", "source", "host", "evicted", "node"})  # the nouns that a pod-watcher writes


class RequestSource(Protocol):
    """The requests of a source, and the message for each."""

    due: dict[RequestId, None]  # requests to compare with the bus; taken out when that is done

    def all_requests(self) -> Iterable[RequestId]:
        """Every request without a final message."""

    def asking(self) -> int:
        """How many of them request a slice."""

    def has_seen_all(self) -> bool:
        """Whether the source knows of every pod whether it requests a slice."""

    def may_publish(self, uid: RequestId) -> bool:
        """Whether its present message may be published already."""

    def word(self, uid: RequestId) -> msg.RequestMessage | None:
        """Its present message; None when there is nothing to publish."""

    def drop(self, uid: RequestId) -> None:
        """Its final message is on the bus."""


class RequestPublisher:
    """The outbox, and the conditions before a message goes into it."""

    def __init__(self, run: RunId, source: SourceName, closing_ttl_s: int, request_source: RequestSource) -> None:
        self._run, self._name, self._closing_ttl_s = run, source, closing_ttl_s
        self._request_source = request_source
        self._outbox = Outbox(run, WRITES)
        self._source = subjects.source(source)
        self._held_back: dict[RequestId, None] = {}  # requests whose message may not be published yet
        self._unconfirmed: dict[RequestId, None] = {}  # requests whose present message may not be on the bus yet
        self._to_republish: dict[RequestId, None] = {}  # requests to compare with the bus again, some per turn
        self._closing: dict[RequestId, None] = {}  # whose final message is on its way, or written by another process
        self._state_is_read = False
        self._incarnation = self._read_incarnation = Incarnation("")  # of STATE: last read whole, and being read
        self.book_incarnation = Incarnation("")  # the incarnation of BOOK, as being read or last read
        self._epoch = 0
        self._sync_due = False

    def handle(self, event: BusEvent, now: float) -> list[OutboxReport]:
        """Handle one event of the bus. Pass the reports to `yield_to_rivals` once the event is handled."""
        reports = self._outbox.handle(event, now)
        match event:
            case ReadingStarted(stream=Stream.BOOK):
                self.book_incarnation = event.incarnation
            case ReadingStarted(stream=Stream.STATE):
                self._state_is_read, self._read_incarnation = False, event.incarnation
                self._outbox.forget(self._source)  # after a wipe, everything else is published before it
            case ReadingCaughtUp(stream=Stream.STATE):
                self._state_is_read = True
                self._enter_incarnation(self._read_incarnation)
                self._sync_due = self._epoch > 0
                self._recount()
            case Observed() if isinstance(event.entry.message, msg.RequestWithdrawn) and event.entry.message.closing:
                self._closing[RequestId(subjects.parse(event.entry.subject).key[0])] = None
        return reports

    def _enter_incarnation(self, life: Incarnation) -> None:
        """STATE was read in this incarnation. Requests name it, so all are published again in a new one."""
        if life == self._incarnation:
            return
        self._incarnation = life
        for uid in self._request_source.all_requests():
            self._outbox.forget(subjects.request(uid))
            self._to_republish[uid] = None

    def tick(self, now: float) -> None:
        self._outbox.tick(now)
        self._drop_closed()

    def _on_bus(self, address: Address) -> msg.AnyMessage | None:
        entry = self._outbox.current(address)
        return entry.message if entry is not None else None

    def request_on_bus(self, uid: RequestId) -> msg.RequestMessage | None:
        """The last message about a request of our source that is known to be on the bus."""
        message = self._on_bus(subjects.request(uid))
        return message if isinstance(message, msg.RequestMessage) and message.source == self._name else None

    @property
    def is_new_incarnation(self) -> bool:
        """Whether the reading under way is of another incarnation than the last one."""
        return self._incarnation not in {"", self._read_incarnation}

    def is_of_this_life(self, order: msg.EvictionOrdered) -> bool:
        """Whether an order belongs to the incarnation of STATE that is read; ignore one that landed late."""
        return order.incarnation in {"", self._read_incarnation}

    def is_bound_in_this_life(self, bound: msg.Bound) -> bool:
        """Whether a Bound belongs to the incarnation of BOOK that is read; ignore one that landed late."""
        return bound.incarnation in {"", self.book_incarnation}

    def eviction_on_bus(self, uid: RequestId) -> msg.AnyMessage | None:
        return self._on_bus(subjects.evicted(uid))

    def yield_to_rivals(self, reports: list[OutboxReport]) -> list[WriteLogLine]:
        """Leave what a rival wrote over our messages; the next listing publishes ours again if they still hold."""
        told: list[WriteLogLine] = []
        for report in reports:
            if not isinstance(report, Contested):
                continue
            if report.entry.operation.startswith(f"{self._run}-"):
                continue
            self._outbox.forget(report.address)
            if isinstance(report.entry.message, msg.SourceSynced):
                why = f"another pod-watcher publishes as source {self._name!r}; each needs its own name"
                told.append(WriteLogLine("warning", why))
        return told

    def saved(self) -> None:
        self._request_source.due |= self._held_back
        self._held_back = {}

    def hold_back(self, uid: RequestId) -> None:
        """The last message of a request may be stale: publish nothing, not even a repeat, until the request is due."""
        self._held_back[uid] = None
        self._outbox.forget(subjects.request(uid))

    def listed(self, hosts: Mapping[NodeName, msg.HostFacts]) -> None:
        """All was listed and compared: publish everything again, then that it is complete."""
        self._epoch, self._sync_due = self._epoch + 1, True
        self._to_republish |= dict.fromkeys(self._request_source.all_requests())
        self._recount()
        for node, facts in hosts.items():
            self.host(node, facts)

    def host(self, node: NodeName, facts: msg.HostFacts, *, expires: bool = False) -> None:
        """`expires`: with a time to live, as no process will update it. An existing message expires by itself."""
        self._outbox.keep(subjects.host(node), facts, ttl_s=self._closing_ttl_s if expires else None)

    def rewrite_host(self, node: NodeName, facts: msg.HostFacts, ttl_s: int | None = None) -> None:
        """The same, even if already on the bus: it may have a time to live, or shall get one."""
        self._outbox.forget(subjects.host(node))
        self._outbox.commit(subjects.host(node), facts, ttl_s=ttl_s)

    def node_on_bus(self, node: NodeName) -> msg.AnyMessage | None:
        """The last message about a node that is known to be on the bus: its agent's, or its removal."""
        return self._on_bus(subjects.node(node))

    def removed(self, message: msg.NodeRemoved, no_room: msg.HostFacts) -> bool:
        """A node is removed, unless its agent reports meanwhile. False while that is being published already."""
        address = subjects.node(message.node)
        if self._outbox.busy(address):
            return False
        self._outbox.commit(address, message, ttl_s=self._closing_ttl_s)
        self.rewrite_host(message.node, no_room, self._closing_ttl_s)
        return True

    def evicted(self, uid: RequestId, outcome: msg.EvictionDone | msg.EvictionBlocked) -> None:
        ttl_s = self._closing_ttl_s if isinstance(outcome, msg.EvictionDone) else None
        self._outbox.keep(subjects.evicted(uid), outcome, request=uid, ttl_s=ttl_s)

    def drain(self) -> list[BusInstruction]:
        return self._outbox.drain()

    @property
    def is_behind(self) -> bool:
        """Whether another turn publishes more now."""
        return self._state_is_read and bool(self._to_republish)

    def publish_due(self) -> None:
        """Publish what is due and allowed, some comparisons, and at the end that the source is complete. Nothing while
        STATE is read: the source takes in what a rival published once that is over, and would overwrite it."""
        if not self._state_is_read:
            return
        if self._request_source.due or self._to_republish:
            self._publish_some()
        if self._sync_due and self._request_source.has_seen_all() and self._all_confirmed():
            self._sync_due = False
            life, asking = self._incarnation, self._request_source.asking()
            said = msg.SourceSynced(source=self._name, run=self._run, epoch=self._epoch, count=asking, incarnation=life)
            self._outbox.keep(self._source, said)

    def _publish_some(self) -> None:
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
            closing = isinstance(message, msg.RequestWithdrawn) and message.closing
            if closing:
                self._closing[uid] = None
            ttl_s = self._closing_ttl_s if closing else None
            self._outbox.keep(subjects.request(uid), message, request=uid, ttl_s=ttl_s)

    def _word(self, uid: RequestId) -> msg.RequestMessage | None:
        word = self._request_source.word(uid)
        return replace(word, incarnation=self._incarnation) if isinstance(word, msg.AllocationRequested) else word

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
        address = subjects.request(uid)
        if uid in self._to_republish:
            return False
        if uid in self._held_back:
            return self.request_on_bus(uid) == self._word(uid)
        kept = self._outbox.kept(address)
        return kept is None or self._on_bus(address) == kept

    def _drop_closed(self) -> None:
        """Forget requests whose final message is on the bus. Costs what is closing, independent of the rest."""
        for uid in list(self._closing):
            word, current = self._request_source.word(uid), self._on_bus(subjects.request(uid))
            if word is None and self._state_is_read:
                del self._closing[uid]
                is_kept = self._outbox.kept(subjects.evicted(uid)) is not None  # and the bus was wiped since
                if is_kept or isinstance(self.request_on_bus(uid), msg.RequestWithdrawn):  # its writer may have died
                    self._let_expire(subjects.evicted(uid))
            elif isinstance(word, msg.RequestWithdrawn) and getattr(current, "closing", False):
                del self._closing[uid]
                self._outbox.forget(subjects.request(uid))
                self._let_expire(subjects.evicted(uid))
                self._request_source.drop(uid)

    def _let_expire(self, address: Address) -> None:
        self._outbox.forget(address)
        blocked = self._on_bus(address)
        if isinstance(blocked, msg.EvictionBlocked):
            self._outbox.commit(address, blocked, request=blocked.request, ttl_s=self._closing_ttl_s)


def for_its_pod(answer: BindingMessage) -> BindingMessage:
    """An answer without what else it waives, which is no news to its pod."""
    return replace(answer, waives=()) if isinstance(answer, Bound | Refused) and answer.waives else answer


RequestPhase = Literal["asking", "waiting", "bound", "refused", "ending"]


def phase_of(answer: BindingMessage | None, *, wanted: bool, understood: bool, waits: bool) -> RequestPhase:
    """From the last answer: is the request still wanted, was it understood, and is a reason to wait known?"""
    if not wanted:
        return "ending"
    if isinstance(answer, Refused) or not understood:
        return "refused"
    if isinstance(answer, Bound):
        return "bound"
    return "waiting" if waits else "asking"

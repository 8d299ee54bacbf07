"""Handle what the bus shows: our own requests, answers, wait reasons and eviction orders."""

from collections.abc import Iterable

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import BusEvent, Entry, Observed, ReadAgain, ReadingCaughtUp, ReadingStarted, Stream
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.outbox import Settled
from sluice_pod_watcher.core import log_lines
from sluice_pod_watcher.core.cluster.context import ClusterContext
from sluice_pod_watcher.core.cluster.pods.pod_record import PodRecord
from sluice_pod_watcher.core.publisher import for_its_pod

_Note = msg.Pending | msg.WaitOver | msg.EvictionOrdered | msg.EvictionOver


class BusHandler:
    """Handles what is read from the bus. Nothing counts before both streams were read once."""

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        self._publisher, self._reconciler = context.publisher, context.pod_reconciler
        self._records = context.pod_store.records
        self._reading: dict[Stream, bool] = dict.fromkeys((Stream.BOOK, Stream.STATE), True)
        self._read_answers: dict[RequestId, msg.BindingMessage] = {}
        self._read_words: dict[RequestId, None] = {}
        self._read_notes: dict[tuple[RequestId, bool], _Note] = {}
        """What this reading shows (wait reason and eviction per request), applied when it is complete."""
        self._read_orders: dict[RequestId, None] = {}  # with an eviction order, as far as this reading shows

    @property
    def is_read(self) -> bool:
        return not any(self._reading.values())

    def take_all(self, now: float) -> None:
        """Both streams were read for the first time, and our pods were listed."""
        self._take_words(self._read_words, now)
        self._answer_orders()
        self._take_answers()

    def handle(self, event: BusEvent, now: float) -> None:
        reports = self._publisher.handle(event, now)
        match event:
            case ReadingStarted(stream=Stream.BOOK):
                self._reading[Stream.BOOK] = True
                self._read_answers = {}
            case ReadingStarted():
                if self._publisher.is_new_incarnation:
                    self._context.node_removals.begin_anew(now)
                    self._doubt_answers()
                self._reading[Stream.STATE] = True
                self._context.placeholders.reading_started()
                self._read_words, self._read_notes, self._read_orders = {}, {}, {}
            case Observed():
                uid = RequestId(subjects.parse(event.entry.subject).key[0])
                self._observed(uid, event.entry, now)
            case ReadingCaughtUp():
                self._stream_read(event.stream, now)
        for report in reports:
            if isinstance(report, Settled) and report.landed and isinstance(report.message, msg.NodeRemoved):
                self._context.observe_node(report.message.node, report.message, now)
        self._context.told += self._publisher.yield_to_rivals(reports)

    def _doubt_answers(self) -> None:
        """The bus has a new incarnation: open no pod's gate with a slice of the old one until the answers were read in
        the new one. STATE may have been lost alone, so request that BOOK is read again."""
        self._reconciler.answers_are_old = True
        if not self._reading[Stream.BOOK]:
            self._reading[Stream.BOOK], self._read_answers = True, {}
            self._context.out.append(ReadAgain(Stream.BOOK))

    def _stream_read(self, stream: Stream, now: float) -> None:
        self._reading[stream] = False
        if stream is Stream.STATE:
            self._context.placeholders.stream_read()
            self._context.node_removals.stream_read(self._publisher.node_on_bus, now)
        if self._context.ready and stream is Stream.BOOK:
            self._take_answers()
        elif self._context.ready:
            self._forget_orders()
            self._answer_orders()
            self._take_words(self._read_words, now)
            self._context.republish_nodes()

    def _observed(self, uid: RequestId, entry: Entry, now: float) -> None:
        match message := entry.message:
            case msg.Bound() if not self._publisher.is_bound_in_this_life(message):
                pass
            case msg.Bound() | msg.Refused() | msg.Released() | msg.Waived():
                self._answered(uid, message)
            case msg.AllocationRequested() | msg.RequestRejected() | msg.RequestWithdrawn():
                if message.source == self._context.config.source:
                    self._read_words[uid] = None
                    if self._context.ready and not self._reading[Stream.STATE]:
                        self._take_words([uid], now)
            case msg.EvictionOrdered() if not self._publisher.is_of_this_life(message):
                pass
            case msg.Pending() | msg.WaitOver() | msg.EvictionOrdered() | msg.EvictionOver():
                self._note(uid, message, now)
            case msg.HostFacts() | msg.NodeChanged() | msg.NodeRemoved() | msg.NodeInventory():
                self._of_node(NodeName(uid), message, now)
            case msg.PoolDemand():
                self._context.placeholders.pool(message)

    def _answered(self, uid: RequestId, message: msg.BindingMessage | msg.Waived) -> None:
        if isinstance(message, msg.Waived):
            # a refusal was waived: its pod waits like any other
            self._read_answers.pop(uid, None)
            record = self._records.get(uid)
            if record is not None and isinstance(record.answer, msg.Refused):
                record.answer = None
                self._context.pod_store.due[uid] = None
                self._context.reconcile(uid)
        elif not self._context.ready or self._reading[Stream.BOOK]:
            self._read_answers[uid] = message
        else:
            self._answer(uid, message)

    def _of_node(
        self, node: NodeName, message: msg.HostFacts | msg.NodeChanged | msg.NodeRemoved | msg.NodeInventory, now: float
    ) -> None:
        context = self._context
        match message:
            case msg.HostFacts():
                context.node_capacity.heard(node, message)
            case msg.NodeChanged() | msg.NodeRemoved():
                context.observe_node(node, message, now)
            case msg.NodeInventory():
                context.placeholders.inventory(message, now)
                context.hand_over.inventory(message)
                context.node_removals.inventory(message)
                if message.removed:
                    context.mirror.node_gone(node, now)
                    return
                self._reconciler.idle.heard(message)
                self._heard_of_slices(self._reconciler.slice_health.heard(message), now)
                if context.config.mirror_gpus:
                    context.mirror.inventory(message, now)

    def _heard_of_slices(self, uids: Iterable[RequestId], now: float) -> None:
        for uid in uids:
            self._context.reconcile(uid)
            record = self._records.get(uid)
            if record is not None:
                record.quiet_since = now

    def _note(self, uid: RequestId, message: _Note, now: float) -> None:
        if isinstance(message, msg.EvictionOrdered) and self._reading[Stream.STATE]:
            self._read_orders[uid] = None
        record = self._records.get(uid)
        if record is None:
            if not self._context.ready or self._reading[Stream.STATE]:  # its request may be part of the present reading
                self._read_notes[uid, isinstance(message, (msg.EvictionOrdered, msg.EvictionOver))] = message
            return
        self._context.reconcile(uid)
        match message:
            case msg.Pending():
                if not isinstance(record.pending, msg.Pending) or record.pending.message != message.message:
                    who = f"{record.namespace}/{record.name}"
                    self._context.told.append(log_lines.waits(who, uid, message.message))
                record.pending, record.quiet_since = message, now
            case msg.WaitOver():
                record.pending, record.quiet_since = message, now
            case msg.EvictionOrdered():
                record.eviction = message.cause
                self._see_whether_evicted(uid, record)
                if not self._reading[Stream.STATE]:  # else it may be of the old incarnation
                    self._answer_order(uid, record)
            case msg.EvictionOver():
                record.eviction = ""  # it stays, unless it was evicted already

    def _answer_orders(self) -> None:
        """The orders to evict and their outcomes were read whole; before, they may be of different readings."""
        for uid in self._read_orders:
            record = self._records.get(uid)
            if record is not None and record.eviction:
                self._answer_order(uid, record)

    def _answer_order(self, uid: RequestId, record: PodRecord) -> None:
        """Report an eviction that this process carried out but did not report: otherwise the order counts as open."""
        if not self._see_whether_evicted(uid, record) and record.evicted:
            self._publisher.evicted(uid, msg.EvictionDone(request=uid))

    def _see_whether_evicted(self, uid: RequestId, record: PodRecord) -> bool:
        is_said = isinstance(self._publisher.eviction_on_bus(uid), msg.EvictionDone)
        record.evicted = record.evicted or is_said
        return is_said

    def _forget_orders(self) -> None:
        """The orders to evict were read whole: one that was not among them no longer exists. It was lost with a wiped
        broker, and the allocator publishes it again if it still holds. No other event would take it back."""
        for uid, record in self._records.items():
            if record.eviction and uid not in self._read_orders:
                record.eviction = ""
                self._context.reconcile(uid)

    def _take_answers(self) -> None:
        """The answers were read whole: one that was not among them no longer exists, except a loss: after a wipe its
        pod still has to end, for which agent and allocator wait."""
        read, self._read_answers = self._read_answers, {}
        self._reconciler.answers_are_old = False
        for uid, record in self._records.items():
            if record.answer is not None and uid not in read and not record.is_lost:
                record.answer = None
                self._context.reconcile(uid)
        for uid, answer in read.items():
            self._answer(uid, answer)

    def _answer(self, uid: RequestId, answer: msg.BindingMessage) -> None:
        """An answer was read, maybe again."""
        record, answer = self._records.get(uid), for_its_pod(answer)
        if record is None and isinstance(answer, msg.Released) and answer.cause == "pod gone":
            self._context.pod_store.bury(uid)  # our final message was lost, perhaps
        if record is None or record.closed:
            return
        self._context.reconcile(uid)
        if record.answer == answer or record.has_declined(answer):
            return
        record.answer, record.pending = answer, None
        self._context.pod_store.due[uid] = None
        self._context.told.append(log_lines.answered(f"{record.namespace}/{record.name}", uid, answer, record.held))
        if isinstance(answer, msg.Bound) and answer.warnings and answer.is_for(record.held):
            self._reconciler.status_writer.event(record, "SliceWarning", "; ".join(answer.warnings))

    def _take_words(self, uids: Iterable[RequestId], now: float) -> None:
        """Adopt our own requests from the bus. The last known value counts, not the one just read."""
        adopted = False
        for uid in list(uids):
            word = self._publisher.request_on_bus(uid)
            if word is None:
                continue
            before = self._records.get(uid)
            known = before is not None and not before.closed
            record = self._context.pod_store.heard(uid, word, now)
            adopted = adopted or (record is not None and not known)
            if record is not None:
                self._context.reconcile(uid)
        self._read_words = {}
        notes, self._read_notes = self._read_notes, {}
        for (uid, _), note in notes.items():
            self._note(uid, note, now)
        if adopted and self._context.ready and not self._reading[Stream.BOOK] and not self._read_answers:
            self._context.out.append(ReadAgain(Stream.BOOK))  # their answers were skipped as those of another source

"""The core of a folder's pod-watcher: facts from the folder, the identities on disk and the bus, all read once before
anything is decided. `reconciler` decides, `publisher` publishes."""

from collections import Counter
from collections.abc import Iterable, Mapping

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import BusEvent, Observed, ReadAgain, ReadingCaughtUp, ReadingStarted, Stream, Ticked
from sluice.contracts.ids import NodeName, RequestId, RunId
from sluice_pod_watcher.core import log_lines, publisher
from sluice_pod_watcher.core.folder import events, identities, manifests, reconciler
from sluice_pod_watcher.core.folder.events import Event, FolderConfig, Instruction, WriteLogLine

_NOUNS = ("request", "source", "host", "waiting", "eviction", "evicted")
READS: tuple[tuple[Stream, tuple[str, ...]], ...] = (
    (Stream.BOOK, ("sluice.binding.>",)),
    (Stream.STATE, tuple(f"sluice.{noun}.>" for noun in _NOUNS)),
)
"""What to read: its own requests (the guards of its writes), the answers, and orders to evict."""


class FolderWatcher:
    """One source of requests: a folder of manifests."""

    def __init__(self, run: RunId, config: FolderConfig) -> None:
        self.config = config
        self._identities = identities.Identities(run)
        self._pods = reconciler.FolderReconciler(config, self._identities)
        self._publisher = publisher.RequestPublisher(run, config.source, config.closing_ttl_s, self._pods)
        self._folder = manifests.ParsedFolder(config)
        self._hosts: dict[NodeName, msg.HostFacts] = {}
        self._reading: dict[Stream, bool] = dict.fromkeys((Stream.BOOK, Stream.STATE), True)
        self._loaded = False
        self._was_listed = False
        self._ready = False
        self._read_answers: dict[RequestId, msg.BindingMessage] = {}
        self._read_words: dict[RequestId, None] = {}  # of answers and our requests; applied when it is complete
        self._waits: dict[RequestId, str] = {}
        self._orders: dict[RequestId, str] = {}  # of every source, with their cause: may come before its request
        self._list_at = 0.0
        self._listing_asked = False
        self._list_again = False
        self._unlistable = ""
        self._told: list[WriteLogLine] = []
        self._out: list[Instruction] = []

    def handle(self, event: Event, now: float) -> list[Instruction]:
        match event:
            case Ticked():
                self._publisher.tick(now)
                self._list_when_due(now)
            case events.FolderListed() | events.FolderUnlistable() | events.FolderChanged():
                self._folder_event(event, now)
            case events.IdentitiesLoaded():
                self._identities.load(event.records)
                self._loaded = True
                self._list()
            case events.IdentitiesSaved():
                self._identities.saved(event.version)
                self._publisher.saved()
            case events.HostsKnown():
                self._hosts = dict(event.hosts)
            case _:
                self._exchange_event(event, now)
        self._begin_when_ready(now)
        if self._ready:
            self._publisher.publish_due()
            for uid in self._pods.take_evicted():
                self._publisher.evicted(uid, msg.EvictionDone(request=uid))
            self._out += self._identities.save()
        own, self._out = [*self._told, *self._pods.told, *self._out], []
        self._told, self._pods.told = [], []
        return [*own, *self._publisher.drain()]

    def phases(self) -> Mapping[str, int]:
        return Counter(
            publisher.phase_of(
                self._pods.answers.get(record.uid),
                wanted=record.ended is None,
                understood=record.asks[-1].refusal is None,
                waits=record.uid in self._waits,
            )
            for record in self._identities.all()
        )

    def _begin_when_ready(self, now: float) -> None:
        if self._ready or not self._loaded or not self._was_listed or any(self._reading.values()):
            return
        self._take_words(self._read_words)
        self._ready = True
        self._take_answers()
        self._told, self._pods.told = [], []  # earlier changes are no news
        self._evict_all()
        self._compare(now)

    def _exchange_event(self, event: BusEvent, now: float) -> None:
        reports = self._publisher.handle(event, now)
        match event:
            case ReadingStarted(stream=Stream.BOOK):
                self._reading[Stream.BOOK] = True
                self._read_answers = {}
            case ReadingStarted():
                self._reading[Stream.STATE] = True
                self._read_words, self._orders = {}, {}
            case Observed():
                self._observed(event)
            case ReadingCaughtUp():
                self._reading[event.stream] = False
                if self._ready and event.stream is Stream.BOOK:
                    self._take_answers()
                elif self._ready:
                    self._take_words(self._read_words)
                    self._evict_all()
        self._told += self._publisher.yield_to_rivals(reports)

    def _observed(self, event: Observed) -> None:
        uid = RequestId(subjects.parse(event.entry.subject).key[0])
        message = event.entry.message
        match message:
            case msg.Bound() if not self._publisher.is_bound_in_this_life(message):
                pass
            case msg.Bound() | msg.Refused() | msg.Released():
                self._answer(uid, message)
            case msg.Waived():
                self._read_answers.pop(uid, None)
                self._pods.refused_no_more(uid)
            case msg.AllocationRequested() | msg.RequestRejected() | msg.RequestWithdrawn():
                if message.source == self.config.source:
                    self._own_word(uid)
            case msg.Pending():
                self._pending(uid, message)
            case msg.EvictionOrdered() if self._publisher.is_of_this_life(message):
                self._orders[uid] = message.cause
                if self._ready and not self._reading[Stream.STATE]:
                    self._pods.evict(uid, message.cause)
            case msg.EvictionOver():
                self._orders.pop(uid, None)

    def _evict_all(self) -> None:
        for uid, cause in self._orders.items():
            self._pods.evict(uid, cause)

    def _answer(self, uid: RequestId, message: msg.BindingMessage) -> None:
        if not self._ready or self._reading[Stream.BOOK]:
            self._read_answers[uid] = message
        elif uid in self._identities:
            self._pods.answered(uid, message)

    def _own_word(self, uid: RequestId) -> None:
        if not self._ready or self._reading[Stream.STATE]:
            self._read_words[uid] = None
        else:
            self._take_words([uid])

    def _pending(self, uid: RequestId, message: msg.Pending) -> None:
        record = self._identities.get(uid)
        if record is not None and self._waits.get(uid) != message.message:
            self._waits[uid] = message.message
            self._told.append(log_lines.waits(log_lines.pod(record), uid, message.message))

    def _take_answers(self) -> None:
        """The answers were read whole: one that was not among them no longer exists."""
        read, self._read_answers = self._read_answers, {}
        self._pods.answers = {uid: answer for uid, answer in self._pods.answers.items() if uid in read}
        for uid, answer in read.items():
            self._pods.answered(uid, answer)

    def _take_words(self, uids: Iterable[RequestId]) -> None:
        """Adopt our own requests from the bus: the last known value, as a write may have overtaken the one read."""
        words_now = {uid: word for uid in uids if (word := self._publisher.request_on_bus(uid)) is not None}
        # Requests first: a pod has a better claim to its document than a refusal.
        asks_first = sorted(words_now, key=lambda uid: not isinstance(words_now[uid], msg.AllocationRequested))
        adopted = [uid for uid in asks_first if self._pods.heard(uid, words_now[uid])]
        if adopted and self._ready:
            self._evict_all()
            self._out.append(ReadAgain(Stream.BOOK))  # their answers were skipped as those of another source

    def _folder_event(
        self, event: events.FolderListed | events.FolderUnlistable | events.FolderChanged, now: float
    ) -> None:
        if isinstance(event, events.FolderChanged):
            self._list()
            return
        self._list_at = now + self.config.relist_s
        why = event.why if isinstance(event, events.FolderUnlistable) else ""
        if why and why != self._unlistable:
            self._told.append(WriteLogLine("warning", f"{why}; its pods stay as they are until it can be listed"))
        elif self._unlistable and not why:
            self._told.append(WriteLogLine("info", "the folder can be listed again"))
        self._unlistable = why
        if isinstance(event, events.FolderListed):
            self._folder.listed(event.files)
            self._was_listed = True
            if self._ready:
                self._compare(now)
        self._listing_asked = False
        if self._list_again:  # something changed after this listing was requested, so it may lack that
            self._list_again = False
            self._list()

    def _compare(self, now: float) -> None:
        self._pods.listed(self._folder.view(self._pods.holders()), now)
        self._waits = {uid: message for uid, message in self._waits.items() if uid in self._identities}
        self._publisher.listed(self._hosts)

    def _list_when_due(self, now: float) -> None:
        until = self._pods.counts_at()
        if now >= self._list_at or (until is not None and now >= until):
            self._list_at = now + self.config.relist_s
            self._list()

    def _list(self) -> None:
        if not self._loaded:
            return
        if self._listing_asked:
            self._list_again = True
            return
        self._listing_asked = True
        self._out.append(events.ListFolder())

"""
What the pod-watcher says on the bus, and when it may.

A word about a request is said once its identity is on disk. `SourceSynced` is said once everything it counts is on the
bus. A rival's word (another pod-watcher of the same source, or a predecessor's late one) stands until the next
listing, so that two never duel at the speed of the bus. What there is to say is decided elsewhere (`pods`).
"""

from collections.abc import Mapping

from sluice.contracts import subjects
from sluice.contracts.exchange import ExchangeEvent, ExchangeInstruction, ReadingCaughtUp, ReadingStarted, Stream
from sluice.contracts.ids import NodeName, RequestId, RunId
from sluice.contracts.messages import (
    AllocationRequested,
    HostFacts,
    RequestMessage,
    RequestRejected,
    RequestWithdrawn,
    SourceSynced,
)
from sluice.contracts.outbox import Contested, Outbox, Report
from sluice_pod_watcher.core.events import Tell
from sluice_pod_watcher.core.identities import Identities
from sluice_pod_watcher.core.pods import Pods

WRITES = frozenset({"request", "source", "host"})
"""The nouns whose writer a pod-watcher is."""


class Voice:
    """The outbox, and what has to be true before something goes into it."""

    def __init__(self, run: RunId, pods: Pods) -> None:
        """Nothing to say yet."""
        self._run = run
        self._pods = pods
        self._rules = pods.rules
        self._identities: Identities = pods.identities
        self._outbox = Outbox(run, WRITES)
        self._source = subjects.source(pods.rules.source)
        self._unsaved: dict[RequestId, None] = {}
        self._unconfirmed: dict[RequestId, None] = {}
        """Whose present word may not be on the bus yet."""
        self._state_is_read = False
        self._epoch = 0
        self._sync_due = False

    # -- hearing --------------------------------------------------------------------------------------------------

    def handle(self, event: ExchangeEvent, now: float) -> list[Report]:
        """Take in one event of the exchange; what it reports goes to `yield_to_rivals` when the event is understood."""
        reports = self._outbox.handle(event, now)
        match event:
            case ReadingStarted(stream=Stream.STATE):
                self._state_is_read = False
                self._outbox.forget(self._source)  # if the broker was wiped, everything else is said before it again
            case ReadingCaughtUp(stream=Stream.STATE):
                self._state_is_read = True
                self._sync_due = self._epoch > 0
                self._recount()
            case _:
                pass
        return reports

    def tick(self, now: float) -> None:
        """Time has passed."""
        self._outbox.tick(now)
        self._drop_closed()

    def word_of(self, uid: RequestId) -> RequestMessage | None:
        """The last word about a request of our source that is known to be on the bus."""
        entry = self._outbox.current(subjects.request(uid))
        message = entry.message if entry is not None else None
        match message:
            case AllocationRequested() | RequestRejected() | RequestWithdrawn() if message.source == self._rules.source:
                return message
            case _:
                return None

    def yield_to_rivals(self, reports: list[Report]) -> list[Tell]:
        """Leave what somebody else wrote over our words; the next listing says them again if they still hold."""
        told: list[Tell] = []
        for report in reports:
            if not isinstance(report, Contested) or report.entry.operation.startswith(f"{self._run}-"):
                continue
            self._outbox.forget(report.address)
            if isinstance(report.entry.message, SourceSynced):
                name = self._rules.source
                told.append(
                    Tell("warning", f"another pod-watcher speaks for the source {name!r}; each needs its own name")
                )
        return told

    def saved(self) -> None:
        """More of the identities are on disk."""
        self._pods.due |= self._unsaved
        self._unsaved = {}

    # -- saying ---------------------------------------------------------------------------------------------------

    def listed(self, hosts: Mapping[NodeName, HostFacts]) -> None:
        """The folder was listed and compared: say everything (again), and then that it is everything."""
        self._epoch += 1
        self._sync_due = True
        self._pods.due |= dict.fromkeys(record.uid for record in self._identities.all())
        self._recount()
        for node, facts in hosts.items():
            self._outbox.keep(subjects.host(node), facts)

    def drain(self) -> list[ExchangeInstruction]:
        """What to do now. Call at the end of every `handle`."""
        return self._outbox.drain()

    def say_what_is_due(self) -> None:
        """Say what is due and on disk; say that all is said when it is."""
        due, self._pods.due = self._pods.due, {}
        for uid in due:
            record = self._identities.get(uid)
            if record is None:
                continue
            if not self._identities.is_saved(uid):
                self._unsaved[uid] = None
                continue
            message = self._pods.message_of(record)
            closing = isinstance(message, RequestWithdrawn) and message.closing
            ttl_s = self._rules.closing_ttl_s if closing else None
            self._outbox.keep(subjects.request(uid), message, request=uid, ttl_s=ttl_s)
        if self._sync_due and self._state_is_read and self._all_confirmed():
            self._sync_due = False
            asked = sum(1 for record in self._identities.living() if record.asks[-1].claims)
            synced = SourceSynced(source=self._rules.source, run=self._run, epoch=self._epoch, count=asked)
            self._outbox.keep(self._source, synced)

    def _recount(self) -> None:
        self._unconfirmed = dict.fromkeys(record.uid for record in self._identities.all())

    def _all_confirmed(self) -> bool:
        while self._unconfirmed:
            uid = next(iter(self._unconfirmed))
            if not self._is_confirmed(uid):
                return False
            del self._unconfirmed[uid]
        return True

    def _is_confirmed(self, uid: RequestId) -> bool:
        """Whether the bus has our present word about a request, or a rival's that we leave for now."""
        if uid in self._unsaved:
            return False
        address = subjects.request(uid)
        kept, current = self._outbox.kept(address), self._outbox.current(address)
        return kept is None or (current is not None and current.message == kept)

    def _drop_closed(self) -> None:
        """Forget those about whom the last word is on the bus."""
        for record in self._identities.all():
            current = self._outbox.current(subjects.request(record.uid))
            if record.ended is None or current is None:
                continue
            message = current.message
            if isinstance(message, RequestWithdrawn) and message.closing:
                self._outbox.forget(subjects.request(record.uid))
                self._pods.drop(record.uid)

"""Handle what the API server shows of ResourceClaims, and the results of our writes to them."""

from collections.abc import Iterable

from sluice.contracts.ids import RequestId
from sluice_pod_watcher.core.cluster import events
from sluice_pod_watcher.core.cluster.context import ClusterContext
from sluice_pod_watcher.core.folder.events import WriteLogLine

ClaimEvent = (
    events.ClaimsServed
    | events.ClaimSeen
    | events.ClaimGone
    | events.ClassSeen
    | events.ClassGone
    | events.ClaimWritten
    | events.ClaimRefused
    | events.ListingStarted
    | events.ListingEnded
    | events.HandOverWritten
    | events.HandOverNotWritten
)


class ClaimHandler:
    """Handles events about ResourceClaims, and about the ConfigMap that admission reads."""

    def __init__(self, context: ClusterContext) -> None:
        self._context = context

    def handle(self, event: ClaimEvent, now: float) -> None:
        context = self._context
        match event:
            case events.ClaimsServed():
                context.pod_store.claims.is_served = context.hand_over.is_served = event.served
                self._news(context.pod_store.claims.all_users(), now)
            case (
                events.ClassSeen()
                | events.ClassGone()
                | events.ListingStarted(what="classes")
                | events.ListingEnded(what="classes")
            ):
                context.pod_store.claims.classes.handle(event)
                if isinstance(event, events.ListingEnded) or context.pod_store.claims.classes.was_listed:
                    self._news(context.pod_store.waiting_for_claims(), now)
            case events.ClaimSeen() | events.ClaimGone() | events.ListingStarted() | events.ListingEnded():
                self._news(context.pod_store.claims.handle(event, now), now)
            case events.ClaimWritten() | events.ClaimRefused():
                self._result(event, now)
            case events.HandOverWritten():
                context.hand_over.written(event.mode)
                context.told.append(WriteLogLine("info", f"new pods get their devices by {_words(event.mode)}"))
            case events.HandOverNotWritten():
                context.hand_over.failed(now)
                context.told.append(WriteLogLine("warning", f"admission is not updated: {event.message}"))

    def _result(self, event: events.ClaimWritten | events.ClaimRefused, now: float) -> None:
        context = self._context
        record = context.pod_store.records.get(event.uid) if event.uid else None
        if isinstance(event, events.ClaimWritten):
            context.pod_reconciler.claims.written(record, event)
            self._news(context.pod_store.claims.handle(events.ClaimSeen(event.claim), now), now)
        else:
            context.pod_reconciler.claims.refused(record, event, now)
        if record is not None:
            context.to_reconcile[record.uid] = None

    def _news(self, uids: Iterable[RequestId], now: float) -> None:
        context = self._context
        for uid in uids:
            record = context.pod_store.records.get(uid)
            if record is None:
                continue
            context.log_change(record, context.pod_store.claim_changed(record, now))
            context.to_reconcile[uid] = None


def _words(mode: str) -> str:
    return "ResourceClaims, which the kubelet prepares" if mode == "dra" else "tickets in a volume"

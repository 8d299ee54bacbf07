"""Handle what the API server shows of ResourceClaims, and the results of our writes to them."""

from collections.abc import Iterable

from sluice.contracts.ids import RequestId
from sluice_pod_watcher.core.cluster import events
from sluice_pod_watcher.core.cluster.context import ClusterContext


class ClaimHandler:
    """Handles events about ResourceClaims, and about the ConfigMap that admission reads."""

    def __init__(self, context: ClusterContext) -> None:
        self._context = context

    def served(self, event: events.ClaimsServed, now: float) -> None:
        claims = self._context.pod_store.claims
        claims.is_served = self._context.hand_over.is_served = event.served
        self._news(claims.all_users(), now)

    def claim_event(self, event: events.ObjectEvent, now: float) -> None:
        self._news(self._context.pod_store.claims.handle(event, now), now)

    def class_event(self, event: events.ObjectEvent, now: float) -> None:
        store = self._context.pod_store
        store.claims.classes.handle(event)
        if isinstance(event, events.ListingEnded) or store.claims.classes.was_listed:
            self._news(store.waiting_for_claims(), now)

    def written(self, event: events.Result[events.ClaimWrite], now: float) -> None:
        context, uid = self._context, event.wanted.uid
        record = context.pod_store.records.get(uid) if uid else None
        if isinstance(event, events.Done):
            context.pod_reconciler.claims.written(record, event.wanted)
            self._news(context.pod_store.claims.seen(event.answer, now), now)
        else:
            context.pod_reconciler.claims.refused(record, event, now)
        if record is not None:
            context.reconcile(uid)

    def hand_over_written(self, event: events.Result[events.WriteHandOver], now: float) -> None:
        context, mode = self._context, event.wanted.mode
        if isinstance(event, events.Done):
            context.hand_over.written(mode)
            by = "ResourceClaims, which the kubelet prepares" if mode == "dra" else "tickets in a volume"
            context.log("info", f"new pods get their devices by {by}")
        else:
            context.hand_over.failed(now)
            context.log("warning", f"admission is not updated: {event.why}")

    def _news(self, uids: Iterable[RequestId], now: float) -> None:
        context = self._context
        for uid in uids:
            if (record := context.pod_store.records.get(uid)) is not None:
                context.log_change(record, context.pod_store.claim_changed(record, now))
                context.reconcile(uid)

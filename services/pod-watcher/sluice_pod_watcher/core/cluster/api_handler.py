"""Handle what the API server shows of our pods, and the results of our writes. The API server may show older versions,
skip events and reuse a name. So versions are compared by UID, a pod counts as gone only after a read by name did not
find it, and a pod that leaves our selection has not ended."""

from collections.abc import Iterable

from sluice.contracts.ids import RequestId
from sluice_pod_watcher.core.cluster import events, listed_objects
from sluice_pod_watcher.core.cluster.context import ClusterContext
from sluice_pod_watcher.core.cluster.events import Raw
from sluice_pod_watcher.core.cluster.pods.pod_view import is_marked, read_pod, uid_of
from sluice_pod_watcher.core.cluster.pods.volume_claims import VolumeTopologies, topologies_of
from sluice_pod_watcher.core.workqueue import PendingWrite

RESTORED = (
    "the API server was restored from a backup, and the request of this pod had already ended; "
    "delete the pod, so that a new one makes a new request"
)
FORBIDDEN = 403


class ApiHandler:
    """Handles events of the API server about our pods."""

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        self.listing: listed_objects.Listing[RequestId] = listed_objects.Listing()
        self._went_back = False

    def object_event(self, event: events.ObjectEvent, now: float) -> None:
        match event:
            case events.Seen():
                self._seen(event.object, now)
            case events.Gone():
                self._left(event.object, now)
            case events.ListingStarted() | events.ListingEnded():
                self._listing(event)

    def _seen(self, raw: Raw, now: float) -> None:
        context, view = self._context, read_pod(raw)
        if view is None:
            return
        self.listing.shows(view.uid)
        if context.pod_store.left(view):
            return
        record, change = context.pod_store.seen(raw, view, now)
        if record is not None:
            context.reconcile(record.uid)
            context.log_change(record, change)
        elif self._went_back and self.listing.is_under_way:
            context.log("warning", f"{view.namespace}/{view.name} is back: {RESTORED}", view.uid)

    def other_seen(self, raw: Raw, now: float) -> None:
        """A pod outside our selection. Ignored, unless it carries our gate or annotations."""
        view = read_pod(raw) if is_marked(raw) else None
        record = self._context.pod_store.marked(view, now) if view is not None else None
        if record is not None:
            self._context.reconcile(record.uid)

    def other_gone(self, raw: Raw) -> None:
        """A pod outside our selection was deleted, or entered the selection: read one of ours by name."""
        self._doubt(RequestId(uid_of(raw)))

    def _left(self, raw: Raw, now: float) -> None:
        """It was deleted, or only left our selection, which does not end it."""
        view = read_pod(raw)
        if view is None:
            return
        if view.has_ended:
            self._context.pod_store.seen(raw, view, now)
        if view.nothing_holds_it:
            self._gone(view.uid)
        else:
            self._doubt(view.uid)

    def _gone(self, uid: RequestId) -> None:
        context = self._context
        if (record := context.pod_store.records.get(uid)) is not None:
            context.pod_reconciler.gone(record)
            context.reconcile(uid)
        if (ended := context.pod_store.gone(uid)) is not None:
            context.log_change(ended, "ended")

    def _doubt(self, uid: RequestId) -> None:
        if self._context.pod_store.mark_for_read(uid) is not None:
            self._context.reconcile(uid)

    def _listing(self, event: events.ListingStarted | events.ListingEnded) -> None:
        context = self._context
        if isinstance(event, events.ListingStarted):
            self.listing.started(event)
            self._went_back = event.went_back
            if event.went_back:
                context.pod_store.forget_versions()
            return
        if not self.listing.is_under_way:
            return
        records = context.pod_store.records.items()
        known = ((uid, each.view.version if each.view is not None else 0) for uid, each in records)
        for uid in self.listing.ended(event, known):
            self._doubt(uid)
        if context.ready:
            context.publisher.listed({})
            context.republish_nodes()

    def read(self, event: events.Result[events.ReadPod], now: float) -> None:
        uid, reconciler = event.wanted.uid, self._context.pod_reconciler
        record = self._context.pod_store.records.get(uid)
        if record is None:
            return
        if isinstance(event, events.Failed):
            reconciler.failed(record, record.reading, now)
            return
        record.reading = PendingWrite()
        found = read_pod(event.answer) if event.answer is not None else None
        if found is None or found.uid != uid:
            self._gone(uid)
            return
        self._seen(event.answer, now)
        reconciler.pod_read(record)
        self._context.pod_store.due[uid] = None
        self._context.reconcile(uid)

    def claims_read(self, event: events.Result[events.ReadClaims], now: float) -> None:
        """The volume claims of a pod were read, before its request is published."""
        context = self._context
        record = context.pod_store.records.get(event.wanted.uid)
        if record is None:
            return
        places: VolumeTopologies = ()
        if isinstance(event, events.Done):
            places, unknown = topologies_of(events.ClaimObjects(*each) for each in event.answer)
        elif event.status == FORBIDDEN:
            unknown = (f"Sluice is not allowed to read its volumes: {event.message}",)
        else:
            context.pod_reconciler.failed(record, record.reading_claims, now)
            return
        context.pod_reconciler.claims_read(record, unknown)
        context.log_change(record, context.pod_store.claims_read(record, places, now))
        context.reconcile(record.uid)

    def patched(self, event: events.Result[events.PodWrite], now: float) -> None:
        context, uid = self._context, event.wanted.uid
        record = context.pod_store.records.get(uid)
        if record is None:
            return
        context.pod_reconciler.patched(record, event, now)
        if isinstance(event, events.Done):
            self._seen(event.answer, now)
        if not isinstance(event.wanted, events.WritePodCondition):
            context.pod_store.due[uid] = None  # its message may have waited for this
        context.reconcile(uid)

    def evicted(self, event: events.Result[events.EvictPod], now: float) -> None:
        """The answer to an eviction: that of a pod beside others belongs to their request."""
        uid, reconciler = event.wanted.uid, self._context.pod_reconciler
        request = reconciler.evicting_for.pop(uid, uid)
        record = self._context.pod_store.records.get(request)
        if record is None:
            return
        if isinstance(event, events.Done):
            reconciler.evicted(record, uid)
        else:
            reconciler.eviction_refused(record, event, now)
        self._context.reconcile(request)


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
            self._news([uid for uid, record in store.records.items() if record.unclaimed is not None], now)

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

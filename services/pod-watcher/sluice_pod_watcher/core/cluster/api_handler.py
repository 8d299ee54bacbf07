"""Handle what the API server shows of our pods, and the results of our writes. The API server may show older versions,
skip events and reuse a name. So versions are compared by UID, a pod counts as gone only after a read by name did not
find it, and a pod that leaves our selection has not ended."""

from sluice.contracts.ids import RequestId
from sluice_pod_watcher.core.cluster import events
from sluice_pod_watcher.core.cluster.context import ClusterContext
from sluice_pod_watcher.core.cluster.pods.pod_view import is_marked, read_pod, uid_of, version_of
from sluice_pod_watcher.core.cluster.pods.volume_claims import VolumeClaim, topologies_of
from sluice_pod_watcher.core.folder.events import WriteLogLine
from sluice_pod_watcher.core.workqueue import PendingWrite

RESTORED = (
    "the API server was restored from a backup, and the request of this pod had already ended; "
    "delete the pod, so that a new one makes a new request"
)
Listing = events.ListingStarted | events.ListingEnded
Result = events.PatchDone | events.PatchRefused | events.PodEvicted | events.EvictionRefused
ApiEvent = (
    events.PodSeen
    | events.PodGone
    | events.PodRead
    | events.PodUnreadable
    | events.ClaimsRead
    | events.ClaimsUnreadable
    | Listing
    | Result
)


class ApiHandler:
    """Handles events of the API server about our pods."""

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        self.was_listed = False
        self._listed: set[RequestId] | None = None
        self._went_back = False

    def handle(self, event: ApiEvent, now: float) -> None:
        match event:
            case events.ListingStarted() | events.ListingEnded():
                self._listing(event)
            case events.PatchDone() | events.PatchRefused():
                self._result(event, now)
            case events.PodEvicted() | events.EvictionRefused():
                self._eviction(event, now)
            case events.ClaimsRead() | events.ClaimsUnreadable():
                self._claims(event, now)
            case _:
                self._pod_event(event, now)

    def _pod_event(
        self, event: events.PodSeen | events.PodGone | events.PodRead | events.PodUnreadable, now: float
    ) -> None:
        match event:
            case events.PodSeen():
                self._seen(event.pod, now)
            case events.PodGone():
                self._left(event.pod, now)
            case events.PodRead():
                self._read(event, now)
            case events.PodUnreadable():
                record = self._context.pod_store.records.get(event.uid)
                if record is not None:
                    self._context.pod_reconciler.unreadable(record, now)

    def _seen(self, raw: events.Raw, now: float) -> None:
        view = read_pod(raw)
        if view is None:
            return
        if self._listed is not None:
            self._listed.add(view.uid)
        if self._context.pod_store.left(view):
            return
        record, change = self._context.pod_store.seen(raw, view, now)
        if record is not None:
            self._context.to_reconcile[record.uid] = None
            self._context.log_change(record, change)
        elif self._went_back and self._listed is not None:
            who = f"{view.namespace}/{view.name}"
            self._context.told.append(WriteLogLine("warning", f"{who} is back: {RESTORED}", view.uid))

    def other_seen(self, raw: events.Raw, now: float) -> None:
        """A pod outside our selection. Ignored, unless it carries our gate or annotations."""
        view = read_pod(raw) if is_marked(raw) else None
        record = self._context.pod_store.marked(view, now) if view is not None else None
        if record is not None:
            self._context.to_reconcile[record.uid] = None

    def other_gone(self, raw: events.Raw) -> None:
        """A pod outside our selection was deleted, or entered the selection: read one of ours by name."""
        self._doubt(RequestId(uid_of(raw)))

    def _left(self, raw: events.Raw, now: float) -> None:
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

    def _read(self, event: events.PodRead, now: float) -> None:
        record = self._context.pod_store.records.get(event.uid)
        if record is None:
            return
        record.reading = PendingWrite()
        found = read_pod(event.pod) if event.pod is not None else None
        if found is not None and found.uid == event.uid:
            assert event.pod is not None
            self._seen(event.pod, now)
            self._context.pod_reconciler.was_read(record)
            self._context.pod_store.due[event.uid] = None
            self._context.to_reconcile[event.uid] = None
        else:
            self._gone(event.uid)

    def _claims(self, event: events.ClaimsRead | events.ClaimsUnreadable, now: float) -> None:
        """The claims of a pod were read, before its request is published."""
        record = self._context.pod_store.records.get(event.uid)
        if record is None:
            return
        if isinstance(event, events.ClaimsUnreadable):
            self._context.pod_reconciler.claims_unreadable(record, now)
            return
        places, unknown = topologies_of(tuple(VolumeClaim(*each) for each in event.claims))
        unknown = (event.forbidden,) if event.forbidden else unknown
        self._context.pod_reconciler.claims_read(record, unknown)
        self._context.log_change(record, self._context.pod_store.claims_read(record, places, now))
        self._context.to_reconcile[record.uid] = None

    def _gone(self, uid: RequestId) -> None:
        record = self._context.pod_store.records.get(uid)
        if record is not None:
            self._context.pod_reconciler.gone(record)
            self._context.to_reconcile[uid] = None
        ended = self._context.pod_store.gone(uid)
        if ended is not None:
            self._context.log_change(ended, "ended")

    def _doubt(self, uid: RequestId) -> None:
        if self._context.pod_store.mark_for_read(uid) is not None:
            self._context.to_reconcile[uid] = None

    def _listing(self, event: events.ListingStarted | events.ListingEnded) -> None:
        if isinstance(event, events.ListingStarted):
            self._listed, self._went_back = set(), event.went_back
            if event.went_back:
                self._context.pod_store.forget_versions()
            return
        listed, self._listed = self._listed, None
        if listed is None:
            return
        version = version_of(event.version)
        for uid, record in list(self._context.pod_store.records.items()):
            is_newer = record.view is not None and record.view.version > version > 0
            if uid not in listed and not is_newer:
                self._doubt(uid)
        self.was_listed = True
        if self._context.ready:
            self._context.publisher.listed({})
            self._context.republish_nodes()

    def _result(self, event: events.PatchDone | events.PatchRefused, now: float) -> None:
        pod_reconciler = self._context.pod_reconciler
        record = self._context.pod_store.records.get(event.uid)
        if record is None:
            return
        match event:
            case events.PatchDone(step="condition"):
                pod_reconciler.told(record, now)
            case events.PatchDone():
                pod_reconciler.patched(record, was_bound=event.step == "bind")
            case events.PatchRefused(step="condition"):
                pod_reconciler.told(record, now, refused=event.status)
            case events.PatchRefused():
                pod_reconciler.patch_refused(record, event, now)
        if isinstance(event, events.PatchDone):
            self._seen(event.pod, now)
        if event.step != "condition":
            self._context.pod_store.due[event.uid] = None  # its message may have waited for this
        self._context.to_reconcile[event.uid] = None

    def _eviction(self, event: events.PodEvicted | events.EvictionRefused, now: float) -> None:
        """The answer to an eviction: that of a pod beside others belongs to their request."""
        pod_reconciler = self._context.pod_reconciler
        request = pod_reconciler.evicting_for.pop(event.uid, event.uid)
        record = self._context.pod_store.records.get(request)
        if record is None:
            return
        if isinstance(event, events.PodEvicted):
            pod_reconciler.evicted(record, event.uid)
        else:
            pod_reconciler.eviction_refused(record, event, now)
        self._context.to_reconcile[request] = None

"""Reconcile the ResourceClaims of one pod: make the one that admission named, and allocate and reserve all before its
gate opens. Each step follows from the claim as last seen, whose version guards it; a pod's writes go one at a time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.contracts.delayed_queue import DelayedQueue
from sluice.contracts.dra.names import DRIVER
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import Bound, ResourceClaimRef
from sluice_pod_watcher.core.cluster import events
from sluice_pod_watcher.core.cluster.claims import claim_objects, claim_store
from sluice_pod_watcher.core.cluster.claims.claim_view import ClaimKey, ClaimView, Device
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.pods.pod_record import PodRecord
from sluice_pod_watcher.core.cluster.pods.pod_view import PodView
from sluice_pod_watcher.core.workqueue import PendingWrite, remember

CHANGED_MEANWHILE = frozenset({0, 404, 409})  # after these the watch shows what is so
INVALID = 422
RESERVED_MAX = 256  # pods of one claim (k8s.io/api/resource/v1, ResourceClaimReservedForMaxSize)
UNPROTECTED_MAX = 1000  # remembered without the finalizer: a forgotten one costs one refused patch
DOING = {"create": "created", "protect": "given its finalizer", "allocate": "allocated", "deallocate": "deallocated"}
NOT_SERVED = (
    "its devices are to be handed over by a ResourceClaim, and this API server does not serve resource.k8s.io/v1 "
    "(Kubernetes 1.34 and newer). Label the namespace sluice.dev/hand-over=tickets, delete the pod, and create it again"
)
NOT_LISTED = (
    "its devices are to be handed over by a ResourceClaim, and ResourceClaims cannot be listed: an administrator finds "
    "why in the pod-watcher's log (its ClusterRole has to allow it)"
)
OWNED_BY_OTHER = (
    "its ResourceClaim {} was made for {}. The pod was created from a copy of that one: delete it, and create it again "
    "from a manifest without what Sluice added (spec.resourceClaims, and the annotation, label and gate of sluice.dev)"
)


@dataclass(slots=True)
class ClaimReconciler:
    """Reconciles the claims of pods, one pod at a time. Instructions go to `out`."""

    config: ClusterConfig
    store: claim_store.ClaimStore
    delayed_queue: DelayedQueue[RequestId]
    out: list[events.Own] = field(default_factory=list)
    _watch_wanted: bool = False
    _unprotected: dict[str, None] = field(default_factory=dict)  # without the finalizer: `sweep` deallocates them
    _sweeping: dict[ClaimKey, PendingWrite] = field(default_factory=dict)

    def make(self, record: PodRecord, view: PodView, now: float) -> None:
        """Create the claim of a waiting pod, where there is none, and tell what its own claims still lack."""
        if record.by_own_claims and view.is_gated and self.store.is_served is None:
            self._watch()
            return
        if record.claim_missing and view.is_gated:
            self._tell_if_late(record, record.claim_missing, now)
        if not view.pod_claim or not view.is_gated or view.others_gates or record.asked is None or record.is_refused:
            return
        if self.store.is_served is None:
            self._watch()
            return
        if not self.store.is_served:
            record.claim_problem = NOT_SERVED
            return
        claim = self.store.get(view.namespace, view.pod_claim)
        if claim is not None:
            self._judge(record, claim, now)
        elif not self.store.was_listed:
            self._tell_if_late(record, NOT_LISTED, now)
        elif record.writing_claim.start(record.uid, self.delayed_queue, now):
            body = claim_objects.new_claim(view, (each.container for each in record.asked.pod.claims))
            self.out.append(events.CreateClaim(record.uid, view.namespace, view.pod_claim, body))

    def cannot_be_seen(self, record: PodRecord, view: PodView, now: float) -> bool:
        """Whether a pod waits for its own ResourceClaims, which cannot be listed: they may be another driver's."""
        is_blind = not self.store.was_listed or not self.store.classes.was_listed
        if not (record.by_own_claims and record.terms is None and view.is_gated and is_blind):
            return False
        until = record.since + self.config.claim_left_after_s
        if now < until:
            self.delayed_queue.at(record.uid, until)
        return now >= until

    def _judge(self, record: PodRecord, claim: ClaimView, now: float) -> None:
        if claim.owner != record.uid:
            whose = f"the pod {claim.owner_name}" if claim.owner else "no pod"
            record.claim_problem = OWNED_BY_OTHER.format(claim.name, whose)
        elif claim.dying:
            if claim.is_reserved_for(record.uid) and not record.binding_unknown:
                self._let_go(record, claim, now)
            why = f"its ResourceClaim {claim.name} is being deleted, and is created again after that"
            self._tell_if_late(record, why, now)
        elif not record.writing_claim.failures:
            record.claims_are_fine()

    def _let_go(self, record: PodRecord, claim: ClaimView, now: float) -> None:
        """End the reservation of a claim that was deleted before its pod's gate opened. kube-scheduler places no pod
        with such a claim, and the claim controller waits for the end of its reservations."""
        if record.writing_claim.start(record.uid, self.delayed_queue, now):
            self.out.append(_status(record, claim, "deallocate", claim_objects.deallocated(claim)))

    def why_other(self, record: PodRecord, view: PodView, bound: Bound) -> str:
        """Why its slice was granted for a claim that the pod no longer has, as a predicate; else empty."""
        refs = record.terms.resource_claims if record.terms is not None else ()
        if refs and bound.request_revision < record.claims_revision:
            return "was granted for a ResourceClaim that was deleted since"
        for ref in refs:
            claim = self.store.get(view.namespace, ref.name)
            is_its_own = claim is not None and claim.owner in {"", record.uid}
            if claim is not None and is_its_own and not claim.dying and claim.uid != ref.uid:
                return f"was granted for a ResourceClaim {claim.name} that was deleted since"
        return ""

    def keeps_gate_closed(self, record: PodRecord, view: PodView, bound: Bound, now: float) -> bool:
        """Whether the gate stays closed for now, as its claims have to be allocated first, one after another."""
        refs = record.terms.resource_claims if record.terms is not None else ()
        if view.pod_claim and not refs:
            return True  # `make` sees to it
        for ref in refs:
            claim = self.store.get(view.namespace, ref.name)
            if claim is None or claim.uid != ref.uid or claim.dying:
                return True
            wanted = claim_objects.wanted_devices(bound.allocation, bound, refs, claim.uid)
            if claim.is_allocated and dict(claim.devices) == wanted and claim.is_reserved_for(record.uid):
                continue
            if claim.is_allocated and dict(claim.devices) != wanted and (why := _why_it_stays(record, claim)):
                self._tell_if_late(record, f"its ResourceClaim {claim.name} {why}", now)
                return True
            if record.writing_claim.start(record.uid, self.delayed_queue, now):
                self.out.append(self._next(record, view, claim, wanted, str(bound.node)))
            return True
        if refs:
            record.claims_are_fine()
        return False

    def joins(self, record: PodRecord, view: PodView, ref: ResourceClaimRef, now: float) -> str:
        """The node on which a pod starts beside others with one claim, once that is reserved for it; empty before."""
        claim, beside = self.store.get(view.namespace, ref.name), record.beside
        wanted: dict[str, Device] = {}
        if beside is not None and beside.terms is not None and isinstance(bound := beside.answer, Bound):
            wanted = claim_objects.wanted_devices(bound.allocation, bound, beside.terms.resource_claims, ref.uid)
        if claim is None or claim.uid != ref.uid or claim.dying or not wanted or dict(claim.devices) != wanted:
            why = f"it uses the ResourceClaim {ref.name} beside another pod, and that claim is not allocated yet"
            self._tell_if_late(record, why, now)
            return ""
        if beside is not None and beside.eviction:
            why = f"the pods that use its ResourceClaim {ref.name} are being evicted. It waits until they have ended"
            self._tell_if_late(record, why, now)
            return ""
        if claim.is_reserved_for(record.uid):
            record.claims_are_fine()
            return claim.node
        if len(claim.reserved) >= RESERVED_MAX:
            record.claim_problem = f"its ResourceClaim {ref.name} is used by {RESERVED_MAX} pods, the most of one claim"
        elif record.writing_claim.start(record.uid, self.delayed_queue, now):
            self.out.append(_status(record, claim, "allocate", claim_objects.reserved(claim, view)))
        return ""

    def beside(self, record: PodRecord) -> Iterator[tuple[RequestId, str]]:
        """The other pods that have its slice by ResourceClaims that its request stands for: UID and name."""
        for ref in record.terms.resource_claims if record.terms is not None else ():
            claim = self.store.get(record.namespace, ref.name) if ref.shared else None
            for each in claim.reserved if claim is not None and claim.uid == ref.uid else ():
                if each.get("resource") == "pods" and each.get("uid") != record.uid:
                    yield RequestId(str(each.get("uid"))), str(each.get("name"))

    def watch_for(self, record: PodRecord) -> None:
        """Its request may stand for other pods of its claims, which shows only where they are watched."""
        if record.over and self.store.is_served is None:
            self._watch()

    def _next(
        self, record: PodRecord, view: PodView, claim: ClaimView, wanted: dict[str, Device], node: str
    ) -> events.ProtectClaim | events.WriteClaimStatus:
        if claim.is_allocated and dict(claim.devices) != wanted:
            # Of an earlier slice: the pod's gate is closed, so no kubelet has prepared it.
            return _status(record, claim, "deallocate", claim_objects.deallocated(claim))
        if not claim.is_protected and claim.uid not in self._unprotected:
            patch = claim_objects.protection(claim)
            return events.ProtectClaim(record.uid, claim.namespace, claim.name, patch)
        if not claim.is_allocated:
            body = claim_objects.allocated(claim, wanted, node, view, self.store.classes.ours)
            return _status(record, claim, "allocate", body)
        return _status(record, claim, "allocate", claim_objects.reserved(claim, view))

    def written(self, record: PodRecord | None, wanted: events.ClaimWrite) -> None:
        if record is None:
            self._sweeping.pop((wanted.namespace, wanted.name), None)
        else:
            record.writing_claim = PendingWrite()
            record.claims_are_fine()

    def refused(self, record: PodRecord | None, event: events.Failed[events.ClaimWrite], now: float) -> None:
        """A write was refused: back off, and show why (at once unless the claim only changed)."""
        wanted, initial_s = event.wanted, max(self.config.retry_initial_s, event.retry_after_s)
        key = wanted.namespace, wanted.name
        writing = self._sweeping.setdefault(key, PendingWrite()) if record is None else record.writing_claim
        uid = record.uid if record is not None else RequestId("")
        writing.failed(uid, self.delayed_queue, now, initial_s=initial_s, max_s=self.config.retry_max_s)
        if record is None:
            return
        doing, claim = DOING[wanted.step], self.store.get(*key)
        why = f"its ResourceClaim {wanted.name} cannot be {doing} ({event.status}: {event.message}); retrying"
        if wanted.step == "protect" and event.status == INVALID and claim is not None:
            # No JSON patch of a claim is accepted whose opaque parameters were sent with spaces (tried on 1.37.2).
            remember(self._unprotected, claim.uid, None, at_most=UNPROTECTED_MAX)
        if event.status in CHANGED_MEANWHILE:
            self._tell_if_late(record, why, now)
        else:
            record.claim_problem = why

    def _tell_if_late(self, record: PodRecord, why: str, now: float) -> None:
        since = record.claim_late_since = now if record.claim_late_since is None else record.claim_late_since
        if now >= since + self.config.claim_told_after_s:
            record.claim_problem = why
        else:
            self.delayed_queue.at(record.uid, since + self.config.claim_told_after_s)

    def _watch(self) -> None:
        """Where tickets hand over, claims are watched from the first pod that has one; elsewhere from the start."""
        if self.config.hand_over == "tickets" and not self._watch_wanted:
            self._watch_wanted = True
            self.out.append(events.WatchClaims())

    def sweep(self, now: float) -> None:
        """Deallocate claims of ours that no pod uses. The claim controller does so only with its finalizer, and never
        for a claim that was not reserved. A claim of one pod goes with it."""
        for key, since in list(self.store.unused.items()):
            claim = self.store.get(*key)
            if claim is None or now < since + self.config.claim_left_after_s or any(self.store.users(key)):
                continue
            writing = self._sweeping.setdefault(key, PendingWrite())
            if writing.start(RequestId(""), self.delayed_queue, now):
                body = claim_objects.deallocated(claim)
                self.out.append(events.WriteClaimStatus(RequestId(""), *key, "deallocate", body))


def _status(
    record: PodRecord, claim: ClaimView, step: events.ClaimStep, body: Mapping[str, Any]
) -> events.WriteClaimStatus:
    return events.WriteClaimStatus(record.uid, claim.namespace, claim.name, step, body)


def _why_it_stays(record: PodRecord, claim: ClaimView) -> str:
    """Why a claim keeps the devices that it has; empty where others may replace them."""
    if not claim.is_of_our_driver:
        whose = next((driver for driver, _, _ in claim.devices.values() if driver != DRIVER), "")
        return f"is allocated by the driver {whose}"
    return "is still used by other pods" if claim.is_used_beside(record.uid) else ""

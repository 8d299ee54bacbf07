"""
The requests of a cluster: one per pod of ours, by its UID, from its first sight to its final message.

A pod makes its request when our gate is the last one that holds it: a queueing system (Kueue) admits pods first, and
pods that it holds reserve no places. The request is fixed while the pod waits, except for its node needs, which may be
edited until it is bound: a new revision. A request ends when the pod's status shows that every container has ended, or
when its object is gone: not because it is terminating, and not because of its name (PROTOCOL §7).
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from sluice.contracts.admission.config import GPUS_MAX
from sluice.contracts.admission.stored_request import ResolvedRequest, read_stored
from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import (
    AllocationRequested,
    Bound,
    Pending,
    RequestMessage,
    RequestRejected,
    RequestWithdrawn,
    ResourceClaimRef,
    WithdrawCause,
)
from sluice.contracts.request_syntax import RequestLimits
from sluice_pod_watcher.core.cluster.claims.claim_store import ClaimStore
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.events import Raw
from sluice_pod_watcher.core.cluster.pods.avoided_nodes import AvoidedNodes
from sluice_pod_watcher.core.cluster.pods.granted_annotations import held_by
from sluice_pod_watcher.core.cluster.pods.pod_record import PodRecord
from sluice_pod_watcher.core.cluster.pods.pod_view import PodView
from sluice_pod_watcher.core.cluster.pods.request_terms import RequestTerms, terms_followed, terms_of, terms_of_pod
from sluice_pod_watcher.core.cluster.pods.volume_claims import VolumeTopologies
from sluice_pod_watcher.core.request_phase import phase_of

Change = Literal["", "new", "changed", "ended"]
_OF_WHO_HAS_IT = RequestLimits(max_gpus_per_node=GPUS_MAX)
"""For a pod with a slice: today's limit does not apply if it was granted under another one."""


class PodStore:
    """Every pod of ours. Implements the publisher's `RequestSource`."""

    def __init__(self, config: ClusterConfig) -> None:
        """Start empty."""
        self.config = config
        self.avoided_nodes = AvoidedNodes()
        self.due: dict[RequestId, None] = {}
        self.records: dict[RequestId, PodRecord] = {}
        self._by_name: dict[tuple[str, str], RequestId] = {}
        self._gone: OrderedDict[RequestId, None] = OrderedDict()
        self._limits = RequestLimits(config.max_gpus_per_node, config.driver_capabilities)
        self._asking: dict[RequestId, None] = {}
        self._unknown: dict[RequestId, None] = {}
        """Pods that may have a slice, but whose request is neither on them nor on the bus."""
        self.others_were_listed = False
        """Whether our pods outside the selection are known."""
        self.wait_for_nodes = True
        """Whether pods that terms of requests match have yet to be published."""
        self.claims = ClaimStore()
        """The ResourceClaims that our pods name."""

    # -- for the publisher ----------------------------------------------------------------------------------------

    def all_requests(self) -> Iterable[RequestId]:
        """Every request that is not closed."""
        return [uid for uid, record in self.records.items() if not record.closed]

    def asking(self) -> int:
        """How many seen pods request a slice."""
        return len(self._asking)

    def has_seen_all(self) -> bool:
        """Whether the request of every pod is known, including pods that lost their label or annotation."""
        return self.others_were_listed and not self._unknown

    def phases(self) -> Counter[str]:
        """Pods by phase, for metrics. Walks over all of them."""
        return Counter(
            phase_of(
                record.answer,
                wanted=record.active,
                understood=record.terms is None or record.terms.refusal is None,
                waits=isinstance(record.pending, Pending),
            )
            for record in self.records.values()
            if not record.closed and (record.terms is not None or record.on_bus)
        )

    def may_publish(self, uid: RequestId) -> bool:
        """
        Whether its pod's slice is known: otherwise a wiped bus would grant it a second one.

        A waiting request with affinity terms follows the pods that they match: else it would be placed beside them.
        """
        record = self.records.get(uid)
        if record is None or record.binding_unknown:
            return False
        return not (self.wait_for_nodes and record.active and record.held is None and record.speaks_of_others)

    def word(self, uid: RequestId) -> RequestMessage | None:
        """The message that the bus shall hold of a request; None when there is none."""
        record = self.records.get(uid)
        return record.as_message(self.config.source) if record is not None else None

    def drop(self, uid: RequestId) -> None:
        """The final message is on the bus: remember only that, while its object exists."""
        record = self.records.get(uid)
        if record is None:
            return
        record.closed, record.answer, record.pending = True, None, None
        if record.view is None:
            self._bury(uid)
            self._forget(record)

    # -- from the API server -----------------------------------------------------------------------------------------

    def seen(self, raw: Raw, view: PodView, now: float) -> tuple[PodRecord | None, Change]:
        """A version of a pod. Ignored if older than the known one, or of a pod that is gone."""
        if view.uid in self._gone:
            return None, ""
        record = self.records.get(view.uid)
        if record is not None and record.view is not None and record.view.version >= view.version > 0:
            return record, ""
        other = self.records.get(self._by_name.get((view.namespace, view.name), RequestId("")))
        if other is not None and other.uid != view.uid and other.view is not None:
            if other.view.version > view.version > 0:
                self._bury(view.uid)  # a replayed version of a predecessor: its name was reused since
                return None, ""
            self.gone(other.uid)  # two objects never share a name, so that one is gone
        change: Change = "" if record is not None and record.view is not None else "new"
        if record is None:
            record = self.records[view.uid] = PodRecord(view.uid, view.namespace, view.name, now, now)
        if not view.is_gated:
            record.confirm_by, record.sent = "", ()
        before = self._take_view(record, view)
        held = held_by(view)
        if held is not None and held != record.held:
            record.held = held
            self._say(record)
        self._has_declined(record, view.declined, now)
        if view.has_ended:
            return record, "ended" if self._ended(record, "containers ended") else change
        if before is None or _readable(before) != _readable(view):
            change = self._read_terms(record, raw, now) or change
        self._count(record)
        return record, change

    def gone(self, uid: RequestId) -> PodRecord | None:
        """The object is certainly gone. Returns the record if that ended its request."""
        self._bury(uid)
        record = self.records.get(uid)
        if record is None:
            return None
        for name in record.view.resource_claims if record.view is not None else ():
            self.claims.unused_by(uid, (record.namespace, name))
        record.view, record.needs_read, record.unclaimed = None, False, None
        ended = self._ended(record, "pod gone")
        if self.word(uid) is None:
            self._forget(record)
        elif self._by_name.get((record.namespace, record.name)) == uid:
            del self._by_name[record.namespace, record.name]
        return record if ended else None

    def is_over(self, uid: RequestId) -> None:
        """
        The allocator closed the request of a deleted pod that is unknown here.

        Our own final message was lost, perhaps, by a server that had not synced it. An API server that shows the pod
        again is lagging.
        """
        self._bury(uid)

    def heard(self, uid: RequestId, word: RequestMessage, now: float) -> PodRecord | None:
        """The bus shows this about a request of our source. Returns the record if something follows."""
        record = self.records.get(uid)
        if record is not None and not (isinstance(word, RequestWithdrawn) and word.closing):
            record.closed = False  # the bus lost the final message that it had acknowledged: publish it again
        if isinstance(word, RequestWithdrawn):
            return self._heard_end(record, uid, word, now)
        if record is None:
            over: WithdrawCause | None = "pod gone" if uid in self._gone else None  # its writer did not know that it is
            record = self.records[uid] = PodRecord(uid, word.namespace, word.name, now, now, ended=over)
        record.on_bus = True
        if _counts(record, word):
            record.terms = terms_of(word)
        if isinstance(word, AllocationRequested) and record.held is None:
            record.held = word.held
        if isinstance(word, AllocationRequested) and record.declined is None:
            self._has_declined(record, word.declined, now)
        before = record.revision
        if terms_of(word) == record.terms or record.ended is not None:
            record.revision = max(record.revision, word.revision)
        else:
            record.revision = max(record.revision, word.revision + 1)
        if record.revision > before:
            record.claims_revision = record.revision  # those of an earlier run may have named others
        record.needs_read = record.needs_read or record.view is None
        self._count(record)
        self._say(record)
        return record

    def forget_versions(self) -> None:
        """Everything shown from here on is newer than before, whatever its version."""
        for record in self.records.values():
            if record.view is not None:
                record.view = replace(record.view, version=0)

    def marked(self, view: PodView, now: float) -> PodRecord | None:
        """
        A pod outside our selection that is one of ours: its label was removed, and the bus may have lost its request.
        Only its new version is recorded. Returns the record if it has to be read by name.
        """
        uid = view.uid
        if uid in self._gone:
            return None
        known = self.records.get(uid)
        if known is not None:
            is_news = known.active and known.view is not None and view.version > known.view.version
            return self.mark_for_read(uid) if is_news else None
        record = self.records[uid] = PodRecord(uid, view.namespace, view.name, now, now)
        record.needs_read = True
        self._count(record)
        return record

    def mark_for_read(self, uid: RequestId) -> PodRecord | None:
        """It should have been seen but was not: it has to be read by name."""
        record = self.records.get(uid)
        if record is None:
            return None
        if record.ended is not None:
            self.gone(uid)  # nothing depends on it now
            return None
        record.mark_for_read()
        return record

    def claims_read(self, record: PodRecord, places: VolumeTopologies, now: float) -> Change:
        """The topologies of its volumes are known: its request can be published."""
        record.places, raw, record.unread = places, record.unread, None
        record.places_for = record.answer.allocation if isinstance(record.answer, Bound) else None
        if raw is None or not record.active or record.view is None:
            return ""
        return self._read_terms(record, raw, now)

    def claim_changed(self, record: PodRecord, now: float) -> Change:
        """
        Its ResourceClaim was seen, or is gone. A request that waited for it can be published, and one without a slice
        names the present one.
        """
        view, raw = record.view, record.unclaimed
        if view is None or not record.active:
            return ""
        if raw is not None:
            return self._read_terms(record, raw, now)
        refs = self._claim_refs(record, view)
        waits = view.is_gated and record.held is None and not isinstance(record.answer, Bound)
        if not waits or not refs or record.terms is None or record.is_refused or refs == record.terms.resource_claims:
            return ""
        return self._take_terms(record, replace(record.terms, resource_claims=refs), now)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _claim_refs(self, record: PodRecord, view: PodView) -> tuple[ResourceClaimRef, ...] | None:
        """Its ResourceClaims as the bus names them; None while they are not known."""
        if not view.pod_claim or record.asked is None:
            return ()
        claim = self.claims.get(view.namespace, view.pod_claim)
        if claim is not None and claim.owner == view.uid and not (claim.dying and view.is_gated):
            requests = {each.container: each.container for each in record.asked.pod.claims}
            return (ResourceClaimRef(uid=claim.uid, name=claim.name, requests=requests),)
        if view.is_gated or not (self.claims.was_listed or self.claims.is_served is False):
            return None
        return record.terms.resource_claims if record.terms is not None else ()  # it runs, and its claim was deleted

    def _heard_end(
        self, record: PodRecord | None, uid: RequestId, word: RequestWithdrawn, now: float
    ) -> PodRecord | None:
        if record is None:
            if word.closing:
                self._bury(uid)  # an API server that shows it again is lagging: no UID lives twice
                return None  # any other message is not final: the bus lost that of a closed pod
            record = self.records[uid] = PodRecord(uid, "", "", now, now, ended=word.cause, held=word.held)
        record.on_bus = True
        record.revision = max(record.revision, word.revision)
        record.held = record.held or word.held
        if record.ended is None:
            record.ended = word.cause
            self._count(record)
        if word.closing:
            self.drop(uid)
        self._say(record)
        return record

    def _take_view(self, record: PodRecord, view: PodView) -> PodView | None:
        """Record a new version of a pod. Returns the one before."""
        before, record.view, record.needs_read = record.view, view, record.confirm_by == "read"
        record.namespace, record.name = view.namespace, view.name
        self._by_name[view.namespace, view.name] = view.uid
        for name in view.resource_claims:
            self.claims.used_by(view.uid, (view.namespace, name))
        return before

    def _has_declined(self, record: PodRecord, allocation: AllocationId | None, now: float) -> None:
        """A declined slice is no answer: the pod keeps waiting."""
        if allocation is not None and allocation != record.declined:
            record.declined = allocation
            self._say(record)
        if record.has_declined(record.answer):
            record.answer, record.quiet_since = None, now

    def _ended(self, record: PodRecord, cause: WithdrawCause) -> bool:
        """Close its request for good. Returns whether that has to be published."""
        if record.ended is not None:
            return False
        record.ended = cause
        self._count(record)
        self._say(record)
        return record.terms is not None

    def _read_terms(self, record: PodRecord, raw: Raw, now: float) -> Change:
        """Parse the request of a pod."""
        view = record.view
        assert view is not None
        found = raw.get("spec")
        spec = found if isinstance(found, dict) else {}
        if record.asked is None and view.request:
            asked = read_stored(view.request, spec, self._limits if record.held is None else _OF_WHO_HAS_IT)
            if isinstance(asked, ResolvedRequest):
                record.asked = asked
            elif record.held is None and not record.is_passed_over:
                return self._take_terms(record, RequestTerms(refusal=asked), now)
        if record.is_passed_over:
            return ""
        if record.asked is None or (not view.is_gated and record.held is None and record.terms is None):
            return ""  # it requests nothing, or runs without us
        is_refused_with_its_slice = record.held is not None and record.is_refused
        is_let_go = isinstance(record.answer, Bound) or not view.is_gated
        if record.terms is not None and is_let_go and not is_refused_with_its_slice:
            return self._follow(record, record.terms, view, spec)
        if record.terms is None and view.others_gates:
            return ""  # other gates come first: a slice beside a closed gate would be idle
        if view.claims and record.places is None and view.is_gated and record.held is None:
            record.unread = raw  # the topologies of its volumes are read first (`pod_reconciler`)
            return ""
        refs = self._claim_refs(record, view)
        if refs is None:
            record.unclaimed = raw  # `claim_reconciler` makes it
            return ""
        record.unclaimed = None
        shun = self.avoided_nodes.nodes(view.owner, record.since) if view.owner and record.held is None else ()
        terms = terms_of_pod(
            record.asked,
            spec,
            view,
            places=record.places or (),
            held=record.held,
            shun=shun,
            resource_claims=refs,
        )
        return self._take_terms(record, terms, now)

    def _follow(self, record: PodRecord, terms: RequestTerms, view: PodView, spec: Raw) -> Change:
        """A pod that has its slice: update the labels that others' terms match, which may be edited while it runs."""
        followed = terms_followed(terms, view, spec)
        if followed != terms:
            record.revision += 1
            record.terms = followed
            self._say(record)
        return ""

    def _take_terms(self, record: PodRecord, terms: RequestTerms, now: float) -> Change:
        if terms == record.terms or (record.terms is not None and record.terms.claims and terms.refusal is not None):
            return ""  # an invalid edit changes nothing
        change: Change = "new" if record.terms is None else "changed"
        record.revision += record.terms is not None
        if record.terms is None or record.terms.resource_claims != terms.resource_claims:
            record.claims_revision = record.revision
        record.since = now if record.terms is None else record.since
        record.quiet_since = now
        record.terms = terms
        self._count(record)
        self._say(record)
        return change

    def _count(self, record: PodRecord) -> None:
        seen = record.view is not None  # a pod known only from the bus may be gone; the count must be reachable
        if seen and record.ended is None and record.terms is not None and record.terms.claims:
            self._asking[record.uid] = None
        else:
            self._asking.pop(record.uid, None)
        if record.ended is None and record.terms is None and (record.held is not None or not seen):
            self._unknown[record.uid] = None
        else:
            self._unknown.pop(record.uid, None)

    def _say(self, record: PodRecord) -> None:
        self.due[record.uid] = None

    def _bury(self, uid: RequestId) -> None:
        self._gone[uid] = None
        while len(self._gone) > self.config.tombstones_max:
            self._gone.popitem(last=False)

    def _forget(self, record: PodRecord) -> None:
        self.records.pop(record.uid, None)
        self._asking.pop(record.uid, None)
        self._unknown.pop(record.uid, None)
        if self._by_name.get((record.namespace, record.name)) == record.uid:
            del self._by_name[record.namespace, record.name]


def _counts(record: PodRecord, word: AllocationRequested | RequestRejected) -> bool:
    """Whether the request on the bus counts, rather than the pod's spec."""
    if isinstance(word, RequestRejected) and record.held is not None:
        return False  # a pod with a slice has a request
    if record.terms is None:
        return True  # its spec was never parsed here, or it had ended by then
    if not record.active or record.view is None:
        return False
    if not record.view.is_gated:
        return True  # its spec has been pinned since, and differs now
    # An invalid edit changes nothing, whichever watcher reads it.
    return record.asked is not None and record.is_refused and isinstance(word, AllocationRequested)


def _readable(view: PodView) -> tuple[object, ...]:
    """The parts of a pod that its request is parsed from. After a decline, its volumes count as well."""
    return (view.generation, view.editable, view.request, view.gates, view.is_ignored, view.labels, view.declined)

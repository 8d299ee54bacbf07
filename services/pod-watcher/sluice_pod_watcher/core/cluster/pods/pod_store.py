"""The requests of a cluster: one per pod of ours, by its UID. It is made when our gate is the last (Kueue admits pods
first), is fixed but for its node needs, which may be edited until it is bound, and ends when the pod's status shows
that every container has ended, or its object is gone (PROTOCOL §7)."""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter
from typing import Literal

from sluice.contracts import messages as msg
from sluice.contracts.admission.config import GPUS_MAX
from sluice.contracts.admission.stored_request import read_stored
from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.kube.names import is_claim_name
from sluice.contracts.manifests.resource_claims import two_vocabularies
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import RequestLimits
from sluice_pod_watcher.core import publisher, workqueue
from sluice_pod_watcher.core.cluster.claims import claim_request_index, claim_store
from sluice_pod_watcher.core.cluster.claims.own_claims import OwnClaims, read_own_claims, resolved, shared_and_more
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.events import Raw, mapping_in
from sluice_pod_watcher.core.cluster.pods.granted_annotations import held_by
from sluice_pod_watcher.core.cluster.pods.pod_record import AvoidedNodes, PodRecord
from sluice_pod_watcher.core.cluster.pods.pod_view import PodView
from sluice_pod_watcher.core.cluster.pods.request_terms import RequestTerms, terms_followed, terms_of, terms_of_pod
from sluice_pod_watcher.core.cluster.pods.volume_claims import VolumeTopologies

Change = Literal["", "new", "changed", "ended"]
_OF_WHO_HAS_IT = RequestLimits(max_gpus_per_node=GPUS_MAX)  # a pod that has a slice may have it under another limit


class PodStore:
    """Every pod of ours. Implements the publisher's `RequestSource`."""

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.avoided_nodes = AvoidedNodes()
        self.due: dict[RequestId, None] = {}
        self.records: dict[RequestId, PodRecord] = {}
        self._by_name: dict[tuple[str, str], RequestId] = {}
        self._gone: OrderedDict[RequestId, None] = OrderedDict()
        self._limits = RequestLimits(config.max_gpus_per_node, config.driver_capabilities)
        self._asking: dict[RequestId, None] = {}
        self._unknown: dict[RequestId, None] = {}  # may have a slice, with a request that is nowhere to be read
        self.others_were_listed = False  # whether our pods outside the selection are known
        self.wait_for_nodes = True  # whether pods that terms of requests match have yet to be published
        self.claims = claim_store.ClaimStore()  # the ResourceClaims that our pods name
        self.claim_requests = claim_request_index.ClaimRequestIndex()  # the request that stands for each ResourceClaim

    def all_requests(self) -> Iterable[RequestId]:
        return [uid for uid, record in self.records.items() if not record.closed]

    def asking(self) -> int:
        return len(self._asking)

    def has_seen_all(self) -> bool:
        """Whether the request of every pod is known, including pods that lost their label or annotation."""
        return self.others_were_listed and not self._unknown

    def phases(self) -> Counter[str]:
        return Counter(
            publisher.phase_of(
                record.answer,
                wanted=record.active,
                understood=record.terms is None or record.terms.refusal is None,
                waits=isinstance(record.pending, msg.Pending),
            )
            for record in self.records.values()
            if not record.closed and (record.terms is not None or record.on_bus)
        )

    def may_publish(self, uid: RequestId) -> bool:
        """Whether its pod's slice is known: otherwise a wiped bus would grant it a second one. A waiting request with
        affinity terms follows the pods that they match: else it would be placed beside them."""
        record = self.records.get(uid)
        if record is None or record.binding_unknown:
            return False
        return not (self.wait_for_nodes and record.active and record.held is None and record.speaks_of_others)

    def word(self, uid: RequestId) -> msg.RequestMessage | None:
        record = self.records.get(uid)
        return record.as_message(self.config.source) if record is not None else None

    def drop(self, uid: RequestId) -> None:
        """The final message is on the bus: remember only that, while its object exists."""
        record = self.records.get(uid)
        if record is None:
            return
        record.closed, record.answer, record.pending = True, None, None
        if record.view is None:
            self.bury(uid)
            self._forget(record)

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
                self.bury(view.uid)  # a replayed version of a predecessor: its name was reused since
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
        self._note_declined(record, view.declined, now)
        if view.has_ended:
            return record, "ended" if self._ended(record, "containers ended") else change
        if before is None or _readable(before) != _readable(view):
            change = self._read_terms(record, raw, now) or change
        self._count(record)
        return record, change

    def left(self, view: PodView) -> bool:
        """Whether this version of a pod no longer has our marks, and there is nothing about it to remember."""
        record = self.records.get(view.uid)
        is_over = record is not None and record.terms is None and not record.on_bus
        if record is None or not is_over or not view.is_left_to_others:
            return False
        self._forget(record)
        return True

    def gone(self, uid: RequestId) -> PodRecord | None:
        """The object is certainly gone. Returns the record if that ended its request."""
        self.bury(uid)
        record = self.records.get(uid)
        if record is None:
            return None
        claims = record.view.resource_claims if record.view is not None else {}
        record.view, record.needs_read, record.unclaimed = None, False, None
        record.shared = record.beside = None
        ended = self._ended(record, "pod gone")
        for name in claims.values() if not record.over else ():
            self.claims.unused_by(uid, (record.namespace, name))
        if self.word(uid) is None:
            self._forget(record)
        else:
            self._free_name(record)
        return record if ended else None

    def heard(self, uid: RequestId, word: msg.RequestMessage, now: float) -> PodRecord | None:
        """The bus shows this about a request of our source. Returns the record if something follows."""
        record = self.records.get(uid)
        if record is not None and not (isinstance(word, msg.RequestWithdrawn) and word.closing):
            record.closed = False  # the bus lost the final message that it had acknowledged: publish it again
        if isinstance(word, msg.RequestWithdrawn):
            return self._heard_end(record, uid, word, now)
        if record is None:
            over: msg.WithdrawCause | None = "pod gone" if uid in self._gone else None  # its writer did not know
            record = self.records[uid] = PodRecord(uid, word.namespace, word.name, now, now, ended=over)
        record.on_bus = True
        if _counts(record, word):
            record.terms = terms_of(word)
            for ref in record.terms.resource_claims:
                self.claims.used_by(uid, (word.namespace, ref.name))
        if isinstance(word, msg.AllocationRequested) and record.held is None:
            record.held = word.held
        if isinstance(word, msg.AllocationRequested) and record.declined is None:
            self._note_declined(record, word.declined, now)
        before = record.revision
        is_settled = record.ended is not None or terms_of(word) == record.terms
        record.revision = max(record.revision, word.revision + (not is_settled))
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
        """A pod outside our selection that is one of ours: its label was removed, and the bus may have lost its
        request. Only its new version is recorded. Returns the record if it has to be read by name."""
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
        record.places_for = record.answer.allocation if isinstance(record.answer, msg.Bound) else None
        if raw is None or not record.active or record.view is None:
            return ""
        return self._read_terms(record, raw, now)

    def take_freed(self) -> list[RequestId]:
        """Pods whose ResourceClaim has no request any more: one of them asks next."""
        freed, self.claim_requests.freed = self.claim_requests.freed, {}
        return [uid for key in freed for uid in self.claims.users(key)]

    def claim_changed(self, record: PodRecord, now: float) -> Change:
        """Its claim was seen, or is gone: a waiting request can be published, or names the present one."""
        view, raw = record.view, record.unclaimed
        if record.over and self._ended(record, record.over):
            return "ended"
        if view is None or not record.active:
            return ""
        if raw is not None:
            return self._read_terms(record, raw, now)
        refs = self._claim_refs(record, view)
        waits = view.is_gated and record.held is None and not isinstance(record.answer, msg.Bound)
        if not waits or not refs or record.terms is None or record.is_refused or refs == record.terms.resource_claims:
            return ""
        return self._take_terms(record, replace(record.terms, resource_claims=refs), now)

    def _claim_refs(self, record: PodRecord, view: PodView) -> tuple[msg.ResourceClaimRef, ...] | None:
        if not view.pod_claim or record.asked is None:
            return ()
        claim = self.claims.get(view.namespace, view.pod_claim)
        if claim is not None and claim.owner == view.uid and not (claim.dying and view.is_gated):
            requests = {each.container: each.container for each in record.asked.pod.claims}
            return (msg.ResourceClaimRef(uid=claim.uid, name=claim.name, requests=requests),)
        if view.is_gated or not (self.claims.was_listed or self.claims.is_served is False):
            return None
        return record.terms.resource_claims if record.terms is not None else ()  # it runs, and its claim was deleted

    def _heard_end(
        self, record: PodRecord | None, uid: RequestId, word: msg.RequestWithdrawn, now: float
    ) -> PodRecord | None:
        if record is None:
            if word.closing:
                self.bury(uid)
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
        before, record.view, record.needs_read = record.view, view, record.confirm_by == "read"
        record.namespace, record.name = view.namespace, view.name
        self._by_name[view.namespace, view.name] = view.uid
        for name in view.resource_claims.values():
            self.claims.used_by(view.uid, (view.namespace, name))
        return before

    def _note_declined(self, record: PodRecord, allocation: AllocationId | None, now: float) -> None:
        """A declined slice is no answer: the pod keeps waiting."""
        if allocation is not None and allocation != record.declined:
            record.declined = allocation
            self._say(record)
        if record.has_declined(record.answer):
            record.answer, record.quiet_since = None, now

    def _ended(self, record: PodRecord, cause: msg.WithdrawCause) -> bool:
        if record.ended is not None:
            return False
        record.over = cause if self._is_used_by_others(record) else ""
        if record.over:
            return False
        record.ended = cause
        self._count(record)
        self._say(record)
        return record.terms is not None

    def _is_used_by_others(self, record: PodRecord) -> bool:
        for ref in record.terms.resource_claims if record.terms is not None and not record.is_refused else ():
            claim = self.claims.get(record.namespace, ref.name)
            if claim is not None and claim.uid == ref.uid and claim.is_used_beside(record.uid):
                return True
            if not (is_claim_name(ref.name) or self.claims.was_listed or self.claims.is_served is False):
                return True
        return False

    def _read_terms(self, record: PodRecord, raw: Raw, now: float) -> Change:
        view = record.view
        assert view is not None
        spec = mapping_in(raw, "spec")
        refusal = self._read_words(record, view, spec)
        if record.is_passed_over:
            return ""
        own = self._own_claims(record, view, raw, spec) if refusal is None else OwnClaims(refusal=refusal)
        if own.refusal is not None:
            return self._take_terms(record, RequestTerms(refusal=own.refusal), now)
        if own.missing or (not view.is_gated and record.held is None and record.terms is None):
            return ""  # it waits for what it names, or runs without us
        is_refused_with_its_slice = record.held is not None and record.is_refused
        is_let_go = isinstance(record.answer, msg.Bound) or not view.is_gated
        if record.terms is not None and is_let_go and not is_refused_with_its_slice and record.is_understood:
            record.unclaimed = None
            return self._follow(record, record.terms, view, spec)
        return self._ask(record, view, raw, own, now)

    def _read_words(self, record: PodRecord, view: PodView, spec: Raw) -> Refusal | None:
        if record.asked is not None or record.by_own_claims or not view.request:
            return None
        asked = read_stored(view.request, spec, self._limits_of(record))
        if isinstance(asked, Refusal):
            return asked if record.held is None else None
        if not asked.pod.claims and view.has_own_claims:
            record.by_own_claims = True
        else:
            record.asked = asked
        return None

    def _ask(self, record: PodRecord, view: PodView, raw: Raw, own: OwnClaims, now: float) -> Change:
        spec = dict(mapping_in(raw, "spec"))
        asked = resolved(own.request) if own.request is not None else record.asked
        if asked is None or (record.terms is None and view.others_gates):
            return ""  # it requests nothing; or other gates come first: a slice beside a closed gate would be idle
        if view.claims and record.places is None and view.is_gated and record.held is None:
            record.unread = raw  # the topologies of its volumes are read first (`pod_reconciler`)
            return ""
        refs = own.refs or self._claim_refs(record, view)
        if refs is None:
            record.unclaimed = raw  # `claim_reconciler` makes it
            return ""
        record.unclaimed = raw if record.by_own_claims else None
        shun = self.avoided_nodes.nodes(view.owner, record.since) if view.owner and record.held is None else ()
        places, held, by = record.places or (), record.held, own.request
        terms = terms_of_pod(asked, spec, view, places=places, held=held, shun=shun, resource_claims=refs, by_claims=by)
        return self._take_terms(record, terms, now)

    def _limits_of(self, record: PodRecord) -> RequestLimits:
        return self._limits if record.held is None else _OF_WHO_HAS_IT

    def _own_claims(self, record: PodRecord, view: PodView, raw: Raw, spec: Raw) -> OwnClaims:
        """What the pod's own ResourceClaims ask for. Empty for one that is settled already, or has none. A pod that
        asks in other words may name claims of other drivers, but none of ours."""
        is_settled = record.terms is not None and (isinstance(record.answer, msg.Bound) or not view.is_gated)
        by_both = bool(view.pod_claim) and view.has_own_claims and view.is_gated and record.terms is None
        is_new = record.held is not None or view.is_gated
        if is_settled or not ((record.by_own_claims and is_new) or (record.asked is not None and by_both)):
            return OwnClaims()
        found = read_own_claims(view, spec, self.claims, self._limits_of(record))
        if record.claim_missing and not found.missing:
            record.claims_are_fine()
        record.claim_missing, record.unclaimed = found.missing, raw
        if not record.by_own_claims:
            return OwnClaims(refusal=two_vocabularies()) if found.is_ours else OwnClaims(missing=found.missing)
        found = self._beside_another(record, found)
        record.is_not_ours = record.shared is None and not found.is_ours and not found.missing and record.terms is None
        record.claim_warnings = found.request.warnings if found.request is not None else ()
        return found

    def _beside_another(self, record: PodRecord, found: OwnClaims) -> OwnClaims:
        """A pod whose ResourceClaim is another pod's request already: it asks for nothing, and starts beside that."""
        record.shared = record.beside = None
        for ref in found.refs if record.terms is None and record.held is None else ():
            other = self.records.get(self.claim_requests.of(ref.uid) or RequestId(""))
            if other is None or other is record:
                continue
            if len(found.refs) > 1:
                return OwnClaims(refusal=shared_and_more(ref.name, other.name))
            record.shared, record.beside = ref, other
            return OwnClaims()
        return found

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
        for uid in self.claim_requests.update(record):
            loser = self.records[uid]
            loser.terms = None  # not published: another pod's request was on the bus already
            self._count(loser)
        seen = record.view is not None  # a pod known only from the bus may be gone; the count must be reachable
        asks = seen and record.ended is None and record.terms is not None and bool(record.terms.claims)
        unknown = record.ended is None and record.terms is None and (record.held is not None or not seen)
        for those, belongs in ((self._asking, asks), (self._unknown, unknown)):
            if belongs:
                those[record.uid] = None
            else:
                those.pop(record.uid, None)

    def _say(self, record: PodRecord) -> None:
        self.due[record.uid] = None

    def bury(self, uid: RequestId) -> None:
        """The pod is gone. An API server that shows it again is lagging: no UID lives twice."""
        workqueue.remember(self._gone, uid, None, at_most=self.config.tombstones_max)

    def _forget(self, record: PodRecord) -> None:
        for name in record.view.resource_claims.values() if record.view is not None else ():
            self.claims.unused_by(record.uid, (record.namespace, name))
        self.records.pop(record.uid, None)
        self._asking.pop(record.uid, None)
        self._unknown.pop(record.uid, None)
        self.claim_requests.forget(record)
        self._free_name(record)

    def _free_name(self, record: PodRecord) -> None:
        if self._by_name.get((record.namespace, record.name)) == record.uid:
            del self._by_name[record.namespace, record.name]


def _counts(record: PodRecord, word: msg.AllocationRequested | msg.RequestRejected) -> bool:
    if isinstance(word, msg.RequestRejected) and record.held is not None:
        return False  # a pod with a slice has a request
    if record.terms is None:
        return True  # its spec was never parsed here, or it had ended by then
    if not record.active or record.view is None:
        return False
    if not record.view.is_gated:
        return True  # its spec has been pinned since, and differs now
    # An invalid edit changes nothing, whichever watcher reads it.
    return record.asked is not None and record.is_refused and isinstance(word, msg.AllocationRequested)


_readable = attrgetter(
    "generation", "editable", "request", "gates", "is_ignored", "labels", "declined", "resource_claims"
)
"""The parts of a pod that its request is parsed from. After a decline, its volumes count as well."""

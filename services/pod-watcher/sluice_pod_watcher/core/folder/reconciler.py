"""Reconcile the pods of the folder, from manifests, answers, and our requests on the bus. An invalid edit disturbs no
pod: it is refused under an id of its own. An edit of a request without a slice is a new revision; with one, a new pod.
What another process ended stays ended, and its document gets a new request after the next listing, which proves that it
exists; an evicted pod's does at once, in the place of a controller."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from sluice.contracts import messages as msg
from sluice.contracts.ids import RequestId
from sluice.contracts.reasons import shorten
from sluice_pod_watcher.core import log_lines
from sluice_pod_watcher.core.folder.events import (
    FolderConfig,
    IdentityRecord,
    ManifestTerms,
    RequestRevision,
    WriteLogLine,
)
from sluice_pod_watcher.core.folder.identities import DocumentKey, Identities
from sluice_pod_watcher.core.folder.manifests import FolderView, ManifestPod
from sluice_pod_watcher.core.publisher import for_its_pod
from sluice_pod_watcher.core.same_fields import like

EDIT = " (edit)"  # marks the identity of an invalid edit, beside the pod that it would have changed


@dataclass(slots=True)
class FolderReconciler:
    """The requests of the folder: the message of each, and log lines about changes (`told`, taken by the watcher)."""

    config: FolderConfig
    identities: Identities
    answers: dict[RequestId, msg.BindingMessage] = field(default_factory=dict)
    due: dict[RequestId, None] = field(default_factory=dict)  # requests to compare with the bus
    told: list[WriteLogLine] = field(default_factory=list)
    _since: dict[DocumentKey, float] = field(default_factory=dict)  # since when it is missing or broken, if that waits
    _left_alone: Mapping[DocumentKey, ManifestPod] = field(default_factory=dict)
    _wanted: Mapping[DocumentKey, ManifestPod] = field(default_factory=dict)  # the last listing, for evicted pods
    _evicted: dict[RequestId, None] = field(default_factory=dict)  # evicted requests whose outcome is not published yet
    _words: dict[RequestId, tuple[IdentityRecord, bool, msg.RequestMessage]] = field(default_factory=dict)
    """The message of each request, and its inputs: each listing needs all of them again."""

    def message_of(self, record: IdentityRecord) -> msg.RequestMessage:
        last = record.asks[-1]
        about: dict[str, Any] = {"revision": last.revision, "source": self.config.source}
        if record.ended is not None:
            closing = isinstance(self.answers.get(record.uid), msg.Released)
            return msg.RequestWithdrawn(**about, cause=record.ended, held=record.held, closing=closing)
        namespace = record.namespace if record.name or last.refusal is None else ""
        about |= {"origin": record.file, "namespace": namespace, "name": record.name}
        if last.refusal is not None:
            return msg.RequestRejected(**about, refusal=last.refusal)
        owned = {"owner": record.uid, "held": record.held, "labels": dict(last.terms.labels)}
        return like(msg.AllocationRequested, last.terms, **about, **owned, claims=last.claims)

    def all_requests(self) -> tuple[RequestId, ...]:
        return tuple(record.uid for record in self.identities.all())

    def asking(self) -> int:
        return sum(1 for record in self.identities.living() if record.asks[-1].claims)

    def has_seen_all(self) -> bool:
        return True

    def may_publish(self, uid: RequestId) -> bool:
        """Whether its identity is on disk: nothing is published before."""
        return self.identities.is_saved(uid)

    def word(self, uid: RequestId) -> msg.RequestMessage | None:
        record = self.identities.get(uid)
        if record is None:
            return None
        released = isinstance(self.answers.get(uid), msg.Released)
        known = self._words.get(uid)
        if known is None or known[0] is not record or known[1] != released:
            known = self._words[uid] = record, released, self.message_of(record)
        return known[2]

    def counts_at(self) -> float | None:
        """When a listing could settle what does not count yet; None if there is nothing open."""
        return min(self._since.values()) + self.config.gone_grace_s if self._since else None

    def drop(self, uid: RequestId) -> None:
        self.identities.drop(uid)
        self.answers.pop(uid, None)
        self._words.pop(uid, None)

    def holders(self) -> list[DocumentKey]:
        return [(each.file, each.document) for each in self.identities.living() if each.asks[-1].claims]

    def listed(self, view: FolderView, now: float) -> None:
        since, self._since = self._since, {}
        self._wanted = view.wanted
        trouble = {(file, ""): ManifestPod("", "", "", refusal=refusal) for file, refusal in view.broken.items()}
        for place, found in view.wanted.items():
            refused_edit = self._settle(place, found)
            if refused_edit is not None:
                trouble[place[0], place[1] + EDIT] = refused_edit
        asked_in = {file for file, _ in self.holders()}
        for place, found in trouble.items():
            harmless = not place[1] and place[0] not in asked_in
            if self.identities.at(place) is not None or harmless or self._counts(place, since, now):
                self._settle(place, found)
        for record in self.identities.living():
            place = (record.file, record.document)
            if self._is_trouble(place):
                if place not in trouble:
                    self._end(record, "is valid again, or deleted")
            elif place not in view.wanted and record.file not in view.broken and self._counts(place, since, now):
                self._end(record, "was deleted")
        self._leave_alone(view.asking_nothing)

    def _settle(self, place: DocumentKey, found: ManifestPod) -> ManifestPod | None:
        """Publish what was found in a document. Returns what cannot be published because its pod exists already."""
        record = self.identities.at(place)
        if record is None:
            self._begin(place, found)
            return None
        last = record.asks[-1]
        if (last.claims, last.terms, last.refusal) == (found.claims, found.terms, found.refusal):
            self.due[record.uid] = None
        elif last.claims and found.refusal is not None:
            return found
        elif last.claims and self._has_slice(record):
            if _takes_the_same(last, found):
                # Once it is bound, its placement policy no longer counts, but labels that others' terms match do.
                host = msgspec.structs.replace(last.terms.host, **_of_pods(found.terms.host))
                followed = replace(last.terms, host=host, labels=found.terms.labels)
                if followed != last.terms:
                    self.identities.say(record.uid, replace(last, revision=last.revision + 1, terms=followed))
                self.due[record.uid] = None
                return None
            self._end(record, "was changed after it got its slice: it is a new pod now")
            self._begin(place, found)
        else:
            ask = like(RequestRevision, found, revision=last.revision + 1)
            self._tell_ask(self.identities.say(record.uid, ask))
        return None

    def _begin(self, place: DocumentKey, found: ManifestPod) -> None:
        ask = like(RequestRevision, found, revision=1)
        self._tell_ask(self.identities.begin(place, found.namespace, found.name, ask))

    def _tell_ask(self, record: IdentityRecord) -> None:
        self.due[record.uid] = None
        self.told.append(log_lines.stays(record) if record.document.endswith(EDIT) else log_lines.asks(record))
        self.told += log_lines.warnings(record)

    def _end(self, record: IdentityRecord, why: str) -> None:
        self.identities.end(record.uid, "pod gone")
        self.due[record.uid] = None
        self.told.append(log_lines.ended(record, why))

    @staticmethod
    def _is_trouble(place: DocumentKey) -> bool:
        """Whether it stands for a broken file or a refused edit, which holds no slice."""
        return not place[1] or place[1].endswith(EDIT)

    def _counts(self, place: DocumentKey, since: Mapping[DocumentKey, float], now: float) -> bool:
        began = since.get(place, now)
        if now - began >= self.config.gone_grace_s:
            return True
        self._since[place] = began
        return False

    def _leave_alone(self, asking_nothing: Mapping[DocumentKey, ManifestPod]) -> None:
        for place, found in asking_nothing.items():
            before = self._left_alone.get(place)
            if before is None or before.terms.warnings != found.terms.warnings:
                self.told += log_lines.asks_nothing(place[0], found)
        self._left_alone = asking_nothing

    def answered(self, uid: RequestId, answer: msg.BindingMessage) -> None:
        record, answer = self.identities.get(uid), for_its_pod(answer)
        if record is None:
            return
        if self.answers.get(uid) != answer:
            self.answers[uid] = answer
            self.told.append(log_lines.answered(log_lines.pod(record), uid, answer, record.held))
        self.judge(record)

    def judge(self, record: IdentityRecord) -> None:
        answer, had = self.answers.get(record.uid), record.held
        if isinstance(answer, msg.Bound):
            if not answer.is_for(had):
                return  # sent before the broker was wiped: the pod stays where it is, and is bound to that again
            record = self._remember_held(record, msg.Held(node=answer.node, allocation=answer.allocation))
        if isinstance(answer, msg.Released):
            if record.ended is None:
                self._end(record, "lost its slice")
            self.due[record.uid] = None
        elif record.ended is None and isinstance(answer, msg.Bound) and had is None and _is_too_late(record, answer):
            self._end(record, "was changed after its slice was granted: it is a new pod now")
            last = record.asks[-1]
            self._begin((record.file, record.document), _found(record, last))

    def evict(self, uid: RequestId, why: str) -> None:
        """The allocator orders an eviction, which it judged by the request. One that ended has no slice any more."""
        record = self.identities.get(uid)
        if record is None or not (record.asks[-1].claims or record.ended is not None):
            return
        self._evicted[uid] = None
        if record.ended is None:
            self._end(record, f"is evicted ({shorten(why)})")
            place = (record.file, record.document)
            found = self._wanted.get(place)
            self._begin(place, found if found is not None and found.claims else _found(record, record.asks[-1]))

    def refused_no_more(self, uid: RequestId) -> None:
        if isinstance(self.answers.get(uid), msg.Refused):
            del self.answers[uid]
            self.due[uid] = None

    def take_evicted(self) -> list[RequestId]:
        """Evicted requests whose end is on disk: after an earlier crash the pod would keep its old id."""
        if not self._evicted:
            return []
        saved = [uid for uid in self._evicted if self.identities.is_saved(uid)]
        for uid in saved:
            del self._evicted[uid]
        return [uid for uid in saved if uid in self.identities]

    def _remember_held(self, record: IdentityRecord, held: msg.Held) -> IdentityRecord:
        """Publish with the request where its slice is: a wiped broker will not know."""
        if record.held == held:
            return record
        self.due[record.uid] = None
        return self.identities.hold(record.uid, held)

    def heard(self, uid: RequestId, message: msg.RequestMessage) -> bool:
        """The bus shows this about a request of our source. Returns whether it was unknown: then its answer counts."""
        record = self.identities.get(uid)
        if record is None:
            return self._adopt(uid, message)
        if isinstance(message, msg.RequestWithdrawn):
            self._ended_by_other(record, message)
        elif record.ended is None and message.revision > record.asks[-1].revision:
            self.identities.say(uid, _ask(message))
            self.due[uid] = None
        return False

    def _ended_by_other(self, record: IdentityRecord, message: msg.RequestWithdrawn) -> None:
        if record.ended is not None:
            return
        self.told.append(log_lines.ended(record, "was withdrawn by another process"))
        if message.closing:
            self.drop(record.uid)
            return
        last = record.asks[-1]
        if message.revision != last.revision:
            self.identities.say(record.uid, replace(last, revision=message.revision))
        self.identities.end(record.uid, message.cause)
        self.due[record.uid] = None

    def _adopt(self, uid: RequestId, message: msg.RequestMessage) -> bool:
        if isinstance(message, msg.RequestWithdrawn):
            if message.closing:
                return False
            asks = (RequestRevision(message.revision),)
            self.identities.adopt(IdentityRecord(uid, "", "", "", "", asks, message.cause, message.held))
            self.due[uid] = None
            return True
        held = message.held if isinstance(message, msg.AllocationRequested) else None
        ended: msg.WithdrawCause | None = "pod gone" if self.identities.at(_place(message)) is not None else None
        who = (*_place(message), message.namespace, message.name)
        self.identities.adopt(IdentityRecord(uid, *who, (_ask(message),), ended, held))
        self.due[uid] = None
        return True

    def _has_slice(self, record: IdentityRecord) -> bool:
        return record.held is not None or isinstance(self.answers.get(record.uid), msg.Bound)


def _place(message: msg.AllocationRequested | msg.RequestRejected) -> DocumentKey:
    return message.origin, f"{message.namespace}/{message.name}" if message.name else ""


def _ask(message: msg.AllocationRequested | msg.RequestRejected) -> RequestRevision:
    return like(RequestRevision, message, terms=like(ManifestTerms, message))


def _found(record: IdentityRecord, ask: RequestRevision) -> ManifestPod:
    return like(ManifestPod, ask, document=record.document, namespace=record.namespace, name=record.name)


def _takes_the_same(one: RequestRevision, other: RequestRevision | ManifestPod) -> bool:
    """Whether two revisions take the same of a node. Policy and priority count only before the pod has it."""
    nothing = _of_pods(msg.NO_NEEDS)
    hosts = (msgspec.structs.replace(each.terms.host, **nothing) for each in (one, other))
    return one.claims == other.claims and next(hosts) == next(hosts)


def _of_pods(host: msg.HostNeeds) -> dict[str, object]:
    """The fields about other pods and ports, including those that an older version did not read."""
    return {"beside": host.beside, "apart": host.apart, "spread": host.spread, "ports": host.ports}


def _is_too_late(record: IdentityRecord, bound: msg.Bound) -> bool:
    last = record.asks[-1]
    if bound.request_revision >= last.revision:
        return False
    served = next((ask for ask in record.asks if ask.revision == bound.request_revision), None)
    return served is None or not _takes_the_same(served, last)

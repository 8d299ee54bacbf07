"""
The requests of a cluster: one for each pod of ours, by its UID, from its first sight to its last word.

A pod asks when our gate is the last one that holds it: a queueing system (Kueue) decides first who may run at all, and
what it has not let in holds no places. What a pod asks for is fixed while it waits, but for what it needs of a node,
which may be edited until it is bound: a new revision. A request ends when the pod's status says that every container
has ended, or when its object is gone: never because it is dying, and never because of its name (PROTOCOL §7).
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from sluice.contracts.asking import AskLimits
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import (
    NO_LEEWAY,
    NO_NEEDS,
    AllocationRequested,
    BindingMessage,
    Bound,
    Claim,
    Held,
    HostNeeds,
    Leeway,
    Pending,
    PodGroup,
    Released,
    RequestMessage,
    RequestRejected,
    RequestWithdrawn,
    WithdrawCause,
)
from sluice.contracts.pod_specs import read_host_needs, with_node
from sluice.contracts.refusals import Refusal
from sluice_pod_watcher.admission.asks import Asked, read_stored
from sluice_pod_watcher.core.cluster.events import Raw
from sluice_pod_watcher.core.cluster.grants import held_by
from sluice_pod_watcher.core.cluster.pod_views import PodView
from sluice_pod_watcher.core.cluster.rules import ClusterRules


@dataclass(frozen=True, slots=True)
class Terms:
    """What a request says, besides who it is: the claims and their terms, or why they cannot be understood."""

    claims: tuple[Claim, ...] = ()
    host: HostNeeds = NO_NEEDS
    priority: int = 0
    node_policy: str = ""
    gpu_policy: str = ""
    leeway: Leeway = NO_LEEWAY
    group: PodGroup | None = None
    refusal: Refusal | None = None


@dataclass(slots=True)
class Writing:
    """One kind of write to a pod: whether one is under way, and when the next may be tried."""

    under_way: bool = False
    failures: int = 0
    not_before: float = 0.0


@dataclass(slots=True)
class Record:
    """One pod, or what the bus says of one that nobody has seen yet (`view` is None)."""

    uid: RequestId
    namespace: str
    name: str
    since: float
    """When it was first seen."""
    view: PodView | None = None
    asked: Asked | None = None
    terms: Terms | None = None
    """What is said of it; None while nothing is."""
    revision: int = 1
    ended: WithdrawCause | None = None
    on_bus: bool = False
    """Somebody has said something of it before this process did."""
    closed: bool = False
    """The last word was said, and the object is still there."""
    held: Held | None = None
    answer: BindingMessage | None = None
    pending: Pending | None = None
    eviction: str = ""
    """Why the allocator wants the pod gone."""
    evicted: bool = False
    opened_at: float | None = None
    """Since when it is seen with its gate open, for those that have not started."""
    writing: Writing = field(default_factory=Writing)
    """Of annotations, pin and gate: one write at a time."""
    reading: Writing = field(default_factory=Writing)
    evicting: Writing = field(default_factory=Writing)
    telling: Writing = field(default_factory=Writing)
    """Of the condition."""
    doubt: bool = False
    """What we know of it may be wrong: read it by name."""
    events: dict[str, int] = field(default_factory=dict)
    event_told: tuple[str, str, float] | None = None
    """What is the matter with it as its last Event told: reason, note, and when."""
    complaint: str = ""
    """Why its slice cannot be given to it, as a predicate; empty when that is not so."""

    @property
    def living(self) -> bool:
        """Whether somebody wants it."""
        return self.ended is None

    @property
    def is_passed_over(self) -> bool:
        """
        Whether it is told to be ignored, and yet waits behind our gate.

        No webhook has seen such a pod, so its gate, label and ask are somebody's own. One that was asked for before it
        got that label is followed to its end: its slice would be lost otherwise.
        """
        view = self.view
        return view is not None and view.is_ignored and view.is_gated and self.terms is None


Change = Literal["", "new", "changed", "ended"]


class Requests:
    """Every pod of ours. Implements the voice's `Speaker`."""

    def __init__(self, rules: ClusterRules) -> None:
        """No pod is known."""
        self.rules = rules
        self.due: dict[RequestId, None] = {}
        self.records: dict[RequestId, Record] = {}
        self._by_name: dict[tuple[str, str], RequestId] = {}
        self._gone: OrderedDict[RequestId, None] = OrderedDict()
        self._limits = AskLimits(rules.max_gpus_per_node)
        self._asking: dict[RequestId, None] = {}

    # -- what the voice asks --------------------------------------------------------------------------------------

    def all_requests(self) -> Iterable[RequestId]:
        """Every request that is not closed."""
        return [uid for uid, record in self.records.items() if not record.closed]

    def asking(self) -> int:
        """How many pods that were seen ask for a slice."""
        return len(self._asking)

    def may_say(self, uid: RequestId) -> bool:
        """Always: the API server keeps the pods' identities."""
        return uid in self.records

    def word(self, uid: RequestId) -> RequestMessage | None:
        """What the bus shall say of a request; None when there is nothing to say (any more)."""
        record = self.records.get(uid)
        if record is None or record.closed or (record.terms is None and not (record.ended and record.on_bus)):
            return None
        source = self.rules.source
        if record.ended is not None:
            closing = isinstance(record.answer, Released)
            return RequestWithdrawn(
                revision=record.revision, source=source, cause=record.ended, held=record.held, closing=closing
            )
        terms = record.terms
        assert terms is not None
        origin = f"{record.namespace}/{record.name}"
        if terms.refusal is not None:
            return RequestRejected(
                revision=record.revision,
                source=source,
                origin=origin,
                namespace=record.namespace,
                name=record.name,
                refusal=terms.refusal,
            )
        return AllocationRequested(
            revision=record.revision,
            source=source,
            namespace=record.namespace,
            name=record.name,
            origin=origin,
            owner=record.uid,
            claims=terms.claims,
            priority=terms.priority,
            host=terms.host,
            node_policy=terms.node_policy,
            gpu_policy=terms.gpu_policy,
            leeway=terms.leeway,
            group=terms.group,
            held=record.held,
        )

    def drop(self, uid: RequestId) -> None:
        """The last word was said: nothing is remembered but that it was, while its object is there."""
        record = self.records.get(uid)
        if record is None:
            return
        record.closed, record.answer, record.pending = True, None, None
        if record.view is None:
            self._forget(record)

    # -- what the cluster shows -----------------------------------------------------------------------------------

    def seen(self, raw: Raw, view: PodView, now: float) -> tuple[Record | None, Change]:
        """A version of a pod. Older ones than the known, and pods that are gone, change nothing."""
        if view.uid in self._gone:
            return None, ""
        record = self.records.get(view.uid)
        if record is not None and record.view is not None and record.view.version >= view.version > 0:
            return record, ""
        other = self.records.get(self._by_name.get((view.namespace, view.name), RequestId("")))
        if other is not None and other.uid != view.uid and other.view is not None:
            if other.view.version > view.version > 0:
                self._bury(view.uid)  # a replayed version of a predecessor: its name has been taken since
                return None, ""
            self.gone(other.uid)  # two objects never have one name, so that one is gone
        change: Change = "" if record is not None and record.view is not None else "new"
        if record is None:
            record = self.records[view.uid] = Record(view.uid, view.namespace, view.name, now)
        before, record.view, record.doubt = record.view, view, False
        record.namespace, record.name = view.namespace, view.name
        self._by_name[view.namespace, view.name] = view.uid
        if view.has_ended:
            return record, "ended" if self._ended(record, "containers ended") else change
        held = held_by(view)
        if held is not None and held != record.held:
            record.held = held
            self._say(record)
        if before is None or _readable(before) != _readable(view):
            change = self._read_terms(record, raw) or change
        self._count(record)
        return record, change

    def gone(self, uid: RequestId) -> Record | None:
        """The object is not there any more, for sure. Returns the record if the request ended by that."""
        self._bury(uid)
        record = self.records.get(uid)
        if record is None:
            return None
        record.view, record.doubt = None, False
        ended = self._ended(record, "pod gone")
        if self.word(uid) is None:
            self._forget(record)
        elif self._by_name.get((record.namespace, record.name)) == uid:
            del self._by_name[record.namespace, record.name]
        return record if ended else None

    def heard(self, uid: RequestId, word: RequestMessage, now: float) -> Record | None:
        """The bus says this of a request of our source. Returns the record if something follows."""
        record = self.records.get(uid)
        if isinstance(word, RequestWithdrawn):
            return self._heard_end(record, uid, word, now)
        if record is None:
            record = self.records[uid] = Record(uid, word.namespace, word.name, now)
        record.on_bus = True
        if record.closed:
            return None
        if record.ended is not None and record.terms is None:
            record.terms = _terms_of(word)  # it ended before anybody of us had asked for it
        elif record.terms is None or (record.living and record.view is not None and not record.view.is_gated):
            record.terms = _terms_of(word)  # its spec has been pinned since, and says something else now
        if isinstance(word, AllocationRequested) and record.held is None:
            record.held = word.held
        if _terms_of(word) == record.terms or record.ended is not None:
            record.revision = max(record.revision, word.revision)
        else:
            record.revision = max(record.revision, word.revision + 1)
        record.doubt = record.doubt or record.view is None
        self._count(record)
        self._say(record)
        return record

    def forget_versions(self) -> None:
        """What is shown from here on is newer than anything that was seen, whatever its version says."""
        for record in self.records.values():
            if record.view is not None:
                record.view = replace(record.view, version=0)

    def doubted(self, uid: RequestId) -> Record | None:
        """It should have been seen and was not: it has to be read by its name."""
        record = self.records.get(uid)
        if record is None:
            return None
        if record.ended is not None:
            self.gone(uid)  # nothing hangs on that any more
            return None
        record.doubt = True
        return record

    # -- inside ---------------------------------------------------------------------------------------------------

    def _heard_end(self, record: Record | None, uid: RequestId, word: RequestWithdrawn, now: float) -> Record | None:
        if record is None:
            if word.closing or uid in self._gone:
                return None
            record = self.records[uid] = Record(uid, "", "", now, ended=word.cause, held=word.held)
        record.on_bus = True
        record.revision = max(record.revision, word.revision)
        if record.ended is None:
            record.ended = word.cause
            self._count(record)
        if word.closing:
            self.drop(uid)
        self._say(record)
        return record

    def _ended(self, record: Record, cause: WithdrawCause) -> bool:
        """Nobody wants it any more, for ever. Whether there is somebody to be told so."""
        if record.ended is not None:
            return False
        record.ended = cause
        self._count(record)
        self._say(record)
        return record.terms is not None

    def _read_terms(self, record: Record, raw: Raw) -> Change:
        """What the pod asks for now."""
        view = record.view
        assert view is not None
        spec = raw.get("spec") or {}
        if record.asked is None and view.request:
            asked = read_stored(view.request, spec, self._limits)
            if isinstance(asked, Asked):
                record.asked = asked
            elif not record.is_passed_over:
                return self._take_terms(record, Terms(refusal=asked))
        if record.is_passed_over:
            return ""
        if record.asked is None or (not view.is_gated and record.held is None and record.terms is None):
            return ""  # it asks for nothing, or runs without us
        if isinstance(record.answer, Bound) or (not view.is_gated and record.terms is not None):
            return ""
        if record.terms is None and view.others_gates:
            return ""  # whoever else holds it lets it in first: a slice beside a closed gate would serve nobody
        pod = record.asked.pod
        needs = read_host_needs(spec)
        if not isinstance(needs, Refusal):
            needs = with_node(needs, pod.node_name, "sluice.dev/node-name")
        if isinstance(needs, Refusal):
            return self._take_terms(record, Terms(refusal=needs))
        leeway = pod.leeway if view.controller else _unmoved(pod.leeway)
        terms = Terms(pod.claims, needs, pod.priority, pod.node_policy, pod.gpu_policy, leeway, pod.group)
        return self._take_terms(record, terms)

    def _take_terms(self, record: Record, terms: Terms) -> Change:
        if terms == record.terms or (record.terms is not None and record.terms.claims and terms.refusal is not None):
            return ""  # an edit that cannot be understood disturbs nothing
        change: Change = "new" if record.terms is None else "changed"
        record.revision += record.terms is not None
        record.terms = terms
        self._count(record)
        self._say(record)
        return change

    def _count(self, record: Record) -> None:
        seen = record.view is not None  # what only the bus remembers may be gone: a count too high is never reached
        if seen and record.ended is None and record.terms is not None and record.terms.claims:
            self._asking[record.uid] = None
        else:
            self._asking.pop(record.uid, None)

    def _say(self, record: Record) -> None:
        self.due[record.uid] = None

    def _bury(self, uid: RequestId) -> None:
        self._gone[uid] = None
        while len(self._gone) > self.rules.tombstones_max:
            self._gone.popitem(last=False)

    def _forget(self, record: Record) -> None:
        self.records.pop(record.uid, None)
        self._asking.pop(record.uid, None)
        if self._by_name.get((record.namespace, record.name)) == record.uid:
            del self._by_name[record.namespace, record.name]


def _unmoved(leeway: Leeway) -> Leeway:
    """
    What may be done with a pod that no controller makes anew: it is moved for nothing, for it would not come again.

    That it may be evicted for more important ones is kept: there its owner has said that it may end.
    """
    substitute = "stay" if leeway.substitute == "return" else leeway.substitute
    return Leeway(preemptible=leeway.preemptible, movable=False, substitute=substitute)


def _readable(view: PodView) -> tuple[object, ...]:
    """What of a pod says what it asks for, and when: read anew when it is another."""
    return (view.generation, view.request, view.gates, view.is_ignored)


def _terms_of(word: AllocationRequested | RequestRejected) -> Terms:
    if isinstance(word, RequestRejected):
        return Terms(refusal=word.refusal)
    return Terms(word.claims, word.host, word.priority, word.node_policy, word.gpu_policy, word.leeway, word.group)

"""The facts about one pod of ours, which `pod_store` changes, and the message that the bus shall hold."""

from dataclasses import dataclass, field
from typing import Any, Literal

from sluice.contracts import messages as msg
from sluice.contracts.admission.stored_request import ResolvedRequest
from sluice.contracts.ids import AllocationId, NodeName, RequestId, SourceName
from sluice_pod_watcher.core.cluster.events import Patch, Raw
from sluice_pod_watcher.core.cluster.pods import pod_view, request_terms, volume_claims
from sluice_pod_watcher.core.same_fields import like
from sluice_pod_watcher.core.workqueue import PendingWrite, remember

ConfirmBy = Literal["", "read", "write"]
"""Not needed; by a read, as the patch was refused because of the pod's present state; by another write, as the last one
had no answer and may land after any read."""
LOST = "SliceLost"  # the reason of the condition of a pod whose slice was lost for good (`pod_problem` sets it)


@dataclass(slots=True)
class PodRecord:
    """One pod, or a request on the bus whose pod was not seen yet (`view` is None)."""

    uid: RequestId
    namespace: str
    name: str
    since: float  # when it was first seen, or made its request: other gates may have held it before
    quiet_since: float  # the time of its request, or of its last answer
    view: pod_view.PodView | None = None
    asked: ResolvedRequest | None = None
    terms: request_terms.RequestTerms | None = None  # the content of its request; None while there is none
    revision: int = 1
    claims_revision: int = 1  # since this revision its request names the ResourceClaims that it names now
    ended: msg.WithdrawCause | None = None
    on_bus: bool = False  # it was on the bus before this process published it
    closed: bool = False  # its final message is on the bus, but its object still exists
    held: msg.Held | None = None
    declined: AllocationId | None = None  # the last slice that it declined
    answer: msg.BindingMessage | None = None
    pending: msg.Pending | msg.WaitOver | None = None  # why it waits, or that this is over, as a place is booked for it
    eviction: str = ""  # why the allocator wants the pod evicted
    evicted: bool = False  # its eviction is reported, or that of all its pods was accepted
    going: dict[RequestId, None] = field(default_factory=dict)  # those whose eviction was accepted
    opened_at: float | None = None  # since when its gate is open, for pods that have not started
    writing: PendingWrite = field(default_factory=PendingWrite)  # writes of annotations, pin and gate: one at a time
    reading: PendingWrite = field(default_factory=PendingWrite)
    evicting: PendingWrite = field(default_factory=PendingWrite)
    evicting_beside: dict[RequestId, PendingWrite] = field(default_factory=dict)  # other pods with its claim
    reading_claims: PendingWrite = field(default_factory=PendingWrite)
    places: volume_claims.VolumeTopologies | None = None  # the topologies of its volumes; None before they were read
    places_for: AllocationId | None = None  # the slice for which they were last read; None before it has one
    unread: Raw | None = None  # its object, while parsing its request waits for that
    unclaimed: Raw | None = None  # its object, while the request waits for its claims or follows its own
    by_own_claims: bool = False  # it asks by ResourceClaims of its own, if it does; then `asked` is None
    is_not_ours: bool = False  # none of its own claims is ours, and it asks for nothing else: it starts without
    shared: msg.ResourceClaimRef | None = None  # its own ResourceClaim, which the request of `beside` stands for
    beside: "PodRecord | None" = None
    over: msg.WithdrawCause | Literal[""] = ""  # its pod has ended; others still use its claim, and its request stands
    claim_missing: str = ""  # what must exist before its own ResourceClaims can be read; empty: nothing
    claim_warnings: tuple[str, ...] = ()  # about its own ResourceClaims, for its owner
    writing_claim: PendingWrite = field(default_factory=PendingWrite)  # writes of its ResourceClaims: one at a time
    claim_problem: str = ""  # why its ResourceClaim cannot be made or allocated, as a sentence; empty if it can
    claim_late_since: float | None = None  # since when its ResourceClaim does not become what it shall be
    writing_condition: PendingWrite = field(default_factory=PendingWrite)  # writes of the condition
    confirm_by: ConfirmBy = ""  # what settles the open outcome of the patch that binds it; empty if known
    sent: Patch = ()  # that patch, while it may be sent again
    needs_read: bool = False  # our view of it may be wrong: read it by name
    read_too_early: bool = False  # it became so during a read, whose result may be older
    events: dict[str, int] = field(default_factory=dict)
    event_told: tuple[str, str, float] | None = None  # its last Event: reason, note, and time
    complaint: str = ""  # why it cannot be bound to its slice, as a predicate; empty if it can

    @property
    def active(self) -> bool:
        return self.ended is None

    @property
    def is_going(self) -> bool:
        return self.evicted or self.uid in self.going

    @property
    def is_understood(self) -> bool:
        return self.asked is not None or (self.by_own_claims and self.terms is not None)

    @property
    def may_ask(self) -> bool:
        return self.asked is not None or self.by_own_claims

    @property
    def is_refused(self) -> bool:
        """Whether its request cannot be parsed, or no node could ever fit it."""
        return self.terms is not None and self.terms.refusal is not None

    @property
    def speaks_of_others(self) -> bool:
        host = self.terms.host if self.terms is not None else msg.NO_NEEDS
        return bool(host.apart or host.beside or host.spread)

    @property
    def binding_unknown(self) -> bool:
        """Whether its pod may be bound and is not seen to be: until that is known its request does not change."""
        is_gated = self.view is not None and self.view.is_gated
        return self.active and is_gated and (self.writing.under_way or bool(self.confirm_by))

    @property
    def is_lost(self) -> bool:
        """Whether the slice that its pod is pinned to was lost for good, by the bus or by the pod's condition."""
        if not self.active or self.held is None:
            return False
        told = self.view.condition if self.view is not None else None
        is_told = told is not None and told.reason == LOST
        return isinstance(self.answer, msg.Released) or (self.answer is None and is_told)

    @property
    def is_passed_over(self) -> bool:
        """Whether it is labelled to be ignored, and yet waits behind our gate, set by hand. A pod that got the label
        after its request is followed to its end: its slice would leak otherwise."""
        view = self.view
        return view is not None and view.is_ignored and view.is_gated and self.terms is None

    def has_declined(self, answer: msg.BindingMessage | None) -> bool:
        """Whether it keeps waiting, having declined the slice of this answer."""
        return isinstance(answer, msg.Bound) and answer.allocation == self.declined

    def claims_are_fine(self) -> None:
        self.claim_problem, self.claim_late_since = "", None

    def mark_for_read(self) -> None:
        self.needs_read, self.read_too_early = True, self.reading.under_way

    def as_message(self, source: SourceName) -> msg.RequestMessage | None:
        if self.closed or (self.terms is None and not (self.ended and self.on_bus)):
            return None
        about: dict[str, Any] = {"revision": self.revision, "source": source}
        if self.ended is not None:
            closing = isinstance(self.answer, msg.Released)
            return msg.RequestWithdrawn(**about, cause=self.ended, held=self.held, closing=closing)
        assert self.terms is not None
        about |= {"namespace": self.namespace, "name": self.name, "origin": f"{self.namespace}/{self.name}"}
        if self.terms.refusal is not None:
            return msg.RequestRejected(**about, refusal=self.terms.refusal)
        owned = {"owner": self.uid, "held": self.held, "declined": self.declined, "labels": dict(self.terms.labels)}
        return like(msg.AllocationRequested, self.terms, **about, **owned)


AVOIDED_S = 600.0  # a node is tried again after this: most obstacles are gone or fixed by then
OWNERS_MAX, NODES_MAX = 1000, 20


@dataclass(slots=True)
class AvoidedNodes:
    """Nodes, by the UID of a controller, on which the scheduler could not place its pods: the next ones avoid them. The
    scheduler's message is not parsed. A restart loses this; then the next pod may try such a node once more."""

    _of: dict[str, dict[NodeName, float]] = field(default_factory=dict)

    def add(self, owner: str, node: NodeName, now: float) -> None:
        nodes = self._of.get(owner, {})
        remember(nodes, node, now + AVOIDED_S, at_most=NODES_MAX)
        remember(self._of, owner, nodes, at_most=OWNERS_MAX)

    def nodes(self, owner: str, now: float) -> tuple[NodeName, ...]:
        return tuple(sorted(node for node, until in self._of.get(owner, {}).items() if until > now))

"""
What is known of one pod of ours, and what the bus shall say of it.

It must not change what it knows by itself (`requests` does), nor write anything (`following` and `telling` do).
"""

from dataclasses import dataclass, field
from typing import Literal

from sluice.contracts.admission.stored_request import ResolvedRequest
from sluice.contracts.ids import AllocationId, Incarnation, RequestId, SourceName
from sluice.contracts.messages import (
    NO_NEEDS,
    AllocationRequested,
    BindingMessage,
    Bound,
    Held,
    Pending,
    Released,
    RequestMessage,
    RequestRejected,
    RequestWithdrawn,
    WaitOver,
    WithdrawCause,
)
from sluice_pod_watcher.core.cluster.events import Patch, Raw
from sluice_pod_watcher.core.cluster.pods.pod_view import PodView
from sluice_pod_watcher.core.cluster.pods.request_terms import RequestTerms
from sluice_pod_watcher.core.cluster.pods.volume_claims import VolumeTopologies

AnsweredAt = tuple[Incarnation, int]
"""Where an answer stands: in which life of BOOK, under which sequence."""
ConfirmBy = Literal["", "read", "write"]
"""
Not at all; until it was read, for the patch was refused because of what is there; until another write was answered,
for it had no answer, and may land after any read.
"""
LOST = "SliceLost"
"""The reason of the condition of a pod whose slice was lost for good (`plight` gives it)."""


@dataclass(slots=True)
class PendingWrite:
    """One kind of write to a pod: whether one is under way, and when the next may be tried."""

    under_way: bool = False
    failures: int = 0
    not_before: float = 0.0


@dataclass(slots=True)
class PodRecord:
    """One pod, or what the bus says of one that nobody has seen yet (`view` is None)."""

    uid: RequestId
    namespace: str
    name: str
    since: float
    """When it was first seen, or began to ask: others may have held it back before that."""
    quiet_since: float
    """Since when nothing was said to it: it began to ask, or was answered, then."""
    view: PodView | None = None
    asked: ResolvedRequest | None = None
    terms: RequestTerms | None = None
    """What is said of it; None while nothing is."""
    revision: int = 1
    ended: WithdrawCause | None = None
    on_bus: bool = False
    """Somebody has said something of it before this process did."""
    closed: bool = False
    """The last word was said, and the object is still there."""
    held: Held | None = None
    declined: AllocationId | None = None
    """What it was bound to last of what it is not let go with."""
    answer: BindingMessage | None = None
    answered_at: AnsweredAt = (Incarnation(""), 0)
    """Of the last answer that was read, be it that a later reading has not shown it."""
    pending: Pending | WaitOver | None = None
    """Why it waits, or that it does so no more: then a place is booked for it."""
    eviction: str = ""
    """Why the allocator wants the pod gone."""
    evicted: bool = False
    opened_at: float | None = None
    """Since when it is seen with its gate open, for those that have not started."""
    writing: PendingWrite = field(default_factory=PendingWrite)
    """Of annotations, pin and gate: one write at a time."""
    reading: PendingWrite = field(default_factory=PendingWrite)
    evicting: PendingWrite = field(default_factory=PendingWrite)
    reading_claims: PendingWrite = field(default_factory=PendingWrite)
    places: VolumeTopologies | None = None
    """Where its volumes can be had; None while that was not read."""
    places_for: AllocationId | None = None
    """The slice for which that was read last; None before it has one."""
    unread: Raw | None = None
    """Its object, as long as what it asks for waits for that."""
    writing_condition: PendingWrite = field(default_factory=PendingWrite)
    """Of the condition."""
    confirm_by: ConfirmBy = ""
    """Whether the last answer to the patch that binds it leaves open if it is bound, and what will tell."""
    sent: Patch = ()
    """That patch, as long as it may be sent again."""
    needs_read: bool = False
    """What we know of it may be wrong: read it by name."""
    read_too_early: bool = False
    """That became so while it was being read: what this read finds there may be of before."""
    events: dict[str, int] = field(default_factory=dict)
    event_told: tuple[str, str, float] | None = None
    """What is the matter with it as its last Event told: reason, note, and when."""
    complaint: str = ""
    """Why its slice cannot be given to it, as a predicate; empty when that is not so."""

    @property
    def active(self) -> bool:
        """Whether somebody wants it."""
        return self.ended is None

    @property
    def is_refused(self) -> bool:
        """Whether what it asks for cannot be understood, or no node could ever have it."""
        return self.terms is not None and self.terms.refusal is not None

    @property
    def speaks_of_others(self) -> bool:
        """Whether its terms speak of other pods."""
        host = self.terms.host if self.terms is not None else NO_NEEDS
        return bool(host.apart or host.beside or host.spread)

    @property
    def binding_unknown(self) -> bool:
        """
        Whether its pod may be bound to what it was granted, and is not seen to be.

        Until it is, nothing is said of it anew: a request that does not tell what its pod has is given another slice.
        """
        is_gated = self.view is not None and self.view.is_gated
        return self.active and is_gated and (self.writing.under_way or bool(self.confirm_by))

    @property
    def is_lost(self) -> bool:
        """
        Whether the slice that its pod is pinned to was lost for good: it gets no other.

        The bus may have forgotten that with its disk, and then the pod's own condition still tells.
        """
        if not self.active or self.held is None:
            return False
        told = self.view.condition if self.view is not None else None
        return isinstance(self.answer, Released) or (self.answer is None and told is not None and told.reason == LOST)

    @property
    def is_passed_over(self) -> bool:
        """
        Whether it is told to be ignored, and yet waits behind our gate.

        No webhook has seen such a pod, so its gate, label and ask are somebody's own. One that was asked for before it
        got that label is followed to its end: its slice would be lost otherwise.
        """
        view = self.view
        return view is not None and view.is_ignored and view.is_gated and self.terms is None

    def has_declined(self, answer: BindingMessage | None) -> bool:
        """Whether it waits on, whatever it is bound to by this answer."""
        return isinstance(answer, Bound) and answer.allocation == self.declined

    def mark_for_read(self) -> None:
        """What we know of it may be wrong."""
        self.needs_read, self.read_too_early = True, self.reading.under_way

    def as_message(self, source: SourceName) -> RequestMessage | None:
        """What the bus shall say of it; None when there is nothing to say (any more)."""
        if self.closed or (self.terms is None and not (self.ended and self.on_bus)):
            return None
        if self.ended is not None:
            closing = isinstance(self.answer, Released)
            return RequestWithdrawn(
                revision=self.revision, source=source, cause=self.ended, held=self.held, closing=closing
            )
        terms = self.terms
        assert terms is not None
        origin = f"{self.namespace}/{self.name}"
        if terms.refusal is not None:
            return RequestRejected(
                revision=self.revision,
                source=source,
                origin=origin,
                namespace=self.namespace,
                name=self.name,
                refusal=terms.refusal,
            )
        return AllocationRequested(
            revision=self.revision,
            source=source,
            namespace=self.namespace,
            name=self.name,
            origin=origin,
            owner=self.uid,
            claims=terms.claims,
            priority=terms.priority,
            host=terms.host,
            node_policy=terms.node_policy,
            gpu_policy=terms.gpu_policy,
            leeway=terms.leeway,
            group=terms.group,
            held=self.held,
            declined=self.declined,
            preempts=terms.preempts,
            labels=dict(terms.labels),
        )

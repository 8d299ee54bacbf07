"""The problem that keeps a pod from running, as its owner reads it. The caller decides when to show it. A sentence says
what is wrong, then what helps. It does not repeat messages of the scheduler or the kubelet."""

from typing import Literal

import msgspec

from sluice.contracts.messages import Bound, Pending, Refused, Released, WaitOver
from sluice.contracts.reason_hints import hint_for
from sluice.contracts.reasons import Refusal, WaitReason, shorten
from sluice_pod_watcher.core.cluster.pods.pod_record import PodRecord
from sluice_pod_watcher.core.cluster.pods.pod_view import PodCondition, PodView

NOTE_CHARACTERS_MAX = 900  # an Event's note holds 1,024 (tried)
WAITS, UNANSWERED, BEING_MADE = "WaitsForSlice", "NotYetLookedAt", "SliceBeingMade"
Patience = Literal["none", "a moment", "an answer"]


class PodProblem(msgspec.Struct, frozen=True):
    """One problem of one pod. `reason` is the condition's, `event` the Event's. `patience`: how long to wait before
    showing it, since it may end by itself."""

    reason: str
    event: str
    message: str
    level: Literal["Normal", "Warning"] = "Warning"
    patience: Patience = "none"

    @property
    def condition(self) -> PodCondition:
        return PodCondition("False", self.reason, self.message)


def problem_of(record: PodRecord, stuck: str, ails: str, made_on: str) -> PodProblem | None:
    """The problem of a pod; None when there is none. `stuck`: why a bound pod does not start. `ails`: what is wrong
    with its slice. `made_on`: the node on which its slice is being created."""
    view, answer = record.view, record.answer
    if view is None:
        return None
    if record.terms is not None and record.terms.refusal is not None:
        return _refused("RequestRejected", record.terms.refusal, view)
    if view.is_gated and record.claim_problem and not isinstance(answer, (Refused, Released)):
        return _said("ClaimNotReady", "ClaimNotReady", record.claim_problem)
    match answer:
        case Refused():
            return _refused("Refused", answer.refusal, view)
        case Released():
            return _lost(_words_of(answer, view))
        case Bound():
            return _of_bound(answer, view, record.complaint, stuck, ails)
        case _ if (
            view.is_gated
            and record.terms is None
            and view.others_gates
            and (record.asked is not None or record.by_own_claims)
        ):
            words = f"it waits for other scheduling gates before it requests a slice: {', '.join(view.others_gates)}"
            return _said("OtherGates", "OtherGates", words, level="Normal", patience="a moment")
        case None if record.is_lost and view.condition is not None:
            return _lost(view.condition.message)
        case _ if not view.is_gated or record.terms is None:
            return None
        case _:
            return _waiting(record.pending, made_on)


def loss_cause(released: Released) -> str:
    return released.cause.removeprefix("slice lost: ")


def _of_bound(bound: Bound, view: PodView, complaint: str, stuck: str, ails: str) -> PodProblem | None:
    if view.is_gated and view.others_gates:
        gates = ", ".join(view.others_gates)
        words = f"its slice on {bound.node} is ready and reserved; it waits for other scheduling gates: {gates}"
        return _said("OtherGates", "OtherGates", words, level="Normal", patience="a moment")
    if complaint:
        return _said("SliceNotUsable", "SliceNotUsable", f"the pod {complaint}")
    if stuck:
        return _said("NotStarted", "NotStarted", f"{stuck.rstrip('.')}. {_once_more(view)}")
    if ails:
        words = f"its slice on {bound.node} is unhealthy: {ails}. The pod keeps it. {_once_more(view)}"
        return _said("SliceDegraded", "SliceDegraded", words)
    return None


def _refused(reason: str, refusal: Refusal, view: PodView) -> PodProblem:
    mend = "fix its template" if view.controller else "create it again with that fixed"
    words = f"{refusal.sentence()}. This pod can never start: delete it, and {mend}."
    return _said(reason, str(refusal.reason), words)


def _words_of(released: Released, view: PodView) -> str:
    again = f"its {view.controller} recreates it" if view.controller else "create it again"
    return f"its slice was lost ({loss_cause(released)}), and it gets no other: delete the pod, and {again}."


def _lost(words: str) -> PodProblem:
    return _said("SliceLost", "SliceLost", words)


def _once_more(view: PodView) -> str:
    if view.controller:
        return f"If it cannot wait, delete the pod: its {view.controller} recreates it with another slice."
    return "If it cannot wait, delete the pod and create it again: it gets another slice."


def _waiting(pending: Pending | WaitOver | None, made_on: str) -> PodProblem:
    if not isinstance(pending, Pending):
        if made_on or pending is not None:
            place = f"its place on {made_on} is reserved" if made_on else "a place is reserved for it"
            words = f"{place}, and its slice is being created. If this lasts, check the agent of that node."
            return _said(BEING_MADE, WAITS, words, level="Normal", patience="an answer")
        words = "it requested a slice, and no allocator has answered. If this lasts, check that the allocator runs."
        return _said(UNANSWERED, UNANSWERED, words, patience="an answer")
    lead = pending.reasons[0] if pending.reasons else None
    if lead is None:
        return _said(WAITS, WAITS, pending.message, level="Normal", patience="a moment")
    known = f", elsewhere {lead.known_as}" if lead.known_as not in {"", lead.reason} else ""
    words = f"{pending.message}. {hint_for(pending.reasons)} [{lead.reason}{known}]"
    level: Literal["Normal", "Warning"] = "Warning" if lead.reason is WaitReason.NO_NODE_CAN_FIT else "Normal"
    return _said(str(lead.reason), WAITS, words, level=level, patience="a moment")


def _said(
    reason: str, event: str, words: str, *, level: Literal["Normal", "Warning"] = "Warning", patience: Patience = "none"
) -> PodProblem:
    return PodProblem(reason, event, shorten(words, NOTE_CHARACTERS_MAX), level, patience)

"""The problem that keeps a pod from running, as its owner reads it. The caller decides when to show it. A sentence says
what is wrong, then what helps. It does not repeat messages of the scheduler or the kubelet."""

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from sluice.contracts import reason_hints, reasons
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import Bound, DeviceGrant, GpuReport, NodeInventory, Pending, Refused, Released, WaitOver
from sluice_pod_watcher.core.cluster.pods.pod_record import PodRecord
from sluice_pod_watcher.core.cluster.pods.pod_view import PodCondition, PodView

_BEING_MADE = frozenset({"planned", "making"})


@dataclass(slots=True)
class SliceHealth:
    """The slices of a cluster's pods: health, and creation. A stale inventory changes nothing."""

    _of_node: dict[NodeName, dict[RequestId, str]] = field(default_factory=dict)  # by node, as several may have one
    _making_on: dict[NodeName, dict[RequestId, None]] = field(default_factory=dict)
    _made_on: dict[RequestId, NodeName] = field(default_factory=dict)  # by request, the latest observed

    def heard(self, word: NodeInventory) -> list[RequestId]:
        if word.stale:
            return []
        gpus = {gpu.uuid: gpu for gpu in word.snapshot.gpus}
        ailing: dict[RequestId, str] = {}
        for each in word.snapshot.slices:
            if each.state == "degraded" and not each.revoked:
                why = dict.fromkeys(_what_ails(device, gpus.get(device.gpu)) for device in each.booking.devices)
                ailing[each.booking.request] = "; ".join(filter(None, why)) or "its devices no longer exist"
        made = (each for each in word.snapshot.slices if each.state in _BEING_MADE and not each.revoked)
        return self._replace(word.snapshot.node, ailing, {each.booking.request: None for each in made})

    def node_gone(self, node: NodeName) -> list[RequestId]:
        return self._replace(node, {}, {})

    def made_on(self, request: RequestId) -> str:
        """The node on which a request's slice is being created; empty if none."""
        return self._made_on.get(request, "")

    def why(self, request: RequestId, node: NodeName) -> str:
        """What is wrong with a request's slice on its pod's node; empty if nothing is known."""
        return self._of_node.get(node, {}).get(request, "")

    def _replace(self, node: NodeName, ailing: dict[RequestId, str], making: dict[RequestId, None]) -> list[RequestId]:
        ailed, made = self._of_node.pop(node, {}), self._making_on.pop(node, {})
        if ailing:
            self._of_node[node] = ailing
        if making:
            self._making_on[node] = making
        for uid in made.keys() ^ making.keys():
            if uid in making:
                self._made_on[uid] = node
            elif self._made_on.get(uid) == node:
                del self._made_on[uid]
        news = [uid for uid in ailed | ailing if ailed.get(uid) != ailing.get(uid)]
        return [*news, *(uid for uid in made | making if (uid in made) != (uid in making))]


def _what_ails(device: DeviceGrant, gpu: GpuReport | None) -> str:
    if gpu is None:
        return f"its GPU {device.gpu} no longer exists"
    if gpu.lost:
        return f"its GPU {gpu.index} does not answer{_because(gpu.health_message)}"
    if not gpu.healthy:
        return f"its GPU {gpu.index} is unhealthy{_because(gpu.health_message)}"
    home = (device.profile, device.start)
    daemon = next((each for each in gpu.daemons if (each.profile, each.start) == home), None)
    if device.share is not None and daemon is not None and daemon.state in {"fault", "down"}:
        return daemon.message or f"its MPS daemon is in the state {daemon.state!r}"
    return ""


def _because(message: str) -> str:
    return f" ({reasons.shorten(message, 300)})" if message else ""


NOTE_CHARACTERS_MAX = 900  # an Event's note holds 1,024 (tried)
WAITS, UNANSWERED, BEING_MADE = "WaitsForSlice", "NotYetLookedAt", "SliceBeingMade"
Patience = Literal["none", "a moment", "an answer"]
Level = Literal["Normal", "Warning"]


class PodProblem(msgspec.Struct, frozen=True):
    """One problem of a pod: the condition's `reason`, the `event`'s; shown after `patience`, as it may end."""

    reason: str
    event: str
    message: str
    level: Level = "Warning"
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
        return _said("ClaimNotReady", record.claim_problem)
    match answer:
        case Refused():
            return _refused("Refused", answer.refusal, view)
        case Released():
            return _lost(_words_of(answer, view))
        case Bound():
            return _of_bound(answer, view, record.complaint, stuck, ails)
        case _ if record.terms is None and view.is_gated and view.others_gates and record.may_ask:
            words = f"it waits for other scheduling gates before it requests a slice: {', '.join(view.others_gates)}"
            return _said("OtherGates", words, level="Normal", patience="a moment")
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
        return _said("OtherGates", words, level="Normal", patience="a moment")
    if complaint:
        return _said("SliceNotUsable", f"the pod {complaint}")
    if stuck:
        return _said("NotStarted", f"{stuck.rstrip('.')}. {_once_more(view)}")
    if ails:
        words = f"its slice on {bound.node} is unhealthy: {ails}. The pod keeps it. {_once_more(view)}"
        return _said("SliceDegraded", words)
    return None


def _refused(reason: str, refusal: reasons.Refusal, view: PodView) -> PodProblem:
    mend = "fix its template" if view.controller else "create it again with that fixed"
    words = f"{refusal.sentence()}. This pod can never start: delete it, and {mend}."
    return _said(str(refusal.reason), words, reason=reason)


def _words_of(released: Released, view: PodView) -> str:
    again = f"its {view.controller} recreates it" if view.controller else "create it again"
    return f"its slice was lost ({loss_cause(released)}), and it gets no other: delete the pod, and {again}."


def _lost(words: str) -> PodProblem:
    return _said("SliceLost", words)


def _once_more(view: PodView) -> str:
    if view.controller:
        return f"If it cannot wait, delete the pod: its {view.controller} recreates it with another slice."
    return "If it cannot wait, delete the pod and create it again: it gets another slice."


def _waiting(pending: Pending | WaitOver | None, made_on: str) -> PodProblem:
    if not isinstance(pending, Pending):
        if made_on or pending is not None:
            place = f"its place on {made_on} is reserved" if made_on else "a place is reserved for it"
            words = f"{place}, and its slice is being created. If this lasts, check the agent of that node."
            return _said(WAITS, words, reason=BEING_MADE, level="Normal", patience="an answer")
        words = "it requested a slice, and no allocator has answered. If this lasts, check that the allocator runs."
        return _said(UNANSWERED, words, patience="an answer")
    lead = pending.reasons[0] if pending.reasons else None
    if lead is None:
        return _said(WAITS, pending.message, level="Normal", patience="a moment")
    known = f", elsewhere {lead.known_as}" if lead.known_as not in {"", lead.reason} else ""
    words = f"{pending.message}. {reason_hints.hint_for(pending.reasons)} [{lead.reason}{known}]"
    level: Level = "Warning" if lead.reason is reasons.WaitReason.NO_NODE_CAN_FIT else "Normal"
    return _said(WAITS, words, reason=str(lead.reason), level=level, patience="a moment")


def _said(
    event: str, words: str, *, reason: str = "", level: Level = "Warning", patience: Patience = "none"
) -> PodProblem:
    return PodProblem(reason or event, event, reasons.shorten(words, NOTE_CHARACTERS_MAX), level, patience)

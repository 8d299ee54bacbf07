"""Reconcile one pod: derive its patch, its eviction, its condition and its Events from what is known. Level-triggered:
only writes under way and retry times are remembered. A pod's gate cannot be restored and its pin cannot be changed
(422), so it is bound once, and only on a `Bound` that can be carried out whole."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sluice.contracts.delayed_queue import DelayedQueue
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.kube.names import ANNOTATION_REQUEST, KEEPS_NODE
from sluice.contracts.messages import Bound, EvictionBlocked, EvictionDone, Released, ResourceClaimRef
from sluice_pod_watcher.core.cluster import events
from sluice_pod_watcher.core.cluster.claims.claim_reconciler import ClaimReconciler
from sluice_pod_watcher.core.cluster.claims.claim_store import ClaimStore
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.nodes.node_capacity import NodeCapacity
from sluice_pod_watcher.core.cluster.pods import granted_annotations, idle_pods, pod_patches, pod_problem
from sluice_pod_watcher.core.cluster.pods.pod_record import AvoidedNodes, PodRecord
from sluice_pod_watcher.core.cluster.pods.pod_view import PodView
from sluice_pod_watcher.core.cluster.status_writer import StatusWriter
from sluice_pod_watcher.core.folder.events import WriteLogLine
from sluice_pod_watcher.core.workqueue import PendingWrite

NOT_THAT_POD = frozenset({404, 409})  # the precondition of the eviction did not hold: the pod of that UID is gone
WORTH_READING = frozenset({0, 404, 409, 422})  # the pod may differ from what is known (a failed test is a 422)
REFUSED_BY_WHAT_IS_THERE = frozenset({404, 422})  # after these an earlier write without an answer cannot land
SERVER_ERRORS = 500  # from here on a failure leaves open whether the write landed (504 is a timeout)
NOT_FOR_PEOPLE = frozenset({0, *NOT_THAT_POD})  # no Event: the API server is away, or the pod is another one
ASKS_FOR_WHAT = f"has a slice, but its request cannot be parsed (annotation {ANNOTATION_REQUEST})"
LEFT_UNSEEN = (
    "its ResourceClaims cannot be seen, so the pod is left to the scheduler, without a slice: an administrator finds "
    "why in the pod-watcher's log. If they are of a class that Sluice serves, delete the pod and create it again then"
)
TOLD_AFTER = 5  # failures in a row (half a minute) before an Event: shorter troubles end by themselves


@dataclass(slots=True)
class PodReconciler:
    """Reconciles pods, one at a time. Instructions go to `out`, eviction outcomes to `outcomes`."""

    config: ClusterConfig
    status_writer: StatusWriter
    node_capacity: NodeCapacity
    avoided_nodes: AvoidedNodes = field(default_factory=AvoidedNodes)  # replacements of pods avoid them
    delayed_queue: DelayedQueue[RequestId] = field(default_factory=DelayedQueue)
    slice_health: pod_problem.SliceHealth = field(default_factory=pod_problem.SliceHealth)
    idle: idle_pods.IdlePods = field(init=False)
    answers_are_old: bool = False  # of an older incarnation than the requests, and being read again
    claim_store: ClaimStore = field(default_factory=ClaimStore)
    claims: ClaimReconciler = field(init=False)  # by which kubelets hand devices over; it writes to `out` too
    out: list[events.Own] = field(default_factory=list)
    outcomes: list[tuple[RequestId, EvictionDone | EvictionBlocked]] = field(default_factory=list)
    evicting_for: dict[RequestId, RequestId] = field(default_factory=dict)  # pods beside others; whose claim it is

    def __post_init__(self) -> None:
        self.idle = idle_pods.IdlePods(self.config)
        self.claims = ClaimReconciler(self.config, self.claim_store, self.delayed_queue, self.out)

    def take_out(self) -> list[events.Own]:
        taken = list(self.out)
        self.out.clear()
        return taken

    def settle(self, record: PodRecord, now: float) -> None:
        self._read(record, now)
        view = record.view
        self.claims.watch_for(record)
        has_left = bool(record.over) or (view is not None and view.dying)
        if record.ended is None and record.eviction and has_left:
            self._evict(record, record.eviction, now)  # those beside it
        if record.ended is not None or view is None or record.over:
            self.idle.forget(record.uid)
            return
        is_bound_anew = isinstance(record.answer, Bound) and not view.dying
        if record.confirm_by == "write" and view.is_gated and not is_bound_anew and not record.needs_read:
            self._send(record, record.sent, now)  # whatever the answer: annotations come before a revocation
        if view.dying:
            return
        if record.unread is not None:
            self._read_claims(record, view, now)
        self.claims.make(record, view, now)
        if self._goes_without(record, view, now):
            return
        if not record.is_understood and record.held is not None:
            self._complain(record, ASKS_FOR_WHAT)
        stuck = self._stuck(record, view, now)
        if not record.needs_read and isinstance(record.answer, Bound):
            self._bind_or_annotate(record, view, record.answer, now)
        cause = self._decide_eviction(record, view, stuck, now)
        if cause:
            self._evict(record, cause, now, alone=bool(stuck) and not record.eviction)
        self._tell(record, stuck, now)

    def _bind_or_annotate(self, record: PodRecord, view: PodView, bound: Bound, now: float) -> None:
        if not record.is_understood or record.writing.under_way or view.others_gates:
            return
        if not bound.is_for(record.held):
            return  # it is bound to its own slice again
        annotations = self._annotations(record, view, bound)
        if isinstance(annotations, str):
            self._complain(record, f"cannot be given its slice: {annotations}")
            return
        if not view.is_gated:
            self._annotate(record, view, bound, annotations, now)
            return
        if record.terms is None or record.is_refused or self.answers_are_old:
            return  # its request is not read yet, its slice is being revoked, or may be stale
        if record.evicting.under_way or record.is_going:
            return
        is_settled = not record.confirm_by  # else a patch without an answer may have opened the gate
        if (
            (is_settled and self._reads_claims_again(record, view, bound, now))
            or self._declines(record, view, bound, now)
            or (is_settled and self.claims.keeps_gate_closed(record, view, bound, now))
        ):
            return
        patch = pod_patches.bind(view, bound.node, {**annotations, **self._protection(record, view)})
        if isinstance(patch, str):
            self._complain(record, f"cannot be bound: {patch}")
        else:
            self._send(record, patch, now)

    def _protection(self, record: PodRecord, view: PodView) -> dict[str, str]:
        """What keeps node autoscalers from evicting it, unless its owner has decided that, or lets it be moved."""
        assert record.terms is not None
        if not self.config.protect_pods or record.terms.leeway.movable:
            return {}
        return {key: text for key, text in KEEPS_NODE.items() if key not in view.keeps_node}

    def _annotations(self, record: PodRecord, view: PodView, bound: Bound) -> dict[str, str] | str:
        if record.asked is None:
            assert record.terms is not None
            return granted_annotations.allocation_of(bound, record.terms.ways)
        return granted_annotations.annotations_of(bound, record.asked, by_claim=bool(view.pod_claim))

    def _goes_without(self, record: PodRecord, view: PodView, now: float) -> bool:
        """Handle a pod without a slice of its own (beside another pod, or not ours). Whether that is all about it."""
        if record.shared is not None:
            self._join(record, view, record.shared, now)
        unseen = self.claims.cannot_be_seen(record, view, now)
        if not view.is_gated or not (record.is_not_ours or unseen):
            return False
        if self._order(record, record.writing, now, events.AnnotatePod, pod_patches.leave(view)) and unseen:
            self.status_writer.event(record, "SliceWarning", LEFT_UNSEEN)
        return True

    def _join(self, record: PodRecord, view: PodView, ref: ResourceClaimRef, now: float) -> None:
        """Start a pod beside others with its ResourceClaim; from then on it is one of its node's other pods."""
        if not view.is_gated or view.others_gates:
            return
        node = self.claims.joins(record, view, ref, now)
        if not node:
            return
        patch = pod_patches.join(view, NodeName(node))
        if isinstance(patch, str):
            self._complain(record, f"cannot be bound: {patch}")
            record.claim_problem = f"it cannot start beside the other pods of its ResourceClaim {ref.name}: {patch}"
        elif self._order(record, record.writing, now, events.AnnotatePod, patch):
            shared = f"starts on {node}, with the devices of the ResourceClaim {ref.name}, which other pods use too"
            self.status_writer.event(record, "SliceShared", shared, "Normal")

    def _declines(self, record: PodRecord, view: PodView, bound: Bound, now: float) -> bool:
        """Whether the node rejects the pod by now: it declines its slice before its gate opens (ADR 0061). Also while a
        patch has no answer: that and the decline have one guard, so only one of them can land."""
        assert record.terms is not None
        kept_out = self.node_capacity.why_kept_out(bound.node, record.terms.host.tolerations, record.places or ())
        why = kept_out or self.claims.why_other(record, view, bound)
        patch = pod_patches.decline(view, bound.allocation)
        if why and self._order(record, record.writing, now, events.AnnotatePod, patch):
            self._complain(record, f"declined its slice on {bound.node}, which {why}. It waits for another slice")
        return bool(why)

    def _send(self, record: PodRecord, patch: events.Patch, now: float) -> None:
        """Bind it. This settles a patch without an answer, even if it is the same one: only one of them can land."""
        if self._order(record, record.writing, now, events.BindPod, patch):
            record.sent = patch

    def _annotate(
        self, record: PodRecord, view: PodView, bound: Bound, annotations: dict[str, str], now: float
    ) -> None:
        if all(view.granted.get(key) == text for key, text in annotations.items()):
            record.complaint = ""
            return
        if view.place != bound.node:  # the slice would be of another pod's device
            where = view.place or "no known node"
            self._complain(record, f"is on {where}, but its slice is on {bound.node}: it is not bound to it")
        else:
            self._order(record, record.writing, now, events.AnnotatePod, pod_patches.annotate(view, annotations))

    def patched(self, record: PodRecord, event: events.Result[events.PodWrite], now: float) -> None:
        match event:
            case events.Done(wanted=events.WritePodCondition()):
                record.writing_condition = PendingWrite(not_before=now + self.config.condition_interval_s)
            case events.Failed(wanted=events.WritePodCondition()):
                if event.status in WORTH_READING:
                    record.mark_for_read()
                self.failed(record, record.writing_condition, now, self.config.condition_interval_s)
            case events.Done():
                self._patched(record, was_bound=isinstance(event.wanted, events.BindPod))
            case events.Failed():
                self._refused(record, event, now)

    def _patched(self, record: PodRecord, *, was_bound: bool) -> None:
        record.writing, record.complaint = PendingWrite(), ""
        if was_bound:
            record.confirm_by, record.sent = "", ()
        bound = record.answer
        if was_bound and isinstance(bound, Bound):
            told = f"bound to its slice on {bound.node}: {_devices(bound)}"
            self.status_writer.event(record, "SliceBound", told, "Normal")
        elif isinstance(bound, Bound) and record.held is not None:
            made = f"its slice on {bound.node} was created again: {_devices(bound)}"
            self.status_writer.event(record, "SliceMadeAnew", made, "Normal")

    def _refused(self, record: PodRecord, event: events.Failed[events.PodWrite], now: float) -> None:
        has_no_answer = event.status == 0 or event.status >= SERVER_ERRORS
        if has_no_answer or event.status in WORTH_READING:
            record.mark_for_read()
        if isinstance(event.wanted, events.BindPod) and has_no_answer:
            record.confirm_by = "write"
        elif isinstance(event.wanted, events.BindPod) and event.status in REFUSED_BY_WHAT_IS_THERE:
            record.confirm_by = "read"
        self.failed(record, record.writing, now, max(self.config.retry_initial_s, event.retry_after_s))
        if event.status not in NOT_FOR_PEOPLE and record.writing.failures >= TOLD_AFTER:
            why = f"cannot be bound to its slice: the API server refuses the patch ({event.status}: {event.message})"
            self._complain(record, f"{why}; retrying")

    def _read_claims(self, record: PodRecord, view: PodView, now: float) -> bool:
        if self._start(record, record.reading_claims, now):
            self.out.append(events.ReadClaims(record.uid, record.namespace, view.claims))
        return True

    def _reads_claims_again(self, record: PodRecord, view: PodView, bound: Bound, now: float) -> bool:
        return bool(view.claims) and record.places_for != bound.allocation and self._read_claims(record, view, now)

    def claims_read(self, record: PodRecord, unknown: Iterable[str]) -> None:
        """The claims were read; unknown topologies become an Event, the first time."""
        record.reading_claims = PendingWrite()
        for each in unknown if record.places is None else ():
            why = f"{each}. The pod stays unscheduled if its slice is on a node that cannot reach the volume"
            self.status_writer.event(record, "SliceWarning", why)

    def _read(self, record: PodRecord, now: float) -> None:
        if record.needs_read and record.name and self._order(record, record.reading, now, events.ReadPod):
            record.read_too_early = False

    def pod_read(self, record: PodRecord) -> None:
        record.needs_read, record.read_too_early = record.read_too_early, False
        if record.confirm_by == "read" and not record.needs_read:
            record.confirm_by = ""

    def _stuck(self, record: PodRecord, view: PodView, now: float) -> str:
        if view.is_gated or view.has_started or granted_annotations.held_by(view) is None:
            record.opened_at = None
            return ""
        if record.opened_at is None:
            record.opened_at = now
        after_s = self.config.start_after_s if view.node else self.config.unscheduled_after_s
        if after_s <= 0:
            return ""
        if now < record.opened_at + after_s:
            self.delayed_queue.at(record.uid, record.opened_at + after_s)
            return ""
        if view.node:
            return f"no container started on {view.node} within {after_s:.0f} s"
        why = view.unschedulable or "the scheduler gave no reason"
        return f"the scheduler did not place it on {view.place} within {after_s:.0f} s: {why}"

    def _decide_eviction(self, record: PodRecord, view: PodView, stuck: str, now: float) -> str:
        if record.eviction:
            return record.eviction
        warning, is_idle = self.idle.step(record)
        if warning:
            self.status_writer.event(record, "SliceIdle", warning)
            self.out.append(WriteLogLine("info", f"{record.namespace}/{record.name}: {warning}", record.uid))
        if is_idle:
            return is_idle
        if not view.controller:
            return ""  # no controller would recreate it: it keeps its slice, and its condition shows the problem
        if stuck:
            if not view.node:
                self.avoided_nodes.add(view.owner, NodeName(view.place), now)
            return stuck
        if not self.config.evict_lost:
            return ""
        if isinstance(record.answer, Released):
            return f"its slice was lost: {pod_problem.loss_cause(record.answer)}"
        return "its slice was lost (see its condition)" if record.is_lost else ""

    def _evict(self, record: PodRecord, cause: str, now: float, *, alone: bool = False) -> None:
        if self._stays(record) and self._order(record, record.evicting, now, events.EvictPod, cause):
            self.status_writer.event(record, "Evicting", f"evicting the pod: {cause}")
        for uid, name in () if alone else self.claims.beside(record):
            writing = record.evicting_beside.setdefault(uid, PendingWrite())
            if uid not in record.going and self._start(record, writing, now):
                self.evicting_for[uid] = record.uid
                if not writing.failures:
                    why = f"evicting the pod with {record.name}, whose ResourceClaim it uses too: {cause}"
                    self.status_writer.evicting_beside(record.namespace, uid, name, why)
                self.out.append(events.EvictPod(uid, record.namespace, name, cause))
        self._see_whether_gone(record)

    def _stays(self, record: PodRecord) -> bool:
        view = record.view
        return view is not None and not view.dying and not record.over and not record.is_going

    def _see_whether_gone(self, record: PodRecord) -> None:
        stay = self._stays(record) or any(uid not in record.going for uid, _ in self.claims.beside(record))
        if record.evicted or stay:
            return
        record.evicted = True
        if record.eviction:
            self.outcomes.append((record.uid, EvictionDone(request=record.uid)))

    def evicted(self, record: PodRecord, uid: RequestId) -> None:
        record.going[uid] = None
        if uid == record.uid:
            record.evicting = PendingWrite()
        self._see_whether_gone(record)

    def eviction_refused(self, record: PodRecord, event: events.Failed[events.EvictPod], now: float) -> None:
        uid = event.wanted.uid
        is_its_own = uid == record.uid
        if event.status in NOT_THAT_POD and is_its_own:
            record.mark_for_read()
        elif event.status in NOT_THAT_POD:
            self.evicted(record, uid)
            return
        elif event.status:
            which = "the pod" if is_its_own else "a pod with its ResourceClaim"
            why = f"cannot evict {which} now, retrying: {event.message}"
            self.status_writer.event(record, "EvictionBlocked", why)
            if record.eviction and not record.evicted:  # otherwise its eviction was reported already
                self.outcomes.append((record.uid, EvictionBlocked(request=record.uid, why=event.message[:1000])))
        writing = record.evicting if is_its_own else record.evicting_beside.setdefault(uid, PendingWrite())
        self.failed(record, writing, now, self.config.evict_retry_s)

    def gone(self, record: PodRecord) -> None:
        """The object was deleted: an ordered eviction of this pod is done."""
        if record.eviction:
            record.going[record.uid] = None
            self._see_whether_gone(record)

    def _tell(self, record: PodRecord, stuck: str, now: float) -> None:
        ails = self.slice_health.why(record.uid, record.held.node) if record.held is not None else ""
        problem = pod_problem.problem_of(record, stuck, ails, self.slice_health.made_on(record.uid))
        written, later = self.status_writer.tell(record, problem, now)
        self.out += written
        for at in later:
            self.delayed_queue.at(record.uid, at)

    def _complain(self, record: PodRecord, why: str) -> None:
        if record.complaint != why:
            record.complaint = why
            self.out.append(WriteLogLine("warning", f"{record.namespace}/{record.name} {why}", record.uid))

    def _order(
        self, record: PodRecord, writing: PendingWrite, now: float, kind: Callable[..., events.Call], *args: Any
    ) -> bool:
        """Give an instruction about the pod, unless the last one of its sort is under way or its pause lasts."""
        starts = self._start(record, writing, now)
        if starts:
            self.out.append(kind(record.uid, record.namespace, record.name, *args))
        return starts

    def _start(self, record: PodRecord, writing: PendingWrite, now: float) -> bool:
        return writing.start(record.uid, self.delayed_queue, now)

    def failed(self, record: PodRecord, writing: PendingWrite, now: float, initial_s: float = 0.0) -> None:
        """A call about the pod failed. The next one waits, `initial_s` at first."""
        initial_s = initial_s or self.config.retry_initial_s
        writing.failed(record.uid, self.delayed_queue, now, initial_s=initial_s, max_s=self.config.retry_max_s)


def _devices(bound: Bound) -> str:
    return "; ".join(f"{each.container}: {each.visible_devices}" for each in bound.containers)

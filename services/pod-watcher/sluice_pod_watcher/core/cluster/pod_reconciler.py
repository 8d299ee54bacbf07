"""
What follows for one pod from what is known of it: its patch, its eviction, what people are told.

Derived from facts each time the pod is looked at; nothing is remembered but what is under way and when to try again.
A pod's gate cannot be put back and its pin cannot be changed (422), so it is bound once, and only on a `Bound` that can
be carried out whole.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.kube.names import ANNOTATION_REQUEST
from sluice.contracts.messages import Bound, EvictionBlocked, EvictionDone, Released
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.events import (
    AnnotatePod,
    BindPod,
    EvictionRefused,
    EvictPod,
    Own,
    Patch,
    PatchRefused,
    ReadClaims,
    ReadPod,
)
from sluice_pod_watcher.core.cluster.nodes.node_capacity import NodeCapacity
from sluice_pod_watcher.core.cluster.pods import pod_patches
from sluice_pod_watcher.core.cluster.pods.avoided_nodes import AvoidedNodes
from sluice_pod_watcher.core.cluster.pods.granted_annotations import annotations_of, held_by
from sluice_pod_watcher.core.cluster.pods.pod_problem import loss_cause, problem_of
from sluice_pod_watcher.core.cluster.pods.pod_record import PendingWrite, PodRecord
from sluice_pod_watcher.core.cluster.pods.pod_view import PodView
from sluice_pod_watcher.core.cluster.pods.slice_health import SliceHealth
from sluice_pod_watcher.core.cluster.status_writer import StatusWriter
from sluice_pod_watcher.core.folder.events import WriteLogLine
from sluice_pod_watcher.core.workqueue import DelayedQueue, backoff_s

NOT_THAT_POD = frozenset({404, 409})
"""The eviction's precondition did not hold: the pod of that UID is gone."""
WORTH_READING = frozenset({0, 404, 409, 422})
"""Refusals after which the pod may be another one than we know; a failed test of a JSON patch is a plain 422."""
REFUSED_BY_WHAT_IS_THERE = frozenset({404, 422})
"""Of a write: one that was sent before, and had no answer, could not land on that any more."""
SERVER_ERRORS = 500
"""From here on a refusal does not tell whether the write was taken (504: nobody waited for that any more)."""
NOT_FOR_PEOPLE = frozenset({0, *NOT_THAT_POD})
"""Of a write: the API server is away, or it is another pod."""
ASKS_FOR_WHAT = f"has a slice, but its request cannot be parsed (annotation {ANNOTATION_REQUEST})"
TOLD_AFTER = 5
"""Refusals in a row, in half a minute of tries, before the pod's owner is told: shorter troubles end by themselves."""


@dataclass(slots=True)
class PodReconciler:
    """Looks at one pod after the other. What it says to do is in `out`, eviction outcomes in `outcomes`."""

    config: ClusterConfig
    status_writer: StatusWriter
    node_capacity: NodeCapacity
    avoided_nodes: AvoidedNodes = field(default_factory=AvoidedNodes)
    """Where pods were not placed; of it others make what the next ones ask for."""
    delayed_queue: DelayedQueue = field(default_factory=DelayedQueue)
    slice_health: SliceHealth = field(default_factory=SliceHealth)
    answers_are_old: bool = False
    """They are of a life of the bus before the one whose requests are read: its answers are being read."""
    out: list[Own] = field(default_factory=list)
    outcomes: list[tuple[RequestId, EvictionDone | EvictionBlocked]] = field(default_factory=list)

    def settle(self, record: PodRecord, now: float) -> None:
        """Want what follows for one pod."""
        if record.needs_read:
            self._read(record, now)
        view = record.view
        if record.ended is not None or view is None:
            return
        is_bound_anew = isinstance(record.answer, Bound) and not view.dying
        if record.confirm_by == "write" and view.is_gated and not is_bound_anew and not record.needs_read:
            self._send(record, record.sent, now)  # whatever the answer says: nobody ends it before all is told
        if view.dying:
            if record.eviction and not record.evicted:
                self._evicted(record)
            return
        self._read_claims(record, view, now)
        if record.asked is None and record.held is not None:
            self._complain(record, ASKS_FOR_WHAT)
        stuck = self._stuck(record, view, now)
        if not record.needs_read and isinstance(record.answer, Bound):
            self._bind_or_annotate(record, view, record.answer, now)
        cause = self._why_evict(record, view, stuck, now)
        if cause:
            self._evict(record, cause, now)
        self._tell(record, stuck, now)

    # -- the pod itself -------------------------------------------------------------------------------------------

    def _bind_or_annotate(self, record: PodRecord, view: PodView, bound: Bound, now: float) -> None:
        if record.asked is None or record.writing.under_way or view.others_gates:
            return
        if not bound.is_for(record.held):
            return  # it is bound to what it has again
        annotations = annotations_of(bound, record.asked)
        if isinstance(annotations, str):
            self._complain(record, f"cannot be given its slice: {annotations}")
            return
        if not view.is_gated:
            self._annotate(record, view, bound, annotations, now)
            return
        if record.is_refused or self.answers_are_old or record.evicting.under_way or record.evicted:
            return  # its slice is taken back, may be another one in this life of the bus, or the pod goes
        if not record.confirm_by and (
            self._reads_claims_again(record, view, bound, now) or self._declines(record, view, bound, now)
        ):
            return
        patch = pod_patches.bind(view, bound.node, annotations)
        if isinstance(patch, str):
            self._complain(record, f"cannot be bound: {patch}")
        else:
            self._send(record, patch, now)

    def _declines(self, record: PodRecord, view: PodView, bound: Bound, now: float) -> bool:
        """
        Whether the node keeps the pod out by now: a pin cannot be changed, so it would wait there for ever.

        It gives back what it was bound to before it was let go with it, and gets a slice elsewhere (ADR 0061).
        """
        assert record.terms is not None
        why = self.node_capacity.why_kept_out(bound.node, record.terms.host.tolerations, record.places or ())
        if why and self._may(record, record.writing, now):
            given_back = f"gives back its slice on {bound.node}, which {why}. It waits for another one"
            self._complain(record, given_back)
            patch = pod_patches.decline(view, bound.allocation)
            self.out.append(AnnotatePod(record.uid, record.namespace, record.name, patch))
        return bool(why)

    def _send(self, record: PodRecord, patch: Patch, now: float) -> None:
        """Bind it. This settles a patch that had no answer, be it the same one again: only one of them can land."""
        if self._may(record, record.writing, now):
            record.sent = patch
            self.out.append(BindPod(record.uid, record.namespace, record.name, patch))

    def _annotate(
        self, record: PodRecord, view: PodView, bound: Bound, annotations: dict[str, str], now: float
    ) -> None:
        if all(view.granted.get(key) == text for key, text in annotations.items()):
            record.complaint = ""
            return
        if view.place != bound.node:  # what is there would be another pod's device
            where = view.place or "no node that is known"
            self._complain(record, f"is on {where}, and its slice on {bound.node}: it is told nothing of it")
        elif self._may(record, record.writing, now):
            patch = pod_patches.annotate(view, annotations)
            self.out.append(AnnotatePod(record.uid, record.namespace, record.name, patch))

    def patched(self, record: PodRecord, *, was_bound: bool) -> None:
        """A write of ours was taken."""
        record.writing, record.complaint = PendingWrite(), ""
        if was_bound:
            record.confirm_by, record.sent = "", ()
        bound = record.answer
        if was_bound and isinstance(bound, Bound):
            self.status_writer.event(
                record, "Normal", "SliceBound", f"has its slice on {bound.node}: {_devices(bound)}"
            )
        elif isinstance(bound, Bound) and record.held is not None:
            made = f"its slice on {bound.node} was made anew: {_devices(bound)}"
            self.status_writer.event(record, "Normal", "SliceMadeAnew", made)

    def patch_refused(self, record: PodRecord, event: PatchRefused, now: float) -> None:
        """A write of ours was refused, or has no answer."""
        has_no_answer = event.status == 0 or event.status >= SERVER_ERRORS
        if has_no_answer or event.status in WORTH_READING:
            record.mark_for_read()
        if event.step == "bind" and has_no_answer:
            record.confirm_by = "write"
        elif event.step == "bind" and event.status in REFUSED_BY_WHAT_IS_THERE:
            record.confirm_by = "read"
        self._failed(record, record.writing, now, max(self.config.retry_initial_s, event.retry_after_s))
        if event.status not in NOT_FOR_PEOPLE and record.writing.failures >= TOLD_AFTER:
            why = f"is not told its slice, for the API server refuses it ({event.status}: {event.message})"
            self._complain(record, f"{why}; it is tried again")

    def told(self, record: PodRecord, now: float, *, refused: int | None = None) -> None:
        """The condition was written, or refused with this status."""
        if refused is None:
            record.writing_condition = PendingWrite(not_before=now + self.config.condition_interval_s)
        else:
            if refused in WORTH_READING:
                record.mark_for_read()
            self._failed(record, record.writing_condition, now, self.config.condition_interval_s)

    # -- where its volumes are ------------------------------------------------------------------------------------

    def _read_claims(self, record: PodRecord, view: PodView, now: float) -> None:
        if record.unread is not None and self._may(record, record.reading_claims, now):
            self.out.append(ReadClaims(record.uid, record.namespace, view.claims))

    def _reads_claims_again(self, record: PodRecord, view: PodView, bound: Bound, now: float) -> bool:
        """Whether its claims are read once more: one may have been bound elsewhere since the place was chosen."""
        if not view.claims or record.places_for == bound.allocation:
            return False
        if self._may(record, record.reading_claims, now):
            self.out.append(ReadClaims(record.uid, record.namespace, view.claims))
        return True

    def claims_read(self, record: PodRecord, unknown: Iterable[str]) -> None:
        """They were read; what is not known of them is told, the first time."""
        record.reading_claims = PendingWrite()
        for each in unknown if record.places is None else ():
            why = (
                f"{each}. Its slice may be on a node that cannot reach the volume; then the scheduler does not place it"
            )
            self.status_writer.event(record, "Warning", "SliceWarning", why)

    def claims_unreadable(self, record: PodRecord, now: float) -> None:
        """They could not be read now."""
        self._failed(record, record.reading_claims, now, self.config.retry_initial_s)

    # -- reading it by name ---------------------------------------------------------------------------------------

    def _read(self, record: PodRecord, now: float) -> None:
        if record.name and self._may(record, record.reading, now):
            record.read_too_early = False
            self.out.append(ReadPod(record.uid, record.namespace, record.name))

    def was_read(self, record: PodRecord) -> None:
        """It was read by its name, and is there."""
        record.needs_read, record.read_too_early = record.read_too_early, False
        if record.confirm_by == "read" and not record.needs_read:
            record.confirm_by = ""

    def unreadable(self, record: PodRecord, now: float) -> None:
        """It could not be read by its name."""
        self._failed(record, record.reading, now, self.config.retry_initial_s)

    # -- pods that do not start, evictions ------------------------------------------------------------------------

    def _stuck(self, record: PodRecord, view: PodView, now: float) -> str:
        """Why a pod that was bound does not start, once that counts."""
        if view.is_gated or view.has_started or held_by(view) is None:
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
            return f"no container has started on {view.node} in {after_s:.0f} s"
        why = view.unschedulable or "the scheduler has not said why"
        return f"the scheduler has not placed it on {view.place} in {after_s:.0f} s: {why}"

    def _why_evict(self, record: PodRecord, view: PodView, stuck: str, now: float) -> str:
        if record.eviction:
            return record.eviction
        if not view.controller:
            return ""  # nobody would make it anew: it keeps what it has, and is told why it waits
        if stuck:
            if not view.node:
                self.avoided_nodes.add(view.owner, NodeName(view.place), now)
            return stuck
        if not self.config.evict_lost:
            return ""
        if isinstance(record.answer, Released):
            return f"its slice was lost: {loss_cause(record.answer)}"
        return "its slice was lost, as its condition tells" if record.is_lost else ""

    def _evict(self, record: PodRecord, cause: str, now: float) -> None:
        if not record.evicted and self._may(record, record.evicting, now):
            self.status_writer.event(record, "Warning", "Evicting", f"evicting the pod: {cause}")
            self.out.append(EvictPod(record.uid, record.namespace, record.name, cause))

    def evicted(self, record: PodRecord) -> None:
        """The eviction was taken."""
        record.evicting = PendingWrite()
        self._evicted(record)

    def _evicted(self, record: PodRecord) -> None:
        record.evicted = True
        if record.eviction:
            self.outcomes.append((record.uid, EvictionDone(request=record.uid)))

    def eviction_refused(self, record: PodRecord, event: EvictionRefused, now: float) -> None:
        """The eviction was not taken."""
        if event.status in NOT_THAT_POD:
            record.mark_for_read()
        elif event.status:
            why = f"cannot evict the pod now, retrying: {event.message}"
            self.status_writer.event(record, "Warning", "EvictionBlocked", why)
            if record.eviction and not record.evicted:  # else it goes already, and that it does was said
                self.outcomes.append((record.uid, EvictionBlocked(request=record.uid, why=event.message[:1000])))
        self._failed(record, record.evicting, now, self.config.evict_retry_s)

    def gone(self, record: PodRecord) -> None:
        """The object is not there any more: an eviction that was ordered is done."""
        if record.eviction and not record.evicted:
            self._evicted(record)

    # -- people ---------------------------------------------------------------------------------------------------

    def _tell(self, record: PodRecord, stuck: str, now: float) -> None:
        ails = self.slice_health.why(record.uid, record.held.node) if record.held is not None else ""
        problem = problem_of(record, stuck, ails, self.slice_health.made_on(record.uid))
        written, later = self.status_writer.tell(record, problem, now)
        if written is not None:
            self.out.append(written)
        for at in later:
            self.delayed_queue.at(record.uid, at)

    def _complain(self, record: PodRecord, why: str) -> None:
        """What nobody else says: in the log once, and to whoever looks at the pod."""
        if record.complaint != why:
            record.complaint = why
            self.out.append(WriteLogLine("warning", f"{record.namespace}/{record.name} {why}", record.uid))

    # -- writes, one at a time ------------------------------------------------------------------------------------

    def _may(self, record: PodRecord, writing: PendingWrite, now: float) -> bool:
        """Whether a write may begin now; it then has."""
        if writing.under_way:
            return False
        if now < writing.not_before:
            self.delayed_queue.at(record.uid, writing.not_before)
            return False
        writing.under_way = True
        return True

    def _failed(self, record: PodRecord, writing: PendingWrite, now: float, initial_s: float) -> None:
        writing.under_way = False
        writing.failures += 1
        writing.not_before = now + backoff_s(writing.failures, initial_s, max(initial_s, self.config.retry_max_s))
        self.delayed_queue.at(record.uid, writing.not_before)


def _devices(bound: Bound) -> str:
    return "; ".join(f"{each.container}: {each.visible_devices}" for each in bound.containers)

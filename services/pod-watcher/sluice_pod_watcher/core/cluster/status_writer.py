"""Write Events, and a condition for pods with a lasting problem (of which `kubectl describe` shows the status only).
Writes have a bounded rate and go round the pods: one that is skipped later shows the latest."""

import hashlib
from collections import deque
from typing import Literal

from sluice.contracts import ids, reasons
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.events import WriteEvent, WritePodCondition
from sluice_pod_watcher.core.cluster.pods import pod_record, pod_view
from sluice_pod_watcher.core.cluster.pods.pod_problem import NOTE_CHARACTERS_MAX, Level, PodProblem
from sluice_pod_watcher.core.workqueue import FairLine, TokenBucket, remember

EVENTS_REMEMBERED = 16  # per pod: the same Event again extends its series
NAME_CHARACTERS_MAX = 200  # of the pod's name in an Event's name (253 at most), whose labels end in no dash
READY = pod_view.PodCondition("True", "SliceReady", "")


class StatusWriter:
    """Decides which conditions and Events to write, and how fast."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._after_s = {"none": 0.0, "a moment": config.tell_after_s, "an answer": config.unanswered_after_s}
        self._line = FairLine(TokenBucket(config.conditions_per_s, config.burst))  # with a condition to write
        self._events = TokenBucket(config.events_per_s, config.burst)
        self._queue: deque[WriteEvent] = deque(maxlen=config.events_max)  # Events; a full one drops the oldest

    def tell(
        self, record: pod_record.PodRecord, problem: PodProblem | None, now: float
    ) -> tuple[list[WritePodCondition], list[float]]:
        """The condition to write now, if any, and when to look again. Events wait for `due`."""
        view = record.view
        if view is None or view.dying or record.ended is not None:
            return [], []
        if problem is None:
            record.event_told = None
            return self._condition(record, view, None, now)
        since = record.quiet_since if problem.patience == "an answer" else record.since  # from the last answer
        begins = since + self._after_s[problem.patience]
        if now < begins:
            return [], [begins]
        again = self._remind(record, problem, now)
        written, later = self._condition(record, view, problem, now)
        return written, [again, *later]

    def turns(self, now: float) -> list[ids.RequestId]:
        return self._line.turns(now)

    def _condition(
        self, record: pod_record.PodRecord, view: pod_view.PodView, problem: PodProblem | None, now: float
    ) -> tuple[list[WritePodCondition], list[float]]:
        written, writing = view.condition, record.writing_condition
        wanted = problem.condition if problem is not None else None
        if wanted is None and written is not None and written.status == "False" and not view.is_gated:
            wanted = READY  # its condition shows that it waited, so it shows that this is over
        is_settled = wanted is None or wanted == written or writing.under_way
        if wanted is None or is_settled or now < writing.not_before:
            self._line.leave(record.uid)
            return [], [] if is_settled else [writing.not_before]
        if not self._line.take_turn(record.uid, now):
            return [], []
        writing.under_way = True
        status: Literal["True", "False"] = "True" if wanted.status == "True" else "False"
        about = record.uid, record.namespace, record.name
        return [WritePodCondition(*about, status=status, reason=wanted.reason, message=wanted.message)], []

    def event(self, record: pod_record.PodRecord, reason: str, note: str, level: Level = "Warning") -> None:
        """Queue an Event about a pod. The same one again extends its series."""
        note = reasons.shorten(note, NOTE_CHARACTERS_MAX)
        key = _key(record.uid, record.name, reason, note)
        count = record.events.get(key, 0) + 1
        remember(record.events, key, count, at_most=EVENTS_REMEMBERED)
        said = WriteEvent(record.uid, record.namespace, record.name, key, level, reason, note, count)
        self._queue.append(said)

    def evicting_beside(self, namespace: str, uid: ids.RequestId, name: str, note: str) -> None:
        """Queue an Event about a pod that has no record: it is evicted with another one."""
        note = reasons.shorten(note, NOTE_CHARACTERS_MAX)
        key = _key(uid, name, "Evicting", note)
        self._queue.append(WriteEvent(uid, namespace, name, key, "Warning", "Evicting", note))

    def _remind(self, record: pod_record.PodRecord, problem: PodProblem, now: float) -> float:
        """Write an Event when the problem is new, and again before that one expires. Returns when to look again."""
        told = record.event_told
        if told is None and record.view is not None and record.view.condition == problem.condition:
            record.event_told = told = (problem.event, problem.message, now)  # a predecessor wrote it
        at = now
        if told is not None and told[0] == problem.event:
            is_news = told[1] != problem.message
            at = told[2] + (self._config.wait_event_interval_s if is_news else self._config.event_again_s)
        if now < at:
            return at
        record.event_told = (problem.event, problem.message, now)
        self.event(record, problem.event, problem.message, problem.level)
        return now + self._config.event_again_s

    def due(self, now: float) -> list[WriteEvent]:
        found: list[WriteEvent] = []
        while self._queue and self._events.take(now):
            found.append(self._queue.popleft())
        return found


def _key(uid: ids.RequestId, name: str, reason: str, note: str) -> str:
    digest = hashlib.sha256(f"{uid}/{reason}/{note}".encode()).hexdigest()[:16]
    return f"{name[:NAME_CHARACTERS_MAX].rstrip('-.')}.{digest}"  # before a dot comes a letter or a digit

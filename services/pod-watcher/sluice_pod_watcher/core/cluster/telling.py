"""
What people are told of a pod: Events, and a condition on those whose trouble lasts for longer than a moment.

In the good case nothing is written to the pod. `kubectl describe` shows of a condition only that it is False, so what
is the matter is an Event as well. A thousand waiting pods whose reasons change all the time are told at a bounded rate,
each in its turn: what is not written now is compared again later, and then says the latest.
"""

import hashlib
from collections import deque
from typing import Literal

from sluice.contracts.ids import RequestId
from sluice.contracts.reasons import shorten
from sluice_pod_watcher.core.cluster.events import WriteEvent, WritePodCondition
from sluice_pod_watcher.core.cluster.pacing import Budget, Line
from sluice_pod_watcher.core.cluster.plight import NOTE_CHARACTERS_MAX, Plight
from sluice_pod_watcher.core.cluster.pod_views import Condition
from sluice_pod_watcher.core.cluster.records import Record
from sluice_pod_watcher.core.cluster.rules import ClusterRules

EVENTS_REMEMBERED = 16
"""Of one pod: what was said before counts on in its series."""
NAME_CHARACTERS_MAX = 200
"""Of a pod's name in that of its Events: an object's has at most 253, and no part of it ends in a dash (RFC 1123)."""
READY = Condition("True", "SliceReady", "")


class Telling:
    """Which conditions and events are to be written, and how fast."""

    def __init__(self, rules: ClusterRules) -> None:
        """Nothing to tell."""
        self._rules = rules
        self._after_s = {"none": 0.0, "a moment": rules.tell_after_s, "an answer": rules.unanswered_after_s}
        self._line = Line(Budget(rules.conditions_per_s, rules.burst))
        """Of pods whose condition is to be written."""
        self._events = Budget(rules.events_per_s, rules.burst)
        self._queue: deque[WriteEvent] = deque(maxlen=rules.events_max)
        """What does not fit drops the oldest: events are for people, who look at the latest."""

    def tell(
        self, record: Record, plight: Plight | None, now: float
    ) -> tuple[WritePodCondition | None, tuple[float, ...]]:
        """The condition to write now, if any, and when to look again. Events wait for `due`."""
        view = record.view
        if view is None or view.dying or record.ended is not None:
            return None, ()
        if plight is None:
            record.event_told = None
        begins = self._begins(record, plight) if plight is not None else now
        if now < begins:
            return None, (begins,)
        again = self._remind(record, plight, now) if plight is not None else None
        written, later = self._condition(record, plight, now)
        return written, tuple(at for at in (again, later) if at is not None)

    def turns(self, now: float) -> list[RequestId]:
        """Pods that stood in line for their condition, and whose turn it is."""
        return self._line.turns(now)

    def _begins(self, record: Record, plight: Plight) -> float:
        """From when on a trouble is told. Whether an answer is missing counts from the last one, whatever it was."""
        since = record.quiet_since if plight.patience == "an answer" else record.since
        return since + self._after_s[plight.patience]

    # -- the condition --------------------------------------------------------------------------------------------

    def _condition(
        self, record: Record, plight: Plight | None, now: float
    ) -> tuple[WritePodCondition | None, float | None]:
        view = record.view
        assert view is not None
        written = view.condition
        wanted = plight.condition if plight is not None else None
        if wanted is None and written is not None and written.status == "False" and not view.is_gated:
            wanted = READY  # it was told that it waits, so it is told that this is over
        if wanted is None or wanted == written or record.telling.under_way:
            self._line.leave(record.uid)
            return None, None
        if now < record.telling.not_before:
            self._line.leave(record.uid)
            return None, record.telling.not_before
        if not self._line.may_go(record.uid, now):
            return None, None
        record.telling.under_way = True
        status: Literal["True", "False"] = "True" if wanted.status == "True" else "False"
        what = WritePodCondition(
            record.uid, record.namespace, record.name, status=status, reason=wanted.reason, message=wanted.message
        )
        return what, None

    # -- events ---------------------------------------------------------------------------------------------------

    def event(self, record: Record, level: Literal["Normal", "Warning"], reason: str, note: str) -> None:
        """Say something about a pod. The same again is one more of its series."""
        note = shorten(note, NOTE_CHARACTERS_MAX)
        digest = hashlib.sha256(f"{record.uid}/{reason}/{note}".encode()).hexdigest()[:16]
        name = record.name[:NAME_CHARACTERS_MAX].rstrip("-.")  # before a dot comes a letter or a digit
        key = f"{name}.{digest}"
        count = record.events.pop(key, 0) + 1
        record.events[key] = count
        while len(record.events) > EVENTS_REMEMBERED:
            record.events.pop(next(iter(record.events)))
        said = WriteEvent(record.uid, record.namespace, record.name, key, level, reason, note, count)
        self._queue.append(said)

    def _remind(self, record: Record, plight: Plight, now: float) -> float | None:
        """Say what is the matter when it is news, and again before its Event expires. Returns when to look again."""
        told = record.event_told
        if told is None and record.view is not None and record.view.condition == plight.condition:
            record.event_told = told = (plight.event, plight.message, now)  # a predecessor has told it
        at = now
        if told is not None and told[0] == plight.event:
            is_news = told[1] != plight.message
            at = told[2] + (self._rules.wait_event_interval_s if is_news else self._rules.event_again_s)
        if now < at:
            return at
        record.event_told = (plight.event, plight.message, now)
        self.event(record, plight.level, plight.event, plight.message)
        return now + self._rules.event_again_s

    def due(self, now: float) -> list[WriteEvent]:
        """The events that may be written now."""
        found: list[WriteEvent] = []
        while self._queue and self._events.take(now):
            found.append(self._queue.popleft())
        return found

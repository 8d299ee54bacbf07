"""
What people are told of a pod: Events, and a condition on those that wait for longer than a moment.

In the good case nothing is written to the pod. A thousand waiting pods whose reasons change all the time are told at a
bounded rate: what is not written now is compared again later, and then says the latest.
"""

import hashlib
from collections import deque
from typing import Literal

from sluice.contracts.messages import Bound, Refused, Released
from sluice.contracts.refusals import shorten
from sluice_pod_watcher.core.cluster.events import WriteEvent, WritePodCondition
from sluice_pod_watcher.core.cluster.pacing import Budget
from sluice_pod_watcher.core.cluster.pod_views import Condition
from sluice_pod_watcher.core.cluster.requests import Record
from sluice_pod_watcher.core.cluster.rules import ClusterRules

NOTE_CHARACTERS_MAX = 900
"""An Event's note holds 1,024 (tried)."""
EVENTS_REMEMBERED = 16
"""Of one pod: what was said before counts on in its series."""
READY = Condition("True", "SliceReady", "")


class Telling:
    """Which conditions and events are to be written, and how fast."""

    def __init__(self, rules: ClusterRules) -> None:
        """Nothing to tell."""
        self._rules = rules
        self._conditions = Budget(rules.conditions_per_s, rules.burst)
        self._events = Budget(rules.events_per_s, rules.burst)
        self._queue: deque[WriteEvent] = deque(maxlen=rules.events_max)
        """What does not fit drops the oldest: events are for people, who look at the latest."""

    # -- the condition --------------------------------------------------------------------------------------------

    def condition(self, record: Record, stuck: str, now: float) -> tuple[WritePodCondition | None, float | None]:
        """The condition to write now, if any; and when to look again, if ever."""
        view = record.view
        if view is None or view.dying or record.ended is not None or record.telling.under_way:
            return None, None
        wanted, later = self._wanted(record, stuck, now)
        written = view.condition
        if wanted is None and written is not None and written.status == "False" and not view.is_gated:
            wanted = READY  # it was told that it waits, so it is told that this is over
        if wanted is None or wanted == written:
            return None, later
        if now < record.telling.not_before:
            return None, record.telling.not_before
        if not self._conditions.take(now):
            return None, now + 1.0
        record.telling.under_way = True
        status: Literal["True", "False"] = "True" if wanted.status == "True" else "False"
        what = WritePodCondition(
            record.uid, record.namespace, record.name, status=status, reason=wanted.reason, message=wanted.message
        )
        return what, later

    def _wanted(self, record: Record, stuck: str, now: float) -> tuple[Condition | None, float | None]:
        """What is to be said of a pod that does not run as it should; and when that may begin to count."""
        view, answer = record.view, record.answer
        assert view is not None
        if record.terms is not None and record.terms.refusal is not None:
            return _no("RequestRejected", record.terms.refusal.sentence()), None
        match answer:
            case Refused():
                return _no("Refused", answer.refusal.sentence()), None
            case Released():
                lost = f"its slice was lost ({answer.cause}); delete the pod, and make it anew"
                return _no("SliceLost", lost), None
            case Bound() if view.is_gated and view.others_gates:
                gates = ", ".join(view.others_gates)
                wanted = _no("OtherGates", f"its slice is ready on {answer.node}; it waits for the gate {gates}")
            case Bound():
                return (_no("NotStarted", stuck) if stuck else None), None
            case _ if not view.is_gated or record.terms is None:
                return None, None
            case _:
                wanted = _waits(record)
        begins = record.since + self._rules.tell_after_s
        return (wanted, None) if now >= begins else (None, begins)

    # -- events ---------------------------------------------------------------------------------------------------

    def event(self, record: Record, level: Literal["Normal", "Warning"], reason: str, note: str) -> None:
        """Say something about a pod. The same again is one more of its series."""
        note = shorten(note, NOTE_CHARACTERS_MAX)
        digest = hashlib.sha256(f"{record.uid}/{reason}/{note}".encode()).hexdigest()[:16]
        key = f"{record.name[:200]}.{digest}"
        count = record.events.pop(key, 0) + 1
        record.events[key] = count
        while len(record.events) > EVENTS_REMEMBERED:
            record.events.pop(next(iter(record.events)))
        said = WriteEvent(record.uid, record.namespace, record.name, key, level, reason, note, count)
        self._queue.append(said)

    def waits(self, record: Record, now: float) -> float | None:
        """Say why a pod waits, if that is news and it waits for long enough. Returns when to look again, if ever."""
        view, pending = record.view, record.pending
        if view is None or not view.is_gated or view.dying or record.ended is not None or record.answer is not None:
            return None
        text, told_at = record.waits_told
        if pending is None or pending.message == text:
            return None
        at = max(record.since + self._rules.tell_after_s, told_at + self._rules.wait_event_interval_s)
        if now < at:
            return at
        record.waits_told = (pending.message, now)
        self.event(record, "Normal", "WaitsForSlice", pending.message)
        return None

    def due(self, now: float) -> list[WriteEvent]:
        """The events that may be written now."""
        found: list[WriteEvent] = []
        while self._queue and self._events.take(now):
            found.append(self._queue.popleft())
        return found


def _waits(record: Record) -> Condition:
    pending = record.pending
    if pending is None:
        return _no("WaitsForSlice", "it waits for the allocator to look at it")
    reason = str(pending.reasons[0].reason) if pending.reasons else "WaitsForSlice"
    return _no(reason, pending.message)


def _no(reason: str, message: str) -> Condition:
    return Condition("False", reason, shorten(message, NOTE_CHARACTERS_MAX))

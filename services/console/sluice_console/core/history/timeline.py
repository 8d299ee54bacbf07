"""The timeline of one request, and of the evicted request before it, if any. Sentences come from `sentences`."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from sluice.contracts.messages import AllocationRequested, EvictionDone, EvictionOrdered, Grant, Revoke
from sluice_console.core.documents import EarlierDocument, PodDocument, StepDocument
from sluice_console.core.history.sentences import HistoryMessage, sentence

LATE_MAX_S = 1.0
"""A service writes its own history slightly late, so messages may be out of order by this much. Larger differences are
clock errors; then the order of the history is kept."""


def steps_of(request: str, history: Iterable[HistoryMessage]) -> tuple[StepDocument, ...]:
    """The steps of one request, oldest first; unchanged repetitions are dropped."""
    steps: list[StepDocument] = []
    for happened in history:
        if not concerns(request, happened):
            continue
        message = happened.envelope.message
        step = StepDocument(
            time=happened.envelope.time,
            subject=happened.subject.removeprefix("hist."),
            type=type(message).__name__,
            text=sentence(message),
        )
        if not any((step.subject, step.text) == (before.subject, before.text) for before in steps[-5:]):
            steps.insert(_at(steps, step), step)
    return tuple(steps)


def _at(steps: Sequence[StepDocument], step: StepDocument) -> int:
    """Where a step belongs: at the end, or before steps written slightly later."""
    at = len(steps)
    while at and 0 < _seconds_between(step, steps[at - 1]) <= LATE_MAX_S:
        at -= 1
    return at


def _seconds_between(first: StepDocument, second: StepDocument) -> float:
    """How much later the second step was written, in seconds; 0 for an unreadable time."""
    try:
        return (datetime.fromisoformat(second.time) - datetime.fromisoformat(first.time)).total_seconds()
    except (ValueError, TypeError):
        return 0.0


def concerns(request: str, happened: HistoryMessage) -> bool:
    """Whether a message of the history is about this request."""
    message = happened.envelope.message
    if isinstance(message, Grant | Revoke):
        return message.booking.request == request
    named = getattr(message, "request", None)
    return (named or happened.envelope.request) == request or happened.subject.endswith(f".request.{request}")


def evicted_before(
    pod: PodDocument, pods: Iterable[PodDocument], history: Sequence[HistoryMessage]
) -> EarlierDocument | None:
    """The evicted request of the same pod name that preceded this one.

    None if it was not evicted, or the history no longer has it."""
    key = (pod.source, pod.namespace, pod.name)
    kin = {each.request for each in pods if pod.name and (each.source, each.namespace, each.name) == key}
    before = ""
    for happened in history:
        said = happened.envelope
        if isinstance(said.message, AllocationRequested) and said.request in kin:
            if said.request == pod.request:
                break
            before = said.request
    if not before or not any(_is(EvictionDone, before, happened) for happened in history):
        return None
    causes = [
        happened.envelope.message.cause
        for happened in history
        if _is(EvictionOrdered, before, happened) and isinstance(happened.envelope.message, EvictionOrdered)
    ]
    return EarlierDocument(request=before, cause=causes[-1] if causes else "")


def _is(kind: type, request: str, happened: HistoryMessage) -> bool:
    return isinstance(happened.envelope.message, kind) and concerns(request, happened)

"""
The waterfall of one request, from our own records: messages of the history and the steps between them.

No trace collector is needed. Each service reports times by its own clock; a span that would end before it begins is
shown as taking no time.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

from sluice.contracts.bus.trace_headers import COMMIT, STEPS, TracePart, milliseconds, steps_of, trace_id
from sluice.contracts.messages import AllocationRequested, Bound, Grant, Pending, RequestWithdrawn, WaitOver
from sluice_console.core.documents import VERSION, Document, PodDocument
from sluice_console.core.history.sentences import HistoryMessage, sentence
from sluice_console.core.history.timeline import concerns

SPANS_MAX = 400
"""Spans per part; of a pod that was moved and resized for months the last ones are shown."""
OCCASIONS_MAX = 10
"""Occasions shown of a running pod: a pod may run for months."""
QUIET = timedelta(seconds=30)
"""Messages further apart are unrelated: longer than creating a slice takes."""
GAP_MS = 0.5
"""Gaps below this are not shown as waiting: times have a resolution of a millisecond."""
_UNTOLD = frozenset({"WriteLogLine", "Tell"})
"""Steps without a duration: log lines (`Tell` before 0.2)."""
_DOERS = {
    "request": "pod-watcher",
    "evicted": "pod-watcher",
    "ledger": "allocator",
    "binding": "allocator",
    "waiting": "allocator",
    "eviction": "allocator",
    "slice": "node-agent",
}
_NAMES = {
    "decide": "decide",
    "SaveJournal": "journal",
    "CreateGpuInstance": "make GPU instance",
    "CreateComputeInstance": "make compute instance",
    "VerifyInstance": "read it back",
    "ListHolders": "look for processes",
    "DestroyComputeInstance": "unmake compute instance",
    "DestroyGpuInstance": "unmake GPU instance",
    "SetComputeMode": "set compute mode",
    "StartMps": "start MPS daemon",
    "SetMpsLimits": "set MPS limits",
    "SetQuotas": "set time quotas",
    "WatchMps": "look at MPS daemon",
    "TerminateMpsClients": "end MPS clients",
    "StopMps": "stop MPS daemon",
    "MakeTicket": "make ticket",
    "RemoveTicket": "remove ticket",
    "BindPod": "patch: devices, pin, gate",
    "AnnotatePod": "patch: devices",
    "ReAnnotate": "patch: devices",  # before 0.2
    "WritePodCondition": "patch: condition",
    "WriteEvent": "write event",
    "EvictPod": "evict",
    "ReadPod": "read pod",
    "SaveIdentities": "remember",
    "ReadGpu": "read GPU",
}

_Word = tuple[datetime, HistoryMessage]
SpanKind = Literal["wait", "step", "word"]
"""`wait`: the next service has not begun; `step`: work done; `word`: a message published."""


class SpanDocument(Document, frozen=True, kw_only=True):
    """One bar of the waterfall."""

    name: str
    kind: SpanKind
    service: str
    """That did it, or was waited for."""
    began_ms: float
    """Offset from the start of the part."""
    took_ms: float | None
    """Null if unknown."""
    text: str = ""
    """Of a word."""


class PartDocument(Document, frozen=True, kw_only=True):
    """One trace of a request; of `running`, one occasion."""

    part: TracePart
    """`request`: until the gate opens; `release`: from its end; `running`: one for each occasion between, such as a
    restart of an agent."""
    trace_id: str
    """As at a collector."""
    began: str
    took_ms: float
    left_out: int = 0
    """Earlier spans, not listed."""
    spans: tuple[SpanDocument, ...]


class WaterfallDocument(Document, frozen=True, kw_only=True):
    """`sluice trace REQUEST --json`, and `/api/trace/REQUEST` of the page's server."""

    version: int = VERSION
    request: str
    namespace: str
    name: str
    state: str
    parts: tuple[PartDocument, ...]
    """Empty if the history knows nothing. Of what came while the pod ran, the last OCCASIONS_MAX."""


def waterfall(pod: PodDocument, history: Iterable[HistoryMessage]) -> WaterfallDocument:
    """The waterfall of one request; `history` may hold messages of others too."""
    words: list[_Word] = []
    seen = set()
    for happened in history:
        if not concerns(pod.request, happened) or happened.envelope.id in seen:
            continue
        seen.add(happened.envelope.id)
        at = _time_of(happened)
        if at is not None:
            words.append((at, happened))
    return WaterfallDocument(
        request=pod.request,
        namespace=pod.namespace,
        name=pod.name,
        state=pod.state,
        parts=tuple(_part(pod.request, part, of_it) for part, of_it in _parts(words)),
    )


def _parts(words: Sequence[_Word]) -> Iterator[tuple[TracePart, list[_Word]]]:
    """The request, the last occasions since, and its release; each in order of time."""
    told = {part: sorted(of_it, key=lambda each: each[0]) for part, of_it in _sorted_out(words).items()}
    if told["request"]:
        yield "request", told["request"]
    for occasion in _occasions(told["running"])[-OCCASIONS_MAX:]:
        yield "running", occasion
    if told["release"]:
        yield "release", told["release"]


def _sorted_out(words: Sequence[_Word]) -> dict[TracePart, list[_Word]]:
    """Assign messages to parts.

    Release begins at the first withdrawal, running at the first binding, each by position or by time: services record
    their own messages slightly late and by their own clocks. The first part ends when the wait is over and the source
    knows the binding."""
    ends = next((at for at, each in words if isinstance(each.envelope.message, RequestWithdrawn)), None)
    told: dict[TracePart, list[_Word]] = {"request": [], "running": [], "release": []}
    bound: datetime | None = None
    ending, is_released, runs = list[type](), False, False
    for at, happened in words:
        message = happened.envelope.message
        is_released = is_released or isinstance(message, RequestWithdrawn)
        if is_released or (ends is not None and at >= ends):
            told["release"].append((at, happened))
        elif bound is None or at <= bound:
            told["request"].append((at, happened))
            bound = at if isinstance(message, Bound) else bound
        elif _is_end(message) and not runs and type(message) not in ending:
            ending.append(type(message))
            told["request"].append((at, happened))
        else:
            told["running"].append((at, happened))
            runs = runs or not isinstance(message, Bound)  # alone it only waives another slice, or warns
    return told


def _is_end(message: object) -> bool:
    """Whether it says that the wait is over, or that a source remembers the binding: the pod may start now."""
    return isinstance(message, WaitOver) or (isinstance(message, AllocationRequested) and message.held is not None)


def _occasions(words: Sequence[_Word]) -> list[list[_Word]]:
    """Group messages into occasions: those of one occasion are moments apart, occasions are far apart."""
    occasions: list[list[_Word]] = []
    for word in words:
        if occasions and word[0] - occasions[-1][-1][0] <= QUIET:
            occasions[-1].append(word)
        else:
            occasions.append([word])
    return occasions


def _part(request: str, part: TracePart, words: Sequence[_Word]) -> PartDocument:
    began = min(_first_moment(at, happened) for at, happened in words)
    spans: list[SpanDocument] = []
    before: tuple[HistoryMessage, float] | None = None
    for at, happened in words:
        own = _spans_of(happened, (at - began) / timedelta(milliseconds=1))
        if before is not None:
            spans += _waiting(*before, happened, own)
        spans += own
        before = happened, max(_end(span) for span in own)
    spans.sort(key=lambda span: span.began_ms)
    shown = spans[-SPANS_MAX:]
    return PartDocument(
        part=part,
        trace_id=trace_id(request, part),
        began=began.isoformat(timespec="milliseconds"),
        took_ms=round(max(_end(span) for span in spans), 2),
        left_out=len(spans) - len(shown),
        spans=tuple(shown),
    )


def _spans_of(happened: HistoryMessage, at_ms: float) -> list[SpanDocument]:
    """The steps that led to a message, and its publish, which began at `at_ms`."""
    doer = _doer(happened)
    steps = [
        SpanDocument(
            name=_NAMES.get(step.name, step.name),
            kind="step",
            service=doer,
            began_ms=round(at_ms - step.began_ms, 2),
            took_ms=step.took_ms,
        )
        for step in steps_of(happened.headers.get(STEPS, ""))
        if step.name not in _UNTOLD
    ]
    word = SpanDocument(
        name=type(happened.envelope.message).__name__,
        kind="word",
        service=doer,
        began_ms=round(at_ms, 2),
        took_ms=milliseconds(happened.headers.get(COMMIT, "")),
        text=sentence(happened.envelope.message),
    )
    return [*steps, word]


def _waiting(
    before: HistoryMessage, ended_ms: float, happened: HistoryMessage, own: Sequence[SpanDocument]
) -> list[SpanDocument]:
    """The time between a message and the next service's reaction."""
    begins_ms = min(span.began_ms for span in own)
    if begins_ms - ended_ms < GAP_MS:
        return []
    queued = isinstance(happened.envelope.message, Grant | Pending) and isinstance(
        before.envelope.message, AllocationRequested | Pending
    )
    name = "wait in the queue" if queued else "deliver" if _doer(before) != _doer(happened) else "wait"
    took_ms = round(begins_ms - ended_ms, 2)
    return [SpanDocument(name=name, kind="wait", service=_doer(happened), began_ms=ended_ms, took_ms=took_ms)]


def _first_moment(at: datetime, happened: HistoryMessage) -> datetime:
    steps = steps_of(happened.headers.get(STEPS, ""))
    return at - timedelta(milliseconds=max((step.began_ms for step in steps if step.name not in _UNTOLD), default=0.0))


def _doer(happened: HistoryMessage) -> str:
    kind = happened.subject.removeprefix("hist.").split(".", 2)[1:2]
    return _DOERS.get("".join(kind), "sluice")


def _end(span: SpanDocument) -> float:
    return span.began_ms + (span.took_ms or 0.0)


def _time_of(happened: HistoryMessage) -> datetime | None:
    try:
        found = datetime.fromisoformat(happened.envelope.time)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


# -- for a terminal -----------------------------------------------------------------------------------------------

BAR_MIN = 16


class Bar(Document, frozen=True, kw_only=True):
    """One line: service, span, bar, duration."""

    service: str
    name: str
    kind: SpanKind
    bar: str
    began: str
    took: str


def bars(part: PartDocument, width: int, *, unicode: bool = True) -> list[Bar]:
    """The spans of a part as lines, with bars of `width` characters for the whole part."""
    width = max(BAR_MIN, width)
    full, thin = ("█", "·") if unicode else ("#", ".")
    whole_ms = max(part.took_ms, 0.01)
    lines = []
    for span in part.spans:
        took_ms = span.took_ms or 0.0
        left = min(width - 1, max(0, int(span.began_ms / whole_ms * width)))
        right = min(width, max(left + 1, round((span.began_ms + took_ms) / whole_ms * width)))
        drawn = (thin if span.kind == "wait" else full) * (right - left)
        lines.append(
            Bar(
                service=span.service,
                name=span.name,
                kind=span.kind,
                bar=(" " * left + drawn).ljust(width),
                began=duration(span.began_ms),
                took=duration(span.took_ms) if span.took_ms is not None else "?",
            )
        )
    return lines


def duration(took_ms: float) -> str:
    """A time as a person reads it: `0.4 ms`, `38 ms`, `1.24 s`, `5 min 20 s`."""
    if took_ms < 10:
        return f"{took_ms:.1f} ms"
    if took_ms < 1000:
        return f"{took_ms:.0f} ms"
    if took_ms < 60_000:
        return f"{took_ms / 1000:.2f} s"
    minutes, seconds = divmod(round(took_ms / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"

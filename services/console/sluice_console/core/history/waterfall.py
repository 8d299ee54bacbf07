"""
The way of one request as a waterfall, from our own records: what each word of the history and the steps beside it took.

It needs no collector of traces. Each service says its own times by its own clock, and nothing here is more exact than
those clocks are together; what seems to end before it begins is told as taking no time.
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
"""Spans of one part; of a pod that was moved and adjusted for months the last ones are shown."""
OCCASIONS_MAX = 10
"""Of a pod that runs for months, so many of the occasions are shown on which something was said of it."""
QUIET = timedelta(seconds=30)
"""Words that are further apart have nothing to do with each other: longer than a slice takes to be made."""
GAP_MS = 0.5
"""Gaps below this are not shown as waiting: times are told in milliseconds."""
_UNTOLD = frozenset({"Tell"})
"""Steps that are nobody's time: lines in a log."""
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
    "ReAnnotate": "patch: devices",
    "WritePodCondition": "patch: condition",
    "WriteEvent": "write event",
    "EvictPod": "evict",
    "ReadPod": "read pod",
    "SaveIdentities": "remember",
    "ReadGpu": "read GPU",
}

_Word = tuple[datetime, HistoryMessage]
SpanKind = Literal["wait", "step", "word"]
"""Time in which the next service has not begun yet; something that was done; a word that was written on the bus."""


class SpanDocument(Document, frozen=True, kw_only=True):
    """One bar of the waterfall."""

    name: str
    kind: SpanKind
    service: str
    """That did it, or was waited for."""
    began_ms: float
    """After the part began."""
    took_ms: float | None
    """Null if unknown."""
    text: str = ""
    """Of a word."""


class PartDocument(Document, frozen=True, kw_only=True):
    """One of the traces of a request; of `running`, what came of one occasion."""

    part: TracePart
    """
    `request`: until the gate opens; `release`: from its end; `running`: one for each occasion between, such as a
    restart of an agent.
    """
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
    """The waterfall of one request; `history` may hold words about others too."""
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
    """The request's way, the last occasions since, and its release; each in the order of time."""
    told = {part: sorted(of_it, key=lambda each: each[0]) for part, of_it in _sorted_out(words).items()}
    if told["request"]:
        yield "request", told["request"]
    for occasion in _occasions(told["running"])[-OCCASIONS_MAX:]:
        yield "running", occasion
    if told["release"]:
        yield "release", told["release"]


def _sorted_out(words: Sequence[_Word]) -> dict[TracePart, list[_Word]]:
    """
    Which words belong to what.

    Those of the release are after the first withdrawal, by their place or by their time; those of the running after
    the first binding, by both. Either may be a little wrong: each service records its own words, a moment after them
    and by its own clock. That the wait is over, and that the source knows the binding, is the end of the first part.
    """
    ends = next((at for at, each in words if isinstance(each.envelope.message, RequestWithdrawn)), None)
    told: dict[TracePart, list[_Word]] = {"request": [], "running": [], "release": []}
    bound: datetime | None = None
    ending, is_released = list[type](), False
    for at, happened in words:
        message = happened.envelope.message
        is_released = is_released or isinstance(message, RequestWithdrawn)
        if is_released or (ends is not None and at >= ends):
            told["release"].append((at, happened))
        elif bound is None or at <= bound:
            told["request"].append((at, happened))
            bound = at if isinstance(message, Bound) else bound
        elif _is_end(message) and not told["running"] and type(message) not in ending:
            ending.append(type(message))
            told["request"].append((at, happened))
        else:
            told["running"].append((at, happened))
    return told


def _is_end(message: object) -> bool:
    """Whether it says that the wait is over, or that a source remembers what its pod is bound to: now it may start."""
    return isinstance(message, WaitOver) or (isinstance(message, AllocationRequested) and message.held is not None)


def _occasions(words: Sequence[_Word]) -> list[list[_Word]]:
    """What came of one thing is said within moments; between two things a pod runs for long."""
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
    """The steps that led to a word, and its writing, which began at `at_ms`."""
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
    """The time between a word and what the next one did about it."""
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
    """One line: who, what, a bar, how long."""

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

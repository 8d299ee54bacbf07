"""
The messages of a run as a score for a bare broker: what each process sends, and after which message.

A note is a message without meaning. It has the size of the real one, goes to its stream, is sent by a process of its
own kind after the same predecessors, and is consumed once, by the process that acted on the real one.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from sluice.contracts.bus.events import Stream, stream_of
from sluice.contracts.messages import AllocationRequested, Bound
from sluice_console.core.bench.figures import request_of, time_s
from sluice_console.core.history.sentences import HistoryMessage

ALLOCATOR, WATCHER, INVENTORY, AGENT = "allocator", "pod-watcher", "inventory", "agent"
_SENDERS = {
    "request": WATCHER,
    "source": WATCHER,
    "ledger": ALLOCATOR,
    "binding": ALLOCATOR,
    "waiting": ALLOCATOR,
    "slice": AGENT,
    "node": AGENT,
    "inventory": INVENTORY,
}
"""Nouns that a run consists of, and their owners."""
_CONSUMERS = {
    "request": ALLOCATOR,
    "source": ALLOCATOR,
    "slice": ALLOCATOR,
    "inventory": ALLOCATOR,
    "binding": WATCHER,
    "waiting": WATCHER,
    "ledger": AGENT,
    "node": INVENTORY,
}


class ReplayMessage(msgspec.Struct, frozen=True):
    """One message of the score."""

    number: int
    sender: str
    consumer: str
    stream: str
    subject: str
    size: int
    """Bytes, with headers."""
    after: int
    """The number of the note that its sender must consume first; -1 for none."""
    at_s: float
    """Without such a note: when it is sent, after the start."""
    request: str
    """The request whose latency it is part of; empty for none."""
    ends: bool
    """Whether it ends that request."""


def replay_of(
    history: Sequence[tuple[HistoryMessage, int]],
    *,
    requests: Mapping[str, float],
    agents: Mapping[str, int],
    began_s: float,
) -> list[ReplayMessage]:
    """The notes of a run.

    `history` is every message with its size, `requests` the start time of each request (s after the start), `agents`
    the process of each node (by its token in subjects), and `began_s` the start of the run (Unix)."""
    notes: list[ReplayMessage] = []
    newest: dict[tuple[str, str], int] = {}
    bound: set[str] = set()
    for happened, size in history:
        kind, _, rest = happened.subject.removeprefix("hist.sluice.").partition(".")
        at_s = time_s(happened)
        if kind not in _SENDERS or at_s is None or at_s < began_s:
            continue
        request = request_of(happened.envelope.message) or happened.envelope.request
        if request and request not in requests:
            continue
        node = rest.split(".")[0]
        sender, consumer = (
            f"{AGENT} {agents.get(node, 0)}" if role == AGENT else role for role in (_SENDERS[kind], _CONSUMERS[kind])
        )
        about = request or node
        after = newest.get((about, sender), -1)
        if after < 0 and sender.startswith(AGENT):
            after = newest.get((node, sender), -1)
        number = len(notes)
        ends = isinstance(happened.envelope.message, Bound) and request not in bound
        if ends:
            bound.add(request)
        counts = bool(request) and (ends or isinstance(happened.envelope.message, AllocationRequested))
        notes.append(
            ReplayMessage(
                number=number,
                sender=sender,
                consumer=consumer,
                stream=stream_of(kind).value,
                subject=_subject(kind, node, number),
                size=size,
                after=after,
                at_s=0.0 if after >= 0 else requests.get(request, at_s - began_s) if request else at_s - began_s,
                request=request if counts else "",
                ends=ends,
            )
        )
        newest[about, consumer] = number
        if kind in {"ledger", "node", "inventory"}:
            newest[node, consumer] = number
    return notes


def _subject(kind: str, node: str, number: int) -> str:
    """A subject of its own under its noun, so that no note is overwritten before it is read."""
    return f"sluice.{kind}.{node}.b{number}" if kind in {"ledger", "slice"} else f"sluice.{kind}.b{number}"


def filters_of(notes: Iterable[ReplayMessage], consumer: str) -> dict[Stream, tuple[str, ...]]:
    """What one process has to read, by stream."""
    found: dict[Stream, set[str]] = {}
    for note in notes:
        if note.consumer == consumer:
            found.setdefault(Stream(note.stream), set()).add(f"{note.subject.rpartition('.')[0]}.*")
    return {stream: tuple(sorted(subjects)) for stream, subjects in found.items()}

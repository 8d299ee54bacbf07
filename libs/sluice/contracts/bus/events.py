"""The events and instructions that every service's core exchanges with the bus.

A reader's shell turns a stream into `ReadingStarted`, `Observed`..., `ReadingCaughtUp`, `Observed`...; a writer's
answers each `Write` by exactly one of `WriteAccepted`, `WriteRefused`, `WriteUnknown`."""

from enum import StrEnum

import msgspec

from sluice.contracts.ids import Incarnation, OperationId
from sluice.contracts.messages import AnyMessage


class Stream(StrEnum):
    """The three streams (PROTOCOL §1)."""

    BOOK = "BOOK"
    STATE = "STATE"
    HISTORY = "HISTORY"


BOOK_KINDS = frozenset({"ledger", "binding", "quota", "cordon"})
"""The subject kinds of decisions; every other kind is in STATE."""


def stream_of(kind: str) -> Stream:
    return Stream.BOOK if kind in BOOK_KINDS else Stream.STATE


class Entry(msgspec.Struct, frozen=True):
    """One last value. `message` is None for one that was set aside (see `why`), which counts only for the guard."""

    subject: str
    sequence: int
    operation: OperationId
    message: AnyMessage | None
    why: str = ""


class ReadingStarted(msgspec.Struct, frozen=True):
    """A reader starts from the beginning: until `ReadingCaughtUp`, the entries observed are the whole snapshot."""

    stream: Stream
    incarnation: Incarnation


class Observed(msgspec.Struct, frozen=True):
    """An entry was read, in the order of its stream. Values in between may have been skipped."""

    stream: Stream
    entry: Entry


class ReadingCaughtUp(msgspec.Struct, frozen=True):
    """The snapshot is complete: entries known before and not observed since `ReadingStarted` are gone."""

    stream: Stream


class WriteAccepted(msgspec.Struct, frozen=True):
    """The write landed at `sequence`; no earlier attempt of it can ever land."""

    operation: OperationId
    sequence: int


class WriteRefused(msgspec.Struct, frozen=True):
    """The guard did not hold: its newest sequence is `last_sequence` (None: unknown). Never used as a guard (W2)."""

    operation: OperationId
    last_sequence: int | None


class WriteUnknown(msgspec.Struct, frozen=True):
    """No answer came. The write may have landed, may land later, or never (LAW 5)."""

    operation: OperationId


class LastRead(msgspec.Struct, frozen=True):
    """The answer to `ReadLast`: the last value of one subject, or None."""

    subject: str
    entry: Entry | None


class Ticked(msgspec.Struct, frozen=True):
    """Time has passed. Sent at least once a second."""


BusEvent = ReadingStarted | Observed | ReadingCaughtUp | WriteAccepted | WriteRefused | WriteUnknown | LastRead
CoreEvent = BusEvent | Ticked


class Write(msgspec.Struct, frozen=True):
    """Publish `message` at `subject` if the newest sequence under `guard` is `expected`."""

    operation: OperationId
    attempt: int
    stream: Stream
    subject: str
    guard: str
    expected: int
    message: AnyMessage
    request: str
    ttl_s: int | None = None


class ReadAgain(msgspec.Struct, frozen=True):
    """Restart the reader of `stream`: what is known cannot explain an answer."""

    stream: Stream


class ReadLast(msgspec.Struct, frozen=True):
    """Read the last value of one subject, for writers that may not read the whole stream."""

    stream: Stream
    subject: str


BusInstruction = Write | ReadAgain | ReadLast

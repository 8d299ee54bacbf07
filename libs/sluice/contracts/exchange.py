"""
What a core and the bus say to each other: the events and instructions that every service's core shares.

Cores never see a connection. A reader's shell turns a stream into `ReadingStarted`, `Observed`..., `ReadingCaughtUp`,
`Observed`...; a writer's shell carries out `Write` and reports exactly one of `WriteAccepted`, `WriteRefused`,
`WriteUnknown` for each.
"""

from dataclasses import dataclass
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
"""The nouns of what was decided; every other noun is of STATE."""


def stream_of(kind: str) -> Stream:
    """The stream that holds the nouns of `kind`."""
    return Stream.BOOK if kind in BOOK_KINDS else Stream.STATE


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One last value: where, at which sequence, by which operation, and what.

    `message` is None for bytes that could not be decoded: they count for the guard and for nothing else.
    """

    subject: str
    sequence: int
    operation: OperationId
    message: AnyMessage | None


# -- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadingStarted:
    """A reader begins anew: until `ReadingCaughtUp`, what is observed is all there is under its filter."""

    stream: Stream
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Observed:
    """An entry was read, in the order of its stream. Values in between may have been skipped."""

    stream: Stream
    entry: Entry


@dataclass(frozen=True, slots=True)
class ReadingCaughtUp:
    """The snapshot is complete; what was known before and not observed since `ReadingStarted` is not there any more."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class WriteAccepted:
    """The write landed at `sequence`; no earlier attempt of it can ever land."""

    operation: OperationId
    sequence: int


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """
    The guard did not hold: the newest sequence under it is `last_sequence` (None when the server did not say).

    This tells how far to read before comparing, and is never used as a guard (W2).
    """

    operation: OperationId
    last_sequence: int | None


@dataclass(frozen=True, slots=True)
class WriteUnknown:
    """No answer came. The write may have landed, may land later, or never (LAW 5)."""

    operation: OperationId


@dataclass(frozen=True, slots=True)
class LastRead:
    """The answer to `ReadLast`: the last value of one subject, or None."""

    subject: str
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed. Sent at least once a second."""


ExchangeEvent = ReadingStarted | Observed | ReadingCaughtUp | WriteAccepted | WriteRefused | WriteUnknown | LastRead
Event = ExchangeEvent | Ticked


# -- instructions -------------------------------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """Start the reader of `stream` anew: what is known cannot explain an answer."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class ReadLast:
    """Read the last value of one subject. For writers that may not read the whole stream."""

    stream: Stream
    subject: str


ExchangeInstruction = Write | ReadAgain | ReadLast

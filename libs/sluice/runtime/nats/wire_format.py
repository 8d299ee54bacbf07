"""Convert between our messages and NATS messages: envelopes, delivery facts in reply subjects, JetStream's JSON API."""

import json
import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sluice.contracts.bus.codec import SCHEMA, Undecodable, decode, encode, schema_violation
from sluice.contracts.bus.events import Entry, Write
from sluice.contracts.bus.subjects import SubjectError, parse
from sluice.contracts.ids import OperationId
from sluice.contracts.messages import Envelope
from sluice.contracts.reasons import shorten
from sluice.runtime.nats import client as nats

DELIVERED = "$JS.ACK."
"""Prefix of the reply subject of every delivered message."""
STATUS = "Status"
DESCRIPTION = "Description"
SEQUENCE = "Nats-Sequence"
SUBJECT = "Nats-Subject"
TIME_STAMP = "Nats-Time-Stamp"
PENDING_MESSAGES = "Nats-Pending-Messages"
LAST_CONSUMER, LAST_STREAM = "Nats-Last-Consumer", "Nats-Last-Stream"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
TTL = "Nats-TTL"

AGENTS_WORD_BYTES_MAX = 128_000
"""Of an agent's message: services repeat its content, and end over MESSAGE_BYTES_MAX. Ours have some kB."""
AGENTS_KINDS = frozenset({"slice", "node"})
"""The subject kinds that node agents may write. A service publishes the removal of a node there, in a small message."""

WRONG_LAST_SEQUENCE = 10071
"""A guard did not hold; the text has the sequence that was found."""
OTHER_IN_FLIGHT = 10164
"""Another write under the guard is in flight, perhaps an earlier attempt of the same: nothing is known yet."""
STREAM_NOT_FOUND = 10059
STREAM_IN_USE = 10058
INSUFFICIENT_STORAGE = 10047
CONSUMER_NOT_FOUND = 10014
CONSUMER_EXISTS = 10148
CONSUMERS_LIMIT = 10026

NO_ANSWER = (
    nats.NatsTimeoutError,
    nats.NoRespondersError,
    nats.OutboundBufferLimitError,
    nats.ConnectionReconnectingError,
    nats.ConnectionDrainingError,
)
"""Raised by the client without an answer, or when nothing could be sent: the result of the request is unknown."""

_WRONG = re.compile(r"wrong last sequence: ([0-9]{1,20})")


class ApiError(Exception):
    """JetStream answered with an error. Carries HTTP-like `code`, JetStream's `err_code` and its text."""

    def __init__(self, asked: str, error: dict[str, Any]) -> None:
        self.code = _number(error.get("code"))
        self.err_code = _number(error.get("err_code"))
        self.description = shorten(str(error.get("description", "")), 300)
        super().__init__(f"{asked}: {self.description} ({self.err_code})")

    @property
    def wrong_last_sequence(self) -> int | None:
        found = _WRONG.search(self.description)
        return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A consumer's facts about one delivered message. `pending` is what still follows in the stream."""

    stream_sequence: int
    consumer_sequence: int
    pending: int


def delivery_of(reply: str) -> Delivery | None:
    """Parse the reply subject of a delivered message; None when it is not one.

    `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>`, or with domain and account
    after `ACK` and one token more at the end (NATS ADR-15, ADR-53)."""
    tokens = reply.split(".")
    if tokens[:2] != ["$JS", "ACK"] or len(tokens) < 9:
        return None
    at = 5 if len(tokens) == 9 else 7
    try:
        return Delivery(int(tokens[at]), int(tokens[at + 1]), int(tokens[at + 3]))
    except (ValueError, IndexError):
        return None


def stored_ns_of(reply: str) -> int:
    """When a delivered message was stored, by the broker's clock (Unix, ns); 0 where its reply subject has no time."""
    tokens = reply.split(".")
    if delivery_of(reply) is None:
        return 0
    at = 7 if len(tokens) == 9 else 9
    return int(tokens[at]) if tokens[at].isdecimal() else 0


def envelope_bytes(write: Write, time: str) -> bytes:
    """The bytes to publish for a write; `time` is for people. Raises MessageTooLargeError."""
    return encode(
        Envelope(
            id=secrets.token_hex(8),
            operation=write.operation,
            request=write.request,
            schema=SCHEMA,
            time=time,
            message=write.message,
        )
    )


@dataclass(frozen=True, slots=True)
class Read:
    """A stored message as an entry (None: not our subject). `fault`: `subject`, `bytes`, `place` (another) or empty."""

    entry: Entry | None
    request: str
    why: str = ""
    fault: str = ""


def read_stored(subject: str, sequence: int, data: bytes) -> Read:
    """A stored message as an entry: one without a message, if the bytes are not ours, or not of this subject."""
    try:
        address = parse(subject)
    except SubjectError as error:
        return Read(None, "", str(error), "subject")
    if address.kind in AGENTS_KINDS and len(data) > AGENTS_WORD_BYTES_MAX:
        why = f"{len(data)} bytes is over the limit of {AGENTS_WORD_BYTES_MAX} for what agents say"
        return Read(Entry(subject, sequence, OperationId(""), None, why), "", why, "bytes")
    envelope = decode(data)
    if isinstance(envelope, Undecodable):
        return Read(Entry(subject, sequence, OperationId(""), None, envelope.why), "", envelope.why, "bytes")
    why = schema_violation(address, envelope.message)
    if why:
        return Read(Entry(subject, sequence, OperationId(envelope.operation), None, why), "", why, "place")
    return Read(Entry(subject, sequence, OperationId(envelope.operation), envelope.message), envelope.request)


def answer_of(subject: str, answer: nats.Msg) -> int:
    """The sequence of an accepted write. Raises ApiError (refused), TimeoutError (an answer with neither)."""
    if not answer.data:
        raise TimeoutError(f"no answer to {subject}: {status_of(answer)}")
    said = said_in(subject, answer.data)
    if not (sequence := _number(said.get("seq"))) > 0:
        raise TimeoutError(f"the answer to {subject} names no sequence")
    return sequence


def said_in(asked: str, data: bytes) -> dict[str, Any]:
    """The content of a JetStream API answer. Raises ApiError; TimeoutError (result unknown) for anything else."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise TimeoutError(f"the answer to {asked} is no answer of JetStream's")
    if isinstance(error := said.get("error"), dict):
        raise ApiError(asked, error)
    return said


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


@dataclass(frozen=True, slots=True)
class WrittenAt:
    """When a value was written, by its writer's clock and by the broker's, in unix seconds."""

    writer_s: float
    broker_s: float


def times_of(answer: nats.Msg) -> WrittenAt | None:
    envelope = decode(answer.data)
    stored = (answer.headers or {}).get(TIME_STAMP, "")
    if isinstance(envelope, Undecodable) or not stored:
        return None
    try:
        return WrittenAt(datetime.fromisoformat(envelope.time).timestamp(), datetime.fromisoformat(stored).timestamp())
    except ValueError:
        return None


def status_of(message: nats.Msg) -> str:
    """The server's status in place of a message, or empty. A stored message may have any header."""
    headers = message.headers
    if message.data or not headers or SEQUENCE in headers or message.reply.startswith(DELIVERED):
        return ""
    return headers.get(STATUS, "")

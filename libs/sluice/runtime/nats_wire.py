"""
Between our words and NATS messages: envelopes, delivery facts in reply subjects, JetStream's JSON API.

It must not decide what an error means for a service; it only names it.
"""

import json
import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nats.aio.msg import Msg
from nats.errors import (
    ConnectionDrainingError,
    ConnectionReconnectingError,
    NoRespondersError,
    OutboundBufferLimitError,
)
from nats.errors import TimeoutError as NatsTimeoutError

from sluice.contracts.codec import SCHEMA, Undecodable, decode, encode
from sluice.contracts.exchange import Entry, Write
from sluice.contracts.ids import OperationId
from sluice.contracts.messages import Envelope
from sluice.contracts.subjects import SubjectError, parse

STATUS = "Status"
DESCRIPTION = "Description"
SEQUENCE = "Nats-Sequence"
SUBJECT = "Nats-Subject"
TIME_STAMP = "Nats-Time-Stamp"
PENDING_MESSAGES = "Nats-Pending-Messages"
LAST_CONSUMER = "Nats-Last-Consumer"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
TTL = "Nats-TTL"

WRONG_LAST_SEQUENCE = 10071
"""A guard did not hold; the text names the sequence that was found."""
OTHER_IN_FLIGHT = 10164
"""
A cluster refuses because another write under the guard is on its way, and cannot say whether that one will land.

It may be an earlier attempt of the same write: so nothing is known yet, and a reading now would explain nothing.
"""
STREAM_NOT_FOUND = 10059
STREAM_IN_USE = 10058
CONSUMER_NOT_FOUND = 10014
CONSUMER_EXISTS = 10148

NO_ANSWER = (
    NatsTimeoutError,
    NoRespondersError,
    OutboundBufferLimitError,
    ConnectionReconnectingError,
    ConnectionDrainingError,
)
"""What the client raises when nobody answered, or nothing could be sent: nothing is known of what was asked."""

_WRONG = re.compile(r"wrong last sequence: (\d+)")


class ApiError(Exception):
    """JetStream answered with an error. Carries HTTP-like `code`, JetStream's `err_code` and its words."""

    def __init__(self, asked: str, error: dict[str, Any]) -> None:
        """Keep what was asked and what the server said."""
        self.code = int(error.get("code", 0))
        self.err_code = int(error.get("err_code", 0))
        self.description = str(error.get("description", ""))
        super().__init__(f"{asked}: {self.description} ({self.err_code})")

    @property
    def wrong_last_sequence(self) -> int | None:
        """The sequence that a refusal names, or None when it names none."""
        found = _WRONG.search(self.description)
        return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a consumer says of one delivered message. `pending` is what still follows in the stream."""

    stream_sequence: int
    consumer_sequence: int
    pending: int


def delivery_of(reply: str) -> Delivery | None:
    """
    Read the reply subject of a delivered message; None when it is none.

    `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>`, or with domain and account
    after `ACK` and one token more at the end (NATS ADR-15, ADR-53).
    """
    tokens = reply.split(".")
    if tokens[:2] != ["$JS", "ACK"] or len(tokens) < 9:
        return None
    at = 5 if len(tokens) == 9 else 7
    try:
        return Delivery(int(tokens[at]), int(tokens[at + 1]), int(tokens[at + 3]))
    except (ValueError, IndexError):
        return None


def envelope_bytes(write: Write, time: str) -> bytes:
    """What is published for a write; `time` is for people. Raises MessageTooLargeError."""
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
    """
    A stored message as an entry; `request` is which request it is about, `why` why it could not be decoded.

    `entry` is None when the subject is none of ours: there is nothing that it could be a value of.
    """

    entry: Entry | None
    request: str
    why: str = ""


def read_stored(subject: str, sequence: int, data: bytes) -> Read:
    """A stored message as an entry. Bytes that are no message of ours become an entry without one."""
    try:
        parse(subject)
    except SubjectError as error:
        return Read(None, "", str(error))
    envelope = decode(data)
    if isinstance(envelope, Undecodable):
        return Read(Entry(subject, sequence, OperationId(""), None), "", envelope.why)
    return Read(Entry(subject, sequence, OperationId(envelope.operation), envelope.message), envelope.request)


def answer_of(subject: str, answer: Msg) -> int:
    """The sequence of an accepted write. Raises ApiError (refused), TimeoutError (an answer without content)."""
    if not answer.data:
        raise TimeoutError(f"no answer to {subject}: {status_of(answer)}")
    said: dict[str, Any] = json.loads(answer.data)
    if "error" in said:
        raise ApiError(subject, said["error"])
    return int(said["seq"])


@dataclass(frozen=True, slots=True)
class WrittenAt:
    """When a value was written, by its writer's clock and by the broker's, in unix seconds."""

    writer_s: float
    broker_s: float


def times_of(answer: Msg) -> WrittenAt | None:
    """Both times of a stored message that was asked for. None for none, or where they cannot be read."""
    envelope = decode(answer.data)
    stored = (answer.headers or {}).get(TIME_STAMP, "")
    if isinstance(envelope, Undecodable) or not stored:
        return None
    try:
        return WrittenAt(datetime.fromisoformat(envelope.time).timestamp(), datetime.fromisoformat(stored).timestamp())
    except ValueError:
        return None


def status_of(message: Msg) -> str:
    """The status that the server sent instead of a message, or empty."""
    return message.headers.get(STATUS, "") if message.headers and not message.data else ""

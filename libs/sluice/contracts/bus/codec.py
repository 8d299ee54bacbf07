"""
Encode and decode messages as JSON, so that a person can read the bus.

Decoding never raises: what cannot be decoded comes back as `Undecodable`, and the reader logs and skips it.
"""

from dataclasses import dataclass

import msgspec

from sluice.contracts.messages import Envelope

SCHEMA = 1
"""Raised when a message changes so that an older reader would be wrong, not merely ignorant."""
MESSAGE_BYTES_MAX = 1_000_000
"""A NATS server's default `max_payload` is 1 MiB; headers need the rest."""

NOT_READABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""
Raised when decoding outside JSON: syntax, type, encoding, or nesting deeper than any message of ours.

msgspec passes the last two through. Catch these around every read of untrusted bytes.
"""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Envelope)


class MessageTooLargeError(ValueError):
    """A message over MESSAGE_BYTES_MAX. Carries its `size_bytes`."""

    def __init__(self, size_bytes: int) -> None:
        """Keep the size for error reports."""
        super().__init__(f"a message of {size_bytes} bytes is over the limit of {MESSAGE_BYTES_MAX}")
        self.size_bytes = size_bytes


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Bytes that are not a message of ours, or have a newer schema, with the reason."""

    why: str


def encode(envelope: Envelope) -> bytes:
    """The bytes of an envelope. Raises MessageTooLargeError."""
    data = _encoder.encode(envelope)
    if len(data) > MESSAGE_BYTES_MAX:
        raise MessageTooLargeError(len(data))
    return data


def decode(data: bytes) -> Envelope | Undecodable:
    """The envelope in `data`, or the reason why it cannot be decoded."""
    if len(data) > MESSAGE_BYTES_MAX:
        return Undecodable(f"{len(data)} bytes is over the limit of {MESSAGE_BYTES_MAX}")
    try:
        envelope = _decoder.decode(data)
    except NOT_READABLE as error:
        return Undecodable(str(error)[:300])
    if envelope.schema > SCHEMA:
        return Undecodable(f"schema {envelope.schema} is newer than {SCHEMA}, the newest this process knows")
    return envelope

"""Encode and decode messages as JSON, so that a person can read the bus. What cannot be decoded comes back as
`Undecodable`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from sluice.contracts import messages as m
from sluice.contracts.bus.streams import SUBJECT_KINDS
from sluice.contracts.bus.subjects import Address
from sluice.contracts.messages import Envelope

_WORDS = {noun.kind: frozenset(noun.messages) for noun in SUBJECT_KINDS}
_HEAD = "head"


def _by_node(message: Any) -> tuple[str, ...]:
    return (message.node,)


def _by_request(message: Any) -> tuple[str, ...]:
    return (message.request,)


def _booked(message: Any) -> tuple[str, ...]:
    return message.booking.node, message.booking.allocation


_NAMED: dict[type[m.Message], Callable[[Any], tuple[str, ...]]] = {
    m.SourceSynced: lambda message: (message.source,),
    m.NodeOpened: lambda message: (message.node, _HEAD),
    m.NodeClosed: lambda message: (message.node, _HEAD),
    m.Grant: _booked,
    m.Revoke: _booked,
    m.Closed: lambda message: (message.node, message.allocation),
    m.NodeInventory: lambda message: (message.snapshot.node,),
    m.QuotaSet: lambda message: (message.namespace,),
    m.QuotaUnset: lambda message: (message.namespace,),
    m.LeaseHeld: lambda message: (message.role,),
    m.PoolDemand: lambda message: (message.pool,),
    **dict.fromkeys((m.Bound, m.Refused, m.Released, m.Waived, m.Pending, m.WaitOver), _by_request),
    **dict.fromkeys((m.EvictionOrdered, m.EvictionOver, m.EvictionDone, m.EvictionBlocked), _by_request),
    **dict.fromkeys((m.NodeChanged, m.NodeRemoved, m.Cordoned, m.Uncordoned), _by_node),
}
"""The object of a message, in the parts of its subject's key. For a slice only the end of the key, below."""
_SLICE = frozenset({m.SliceReady, m.SliceFailed, m.SliceDegraded, m.SliceQuarantined, m.SliceGone})


def schema_violation(address: Address, message: m.AnyMessage) -> str:
    """Why a message does not belong to an address, in a sentence; empty when it does."""
    kind = type(message)
    named: tuple[str, ...]
    if kind not in _WORDS[address.kind]:
        return f"a {kind.__name__} is no word of {address.kind!r}"
    if kind in _SLICE:
        named, key = (getattr(message, "allocation", ""),), address.key[1:]
    elif kind in _NAMED:
        named, key = _NAMED[kind](message), address.key
    else:
        return ""
    if named != key:
        return f"a {kind.__name__} about {'/'.join(named)[:300]} stands at {'/'.join(key)}"
    return _why_uncountable(message)


def _why_uncountable(message: m.AnyMessage) -> str:
    """What a shrinking share still counts is given for each of its places, or for none (PROTOCOL §4)."""
    if isinstance(message, m.Grant):
        ordered: tuple[m.Grant | m.SliceReport, ...] = (message,)
    else:
        ordered = message.snapshot.slices if isinstance(message, m.NodeInventory) else ()
    for each in ordered:
        if each.counts and [_place(d) for d in each.counts] != [_place(d) for d in each.booking.devices]:
            return f"{each.booking.allocation} counts at other places than it is booked at"
    return ""


def _place(device: m.DeviceGrant) -> tuple[str, str, str | None, int, int]:
    return device.container, device.gpu, device.profile, device.start, device.size


SCHEMA = 1
"""Raised when a message changes so that an older reader would be wrong, not merely ignorant."""
MESSAGE_BYTES_MAX = 1_000_000
"""A NATS server's default `max_payload` is 1 MiB; headers need the rest."""

NOT_READABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding outside JSON raises (msgspec passes two through). Catch these at every read of untrusted bytes."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Envelope)


class MessageTooLargeError(ValueError):
    """A message over MESSAGE_BYTES_MAX. Carries its `size_bytes`."""

    def __init__(self, size_bytes: int) -> None:
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
    if len(data) > MESSAGE_BYTES_MAX:
        return Undecodable(f"{len(data)} bytes is over the limit of {MESSAGE_BYTES_MAX}")
    try:
        envelope = _decoder.decode(data)
    except NOT_READABLE as error:
        return Undecodable(str(error)[:300])
    if envelope.schema > SCHEMA:
        return Undecodable(f"schema {envelope.schema} is newer than {SCHEMA}, the newest this process knows")
    return envelope

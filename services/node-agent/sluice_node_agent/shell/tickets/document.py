"""
The document in a ticket: its containers' devices, for people, and the copy of its slice's record, for the agent.

The copy has a checksum, as each line of the journal does. Documents of earlier versions have no record.
"""

import zlib
from typing import Any

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.messages import ContainerDevices
from sluice.contracts.reasons import shorten
from sluice_node_agent.core.instructions import MakeTicket
from sluice_node_agent.core.journal_records import TicketRecord

DOCUMENT_MAX = 256 * 1024
"""Bytes. One of a pod with a device in each of 64 containers has some 30 KiB."""
_WHY_MAX = 300


class _Copy(msgspec.Struct, frozen=True, kw_only=True):
    record: msgspec.Raw = msgspec.Raw()
    checksum: str = ""


_pack = msgspec.json.Encoder().encode
_unpack: msgspec.json.Decoder[_Copy] = msgspec.json.Decoder(_Copy)
_unpack_record: msgspec.json.Decoder[TicketRecord] = msgspec.json.Decoder(TicketRecord)


def pack(order: MakeTicket) -> bytes:
    """The document of a ticket."""
    record = _pack(order.record)
    said = {
        "allocation": order.allocation,
        "owner": order.owner,
        "containers": [_told(each) for each in order.containers],
        "record": msgspec.Raw(record),
        "checksum": _sum(record),
    }
    return _pack(said) + b"\n"


def _told(container: ContainerDevices) -> dict[str, Any]:
    """A container's devices. Its driver capabilities are in its request, which no agent sees."""
    said: dict[str, Any] = msgspec.to_builtins(container)
    del said["driver_capabilities"]
    return said


def unpack(document: bytes) -> TicketRecord | str:
    """The copy of the record in a document, or why there is none that can be trusted."""
    if len(document) > DOCUMENT_MAX:
        return f"it is larger than {DOCUMENT_MAX} bytes"
    try:
        copy = _unpack.decode(document)
        record = bytes(copy.record)
        if not record:
            return "it was written by a version that kept no record in tickets"
        if copy.checksum != _sum(record):
            return "its record does not match its checksum"
        return _unpack_record.decode(record)
    except NOT_READABLE as error:
        return f"it holds no record that this version knows: {shorten(str(error), _WHY_MAX)}"


def _sum(record: bytes) -> str:
    return f"{zlib.crc32(record):08x}"

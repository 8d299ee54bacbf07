"""Messages of which a test names only what it is about."""

from typing import Any

from msgspec import convert

from sluice.contracts.bus.events import Entry, Write, stream_of
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import AllocationId, NodeName, OperationId, RequestId, SourceName
from sluice.contracts.messages import AnyMessage, Booking, Claim, DeviceGrant


def booking_of(allocation: str, node: str, devices: tuple[DeviceGrant, ...] = (), /, **changes: Any) -> Booking:
    """A booking whose request, unless `changes` say otherwise, is called the same; pod and owner as the request."""
    pod = changes.get("request", allocation)
    plain = {"request": RequestId(pod), "request_revision": 1, "owner": pod, "name": pod, "namespace": "default"}
    plain |= {"allocation": AllocationId(allocation), "source": SourceName("folder")} | changes
    return Booking(**plain, node=NodeName(node), devices=devices)


def claim_of(**fields: Any) -> Claim:
    """A claim of the container main with these fields, lists for tuples; fails on one that no claim has."""
    assert fields.keys() <= set(Claim.__struct_fields__), fields
    return convert({"container": "main"} | fields, Claim)


def write_of(
    address: Address, message: AnyMessage, over: Entry | int | None, operation: str, /, **changes: Any
) -> Write:
    """A first attempt to write `over` the last value or its sequence; None: there is none."""
    expected = over.sequence if isinstance(over, Entry) else over or 0
    stream, guard = stream_of(address.kind), changes.pop("guard", address.guard)
    fields = {"attempt": 1, "request": "", "expected": expected, "message": message} | changes
    return Write(operation=OperationId(operation), stream=stream, subject=address.subject, guard=guard, **fields)

"""
Convert bookings to protobuf and back, down to the shares.

The part of `snapshots` that several answers share.
"""

from collections.abc import Iterable
from typing import get_args

from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RequestId, SourceName
from sluice.contracts.messages import Booking, DeviceGrant, HostRoom, Mode, ResourceClaimRef, Share
from sluice.contracts.pb import node_pb2

MODES: dict[Mode, str] = {mode: f"MODE_{mode.upper()}" for mode in get_args(Mode)}
MODES_BACK: dict[int, Mode] = {node_pb2.Mode.Value(name): mode for mode, name in MODES.items()}


# -- to protobuf --------------------------------------------------------------------------------------------------


def booking_to_proto(booking: Booking) -> node_pb2.Booking:
    """A booking in its gRPC form. Raises ValueError as `convert.snapshot_to_proto`."""
    return node_pb2.Booking(
        allocation=booking.allocation,
        request=booking.request,
        request_revision=booking.request_revision,
        source=booking.source,
        owner=booking.owner,
        namespace=booking.namespace,
        name=booking.name,
        node=booking.node,
        devices=devices_to_proto(booking.devices),
        room=_room_to_proto(booking.room),
        instead_of=booking.instead_of,
        resource_claims=[
            node_pb2.ResourceClaimRef(uid=each.uid, name=each.name, requests=each.requests, shared=each.shared)
            for each in booking.resource_claims
        ],
    )


def devices_to_proto(devices: Iterable[DeviceGrant]) -> list[node_pb2.DeviceGrant]:
    """Booked devices in their gRPC form. Raises ValueError as `convert.snapshot_to_proto`."""
    return [_device_to_proto(device) for device in devices]


def _room_to_proto(room: HostRoom) -> node_pb2.HostRoom:
    return node_pb2.HostRoom(cpu_milli=room.cpu_milli, memory_mib=room.memory_mib, resources=room.resources)


def _device_to_proto(device: DeviceGrant) -> node_pb2.DeviceGrant:
    return node_pb2.DeviceGrant(
        container=device.container,
        gpu=device.gpu,
        profile=device.profile,
        start=device.start,
        size=device.size,
        share=share_to_proto(device.share) if device.share is not None else None,
    )


def share_to_proto(share: Share) -> node_pb2.Share:
    """A share in its gRPC form."""
    return node_pb2.Share(
        mode=MODES[share.mode],
        uid=share.uid,
        memory_mib=share.memory_mib,
        sm_partition=share.sm_partition,
        quota_request_permille=share.quota_request_permille,
        quota_limit_permille=share.quota_limit_permille,
    )


# -- from protobuf ------------------------------------------------------------------------------------------------


def booking_from_proto(booking: node_pb2.Booking) -> Booking | Undecodable:
    """The booking in an answer, or why it is invalid: a share of an unknown mode."""
    devices = devices_from_proto(booking.devices)
    if isinstance(devices, Undecodable):
        return Undecodable(f"slice {booking.allocation}: {devices.why}")
    return Booking(
        allocation=AllocationId(booking.allocation),
        request=RequestId(booking.request),
        request_revision=booking.request_revision,
        source=SourceName(booking.source),
        owner=booking.owner,
        namespace=booking.namespace,
        name=booking.name,
        node=NodeName(booking.node),
        devices=devices,
        room=_room_from_proto(booking.room),
        instead_of=booking.instead_of,
        resource_claims=tuple(
            ResourceClaimRef(
                uid=each.uid, name=each.name, requests=dict(sorted(each.requests.items())), shared=each.shared
            )
            for each in booking.resource_claims
        ),
    )


def devices_from_proto(entries: Iterable[node_pb2.DeviceGrant]) -> tuple[DeviceGrant, ...] | Undecodable:
    """The booked devices in an answer, or why they are invalid."""
    devices: list[DeviceGrant] = []
    for entry in entries:
        device = _device_from_proto(entry)
        if isinstance(device, Undecodable):
            return device
        devices.append(device)
    return tuple(devices)


def _room_from_proto(room: node_pb2.HostRoom) -> HostRoom:
    return HostRoom(
        cpu_milli=room.cpu_milli, memory_mib=room.memory_mib, resources=dict(sorted(room.resources.items()))
    )


def _device_from_proto(device: node_pb2.DeviceGrant) -> DeviceGrant | Undecodable:
    share = share_from_proto(device.share) if device.HasField("share") else None
    if isinstance(share, Undecodable):
        return share
    return DeviceGrant(
        container=device.container,
        gpu=GpuUuid(device.gpu),
        profile=device.profile if device.HasField("profile") else None,
        start=device.start,
        size=device.size,
        share=share,
    )


def share_from_proto(share: node_pb2.Share) -> Share | Undecodable:
    """The share in an answer, or why it is invalid (an unknown mode)."""
    mode = MODES_BACK.get(share.mode)
    if mode is None or mode == "exclusive":
        return Undecodable(f"a share of mode {share.mode}, which is unknown here")
    return Share(
        mode=mode,
        uid=share.uid,
        memory_mib=share.memory_mib,
        sm_partition=share.sm_partition,
        quota_request_permille=share.quota_request_permille,
        quota_limit_permille=share.quota_limit_permille,
    )

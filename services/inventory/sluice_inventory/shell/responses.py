"""Convert counts to their gRPC form. The numbers come from `core.counts`."""

from msgspec.structs import asdict

from sluice.contracts.pb import inventory_pb2 as pb
from sluice.contracts.proto.bookings import share_to_proto
from sluice_inventory.core.counts import FleetUse, GpuUse, NodeUse, Slot

COUNT_MAX = 2**31 - 1
"""The largest count in an answer. Agents choose the summands: an overflow would fail the whole answer."""


def summaries(node: NodeUse) -> list[pb.GpuSummary]:
    return [_summary(node, use) for use in node.gpus]


def totals(fleet: FleetUse) -> pb.FleetTotals:
    return pb.FleetTotals(
        **{
            **asdict(fleet),
            "creatable": {name: _count(number) for name, number in fleet.creatable.items()},
            "creatable_total": _count(fleet.creatable_total),
        }
    )


def allocations(node: NodeUse) -> dict[str, pb.GpuAllocation]:
    return {use.gpu.uuid: _allocation(node, use) for use in node.gpus}


def _count(number: int) -> int:
    return max(-COUNT_MAX - 1, min(COUNT_MAX, number))


def _summary(node: NodeUse, use: GpuUse) -> pb.GpuSummary:
    gpu = use.gpu
    return pb.GpuSummary(
        uuid=gpu.uuid,
        node=node.name,
        index=gpu.index,
        model=gpu.model,
        mig_enabled=gpu.mig_enabled,
        healthy=gpu.healthy,
        health_message=gpu.health_message,
        memory_mib=gpu.memory_mib,
        slices_total=use.slices_total,
        slices_in_use=use.slices_in_use,
        allocated_fraction=use.allocated_fraction,
        created=use.created,
        foreign=use.foreign,
        quarantined=use.quarantined,
        creatable=gpu.creatable,
        creatable_total=_count(use.creatable_total),
        stale=node.inventory.stale,
        observed_at=node.inventory.observed_at,
    )


def _allocation(node: NodeUse, use: GpuUse) -> pb.GpuAllocation:
    return pb.GpuAllocation(
        node=node.name,
        fraction_in_use=use.allocated_fraction,
        slots=[_slot(slot) for slot in use.slots],
        observed_at=node.inventory.observed_at,
        stale=node.inventory.stale,
    )


def _slot(slot: Slot) -> pb.Slot:
    booking = slot.owner.booking if slot.owner is not None else None
    return pb.Slot(
        start=slot.start,
        size=slot.size,
        profile=slot.profile,
        uuid=slot.uuid,
        state=f"SLOT_STATE_{slot.state.name}",
        allocation=slot.allocation,
        request=booking.request if booking is not None else "",
        namespace=booking.namespace if booking is not None else "",
        name=booking.name if booking is not None else "",
        container=slot.container,
        message=slot.message,
        share=share_to_proto(slot.share) if slot.share is not None else None,
    )

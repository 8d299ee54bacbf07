"""Convert counts to their gRPC form. The numbers come from `core.counts`."""

from msgspec.structs import asdict

from sluice.contracts.pb import inventory_pb2 as pb
from sluice.contracts.proto.bookings import share_to_proto
from sluice_inventory.core.counts import FleetUse, GpuUse, NodeUse, Slot

OF_GPU = "uuid", "index", "model", "mig_enabled", "healthy", "health_message", "memory_mib", "creatable"
OF_USE = "slices_total", "slices_in_use", "allocated_fraction", "created", "foreign", "quarantined"
OF_SLOT = "start", "size", "profile", "uuid", "allocation", "container", "message"
OF_BOOKING = "request", "namespace", "name"
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
    return pb.GpuSummary(
        **{name: getattr(use.gpu, name) for name in OF_GPU},
        **{name: getattr(use, name) for name in OF_USE},
        node=node.name,
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
        **{name: getattr(slot, name) for name in OF_SLOT},
        **{name: getattr(booking, name) for name in OF_BOOKING if booking is not None},
        state=f"SLOT_STATE_{slot.state.name}",
        share=share_to_proto(slot.share) if slot.share is not None else None,
    )

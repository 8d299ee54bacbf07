"""Count what is created, creatable, in use, foreign and quarantined per GPU, and sum it over the fleet. Pure functions
of one snapshot. A memory slice is in use when an instance lies on it (ours or foreign; in a fixed layout an unusable
one), when the node's journal has booked it, or when it is quarantined; a slice with two of these counts once.
`creatable` is what the agent reported: a sum of alternatives, never free capacity. A shared device may be quarantined
because its MPS daemon is in trouble: it takes no new tenants, and its tenants keep their shares."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from sluice.contracts import messages as msg
from sluice.contracts.ids import GpuUuid, NodeName


class SlotState(StrEnum):
    """The state of a span that is not free."""

    ORDERED = "ordered"  # booked on the node, the instance does not exist (yet)
    IN_USE = "in_use"
    RETURNING = "returning"  # revoked, the place is not free yet
    QUARANTINED = "quarantined"
    FOREIGN = "foreign"
    BROKEN = "broken"  # booked, but the slice failed or was lost
    OFFERED = "offered"  # a free instance of a fixed layout
    UNUSABLE = "unusable"  # an instance of a fixed layout that cannot be granted


@dataclass(frozen=True, slots=True)
class Slot:
    """A span (memory slices) of a GPU that is not free, and its owner. `owner` is None when unknown. In a fixed layout,
    free instances are slots, too (`OFFERED`). Tenants of a shared device are slots of one span."""

    start: int
    size: int
    state: SlotState
    profile: str | None = None  # None for a whole GPU without MIG, and for a quarantined span without an instance
    uuid: str = ""
    allocation: str = ""
    owner: msg.SliceReport | None = None
    container: str = ""
    share: msg.Share | None = None
    message: str = ""  # why it cannot be granted

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.size


class GpuUse(msgspec.Struct, frozen=True):
    """One physical GPU: its report and derived counts. `created` are our instances, per profile."""

    gpu: msg.GpuReport
    slots: tuple[Slot, ...]
    slices_total: int
    slices_in_use: int
    created: dict[str, int]
    foreign: int
    quarantined: int

    @property
    def creatable_total(self) -> int:
        return sum(self.gpu.creatable.values())

    @property
    def allocated_fraction(self) -> float:
        """Memory slices in use, as a fraction of the GPU's, from 0 to 1."""
        return self.slices_in_use / self.slices_total


class NodeUse(msgspec.Struct, frozen=True):
    """One node's inventory and the use of its GPUs, in the order of their index."""

    name: NodeName
    inventory: msg.NodeInventory
    gpus: tuple[GpuUse, ...]


class FleetUse(msgspec.Struct, frozen=True):
    """Sums over nodes. Creatable counts cover healthy GPUs of fresh nodes: what could be created now."""

    nodes: int
    nodes_stale: int
    gpus: int
    gpus_unhealthy: int
    slices_total: int
    slices_in_use: int
    created: dict[str, int]
    foreign: int
    quarantined: int
    creatable: dict[str, int]

    @property
    def creatable_total(self) -> int:
        return sum(self.creatable.values())


def gpu_uses(snapshot: msg.NodeSnapshot) -> tuple[GpuUse, ...]:
    """The use of each GPU of a node, in the order of index and UUID."""
    booked: dict[GpuUuid, list[tuple[msg.DeviceGrant, msg.SliceReport]]] = {}
    for report in snapshot.slices:
        for device in report.booking.devices:
            booked.setdefault(device.gpu, []).append((device, report))
    gpus = sorted(snapshot.gpus, key=lambda gpu: (gpu.index, gpu.uuid))
    return tuple(gpu_use(gpu, booked.get(gpu.uuid, ())) for gpu in gpus)


def gpu_use(gpu: msg.GpuReport, booked: Iterable[tuple[msg.DeviceGrant, msg.SliceReport]]) -> GpuUse:
    """The use of one GPU, given the devices of the node's journal that lie on it."""
    slots = _slots(gpu, list(booked))
    total = max(1, gpu.memory_slices)
    in_use = [slot for slot in slots if slot.state is not SlotState.OFFERED]
    taken = {unit for slot in in_use for unit in range(max(0, slot.start), min(total, slot.start + slot.size))}
    return GpuUse(
        gpu=gpu,
        slots=slots,
        slices_total=total,
        slices_in_use=len(taken),
        created=_sum([Counter(each.profile for each in gpu.instances if each.allocation is not None)]),
        foreign=sum(slot.state is SlotState.FOREIGN for slot in slots),
        quarantined=len({slot.span for slot in slots if slot.state is SlotState.QUARANTINED} | _spans(gpu)),
    )


def _spans(gpu: msg.GpuReport) -> set[tuple[int, int]]:
    """The places that are out of use. A shared device is one, however many tenants it has."""
    return {(span.start, span.size) for span in gpu.quarantined}


def fleet_use(nodes: Iterable[NodeUse]) -> FleetUse:
    known = list(nodes)
    gpus = [use for node in known for use in node.gpus]
    usable = [use for node in known if not node.inventory.stale for use in node.gpus if use.gpu.healthy]
    return FleetUse(
        nodes=len(known),
        nodes_stale=sum(node.inventory.stale for node in known),
        gpus=len(gpus),
        gpus_unhealthy=sum(not use.gpu.healthy for use in gpus),
        slices_total=sum(use.slices_total for use in gpus),
        slices_in_use=sum(use.slices_in_use for use in gpus),
        created=_sum(use.created for use in gpus),
        foreign=sum(use.foreign for use in gpus),
        quarantined=sum(use.quarantined for use in gpus),
        creatable=_sum(use.gpu.creatable for use in usable),
    )


def _slots(gpu: msg.GpuReport, booked: list[tuple[msg.DeviceGrant, msg.SliceReport]]) -> tuple[Slot, ...]:
    by_place: dict[tuple[str | None, int], list[tuple[msg.DeviceGrant, msg.SliceReport]]] = {}
    for device, report in booked:  # several where containers of one pod share a device
        by_place.setdefault((report.booking.allocation, device.start), []).append((device, report))
    found: list[Slot] = []
    for instance in gpu.instances:
        owners = by_place.get((instance.allocation, instance.start), []) if instance.allocation is not None else []
        found.append(_of_instance(instance, owners.pop(0) if owners else None, fixed=gpu.fixed_layout))
    found += [_of_booking(gpu, device, report) for there in by_place.values() for device, report in there]
    booked_here = {slot.span for slot in found if slot.owner is not None}
    found = [slot for slot in found if slot.state is not SlotState.OFFERED or slot.span not in booked_here]
    out_of_use = _spans(gpu)
    for at, slot in enumerate(found):
        if slot.span in out_of_use and slot.share is None:
            found[at] = replace(slot, state=SlotState.QUARANTINED)
    covered = {slot.span for slot in found}
    found += [Slot(*span, SlotState.QUARANTINED) for span in out_of_use - covered]
    return tuple(sorted(found, key=lambda slot: (slot.start, slot.size, slot.allocation)))


def _of_instance(
    instance: msg.InstanceReport, owner: tuple[msg.DeviceGrant, msg.SliceReport] | None, *, fixed: bool
) -> Slot:
    state = SlotState.FOREIGN if instance.allocation is None else SlotState.IN_USE
    if fixed and instance.allocation is None:
        state = SlotState.UNUSABLE if instance.unusable else SlotState.OFFERED
    if owner is not None:
        state = _state(owner[1], there=True)
    return Slot(
        start=instance.start,
        size=instance.size,
        state=state,
        profile=instance.profile,
        uuid=instance.uuid,
        allocation=instance.allocation or "",
        owner=owner[1] if owner is not None else None,
        container=owner[0].container if owner is not None else "",
        share=owner[0].share if owner is not None else None,
        message=instance.unusable,
    )


def _of_booking(gpu: msg.GpuReport, device: msg.DeviceGrant, report: msg.SliceReport) -> Slot:
    """A booked place without an instance of its own: a future one, a lost one, a share, or a whole GPU without MIG."""
    whole = device.profile is None
    uuid = gpu.uuid if whole else _home_of(gpu, device)
    return Slot(
        start=device.start,
        size=max(1, gpu.memory_slices) if whole else device.size,
        state=_state(report, there=whole or bool(uuid)),
        profile=device.profile,
        uuid=uuid if report.state == "ready" else "",
        allocation=report.booking.allocation,
        owner=report,
        container=device.container,
        share=device.share,
    )


def _home_of(gpu: msg.GpuReport, device: msg.DeviceGrant) -> str:
    span = (device.profile, device.start, device.size)
    made = (instance.uuid for instance in gpu.instances if (instance.profile, instance.start, instance.size) == span)
    return next(made, "") if device.share is not None else ""


def _state(report: msg.SliceReport, *, there: bool) -> SlotState:
    """The state of a place from its journal entry; `there` says whether its device exists."""
    if report.state == "quarantined":
        return SlotState.QUARANTINED
    if report.revoked or report.state == "unmaking":
        return SlotState.RETURNING
    if report.state in {"planned", "making"}:
        return SlotState.ORDERED
    return SlotState.IN_USE if report.state == "ready" and there else SlotState.BROKEN


def _sum(many: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for counts in many:
        total.update(counts)
    return dict(sorted(total.items()))

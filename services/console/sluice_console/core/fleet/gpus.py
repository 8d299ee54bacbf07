"""The fleet's GPUs from the inventory's snapshots: places, owners, and what still fits."""

from msgspec.structs import replace

from sluice.contracts.messages import Booking, Cordoned, GpuReport, InstanceReport, NodeInventory, Revoke, SliceReport
from sluice_console.core.documents import GpuDocument, GpusDocument, InstanceDocument, InstanceState, NodeDocument
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.shared_devices import STATES, WHOLE_GPU, homes_on, owner_of


def gpus_document(fleet_state: FleetState) -> GpusDocument:
    """Every GPU of every node that was read, ordered by node and index."""
    ordered = _ordered_bookings(fleet_state)
    inventories = sorted(fleet_state.inventories().items())
    found = [
        _with_cordon(_gpu(node, inventory, gpu, ordered.get(gpu.uuid, [])), fleet_state.at("cordon", Cordoned, node))
        for node, inventory in inventories
        for gpu in sorted(inventory.snapshot.gpus, key=lambda gpu: gpu.index)
    ]
    return GpusDocument(gpus=tuple(found), nodes=tuple(_node(node, inventory) for node, inventory in inventories))


def _with_cordon(gpu: GpuDocument, said: Cordoned | None) -> GpuDocument:
    if said is None or (said.gpus and gpu.uuid not in said.gpus):
        return gpu
    return replace(gpu, cordoned=True, cordon_why=said.why)


def _node(node: str, inventory: NodeInventory) -> NodeDocument:
    snapshot = inventory.snapshot
    return NodeDocument(
        node=node,
        modes=snapshot.modes,
        driver_version=snapshot.driver_version,
        toolkit_version=snapshot.toolkit_version,
        warnings=snapshot.warnings,
        stale=inventory.stale,
        stale_message=inventory.stale_message,
    )


def _ordered_bookings(fleet_state: FleetState) -> dict[str, list[tuple[Booking, bool]]]:
    """Ledger entries by GPU, each with whether it is being revoked."""
    found: dict[str, list[tuple[Booking, bool]]] = {}
    for message, booking in fleet_state.bookings():
        for gpu in dict.fromkeys(device.gpu for device in booking.devices):
            found.setdefault(gpu, []).append((booking, isinstance(message, Revoke)))
    return found


def _gpu(node: str, inventory: NodeInventory, gpu: GpuReport, ordered: list[tuple[Booking, bool]]) -> GpuDocument:
    slices: dict[str, SliceReport] = {report.booking.allocation: report for report in inventory.snapshot.slices}
    existing = [_existing(instance, slices, fixed=gpu.fixed_layout) for instance in gpu.instances]
    existing += [
        _whole(report, device.size, gpu)
        for report in slices.values()
        for device in report.booking.devices
        if device.gpu == gpu.uuid and device.profile is None and device.share is None and report.state != "failed"
    ]
    spans = {(instance.start, instance.size) for instance in existing if instance.state != "free"}
    coming = [
        InstanceDocument(
            profile=device.profile or WHOLE_GPU,
            start=device.start,
            size=device.size,
            state="making",
            allocation=booking.allocation,
            request=booking.request,
            owner=owner_of(booking),
        )
        for booking, revoked in ordered
        for device in booking.devices
        if device.gpu == gpu.uuid and device.share is None and (device.start, device.size) not in spans and not revoked
    ]
    on_order = {(instance.start, instance.size) for instance in coming}
    existing = [each for each in existing if each.state != "free" or (each.start, each.size) not in on_order]
    homes = homes_on(gpu, slices.values(), ordered)
    places = [homes.pop((place.start, place.size), place) for place in (*existing, *coming)]
    places += homes.values()
    places = _out_of_use(gpu, places)
    there = [
        place
        for place in places
        if (place.start, place.size) in spans
        or place.out_of_use
        or place.daemon is not None
        or any(tenant.state != "making" for tenant in place.tenants)
    ]
    in_use = sum(place.size for place in there)
    return GpuDocument(
        node=node,
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.model,
        memory_mib=gpu.memory_mib,
        memory_slices=gpu.memory_slices,
        mig_enabled=gpu.mig_enabled,
        healthy=gpu.healthy,
        health_message=gpu.health_message,
        lost=gpu.lost,
        fixed_layout=gpu.fixed_layout,
        creatable=dict(gpu.creatable),
        creatable_total=sum(gpu.creatable.values()),
        instances=tuple(sorted(places, key=lambda instance: (instance.start, instance.allocation))),
        allocated_fraction=round(min(1.0, in_use / max(1, gpu.memory_slices)), 4),
        stale=inventory.stale,
        stale_message=inventory.stale_message,
        observed_at=inventory.observed_at,
    )


def _out_of_use(gpu: GpuReport, places: list[InstanceDocument]) -> list[InstanceDocument]:
    """The places, marked where nothing new is placed; a quarantined span without a place is added as one."""
    quarantined = {(span.start, span.size) for span in gpu.quarantined}
    marked = [
        replace(place, out_of_use=True) if (place.start, place.size) in quarantined else place for place in places
    ]
    bare = quarantined - {(place.start, place.size) for place in places}
    return marked + [
        InstanceDocument(profile="", start=start, size=size, state="quarantined", out_of_use=True)
        for start, size in sorted(bare)
    ]


def _existing(instance: InstanceReport, slices: dict[str, SliceReport], *, fixed: bool) -> InstanceDocument:
    report = slices.get(instance.allocation or "")
    return InstanceDocument(
        profile=instance.profile,
        start=instance.start,
        size=instance.size,
        state=_state(instance, report, fixed=fixed),
        message=instance.unusable,
        uuid=instance.uuid,
        gi_id=instance.gi_id,
        allocation=instance.allocation or "",
        request=report.booking.request if report is not None else "",
        owner=owner_of(report.booking) if report is not None else "",
    )


def _state(instance: InstanceReport, report: SliceReport | None, *, fixed: bool) -> InstanceState:
    if report is not None:
        return STATES[report.state]
    if fixed and instance.allocation is None:
        return "unusable" if instance.unusable else "free"
    return "foreign" if instance.allocation is None else "making"


def _whole(report: SliceReport, size: int, gpu: GpuReport) -> InstanceDocument:
    return InstanceDocument(
        profile=WHOLE_GPU,
        start=0,
        size=max(size, gpu.memory_slices),
        state=STATES[report.state],
        uuid=gpu.uuid,
        allocation=report.booking.allocation,
        request=report.booking.request,
        owner=owner_of(report.booking),
    )

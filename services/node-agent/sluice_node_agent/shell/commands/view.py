"""
What `show` shows of a node, put together from what its agent says, or else from its journal and devices.

Whom an instance belongs to is told from the journal first: an agent's report names an allocation, the journal also the
home of shares or that it is kept warm. It reads nothing itself.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import Booking, GpuReport, InstanceReport, NodeSnapshot, PlacementReport, SliceReport
from sluice_node_agent.core.journal_records import NodeRecord, Record, SharedDeviceRecord, SliceRecord, WarmRecord

Owner = Literal["slice", "home", "warm", "foreign", "free", "unusable"]
"""`free` and `unusable`: of a fixed layout, with nobody's record."""
_REBOOTED = "the node was rebooted since its agent ran: standing slices are created again when it starts"


class ShownInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance. `of` is its allocation or home, or why it is unusable; else empty. Spans in memory slices."""

    gi_id: int
    profile: str
    start: int
    size: int
    uuid: str
    owner: Owner
    of: str = ""


class ShownGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as it is now."""

    index: int
    uuid: GpuUuid
    model: str
    memory_mib: int
    mig_enabled: bool
    fixed_layout: bool
    state: Literal["ok", "unhealthy", "lost"]
    message: str
    instances: tuple[ShownInstance, ...]
    quarantined: tuple[PlacementReport, ...]


class ShownHome(msgspec.Struct, frozen=True, kw_only=True):
    """A home of shares and its MPS daemon. `profile` is None for a whole GPU; `clients` None: not known."""

    home: str
    gpu: GpuUuid
    profile: str | None
    start: int
    device: str
    namespace: str
    uid: int
    state: str
    pid: int
    clients: int | None
    message: str


class ShownDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a slice. `mode` is exclusive, mps or fractional; `memory_mib` is a share's."""

    container: str
    gpu: GpuUuid
    profile: str | None
    start: int
    mode: str
    memory_mib: int = 0


class ShownSlice(msgspec.Struct, frozen=True, kw_only=True):
    """A slice that is not gone."""

    allocation: str
    request: str
    namespace: str
    name: str
    state: str
    revoked: bool
    devices: tuple[ShownDevice, ...]


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A node. `problems` say what could not be read."""

    node: str
    source: Literal["agent", "journal"]
    boot_id: str = ""
    agent_run: str = ""
    generation: int = 0
    driver_version: str = ""
    toolkit_version: str = ""
    modes: tuple[str, ...] = ()
    gpus: tuple[ShownGpu, ...] = ()
    homes: tuple[ShownHome, ...] = ()
    slices: tuple[ShownSlice, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def shown_by_agent(snapshot: NodeSnapshot, records: Sequence[Record], problems: Sequence[str] = ()) -> Shown:
    """What a running agent says; its journal adds homes and warm instances."""
    owners = _owners(records)
    return Shown(
        node=snapshot.node,
        source="agent",
        boot_id=snapshot.boot_id,
        agent_run=snapshot.agent_run,
        generation=snapshot.generation,
        driver_version=snapshot.driver_version,
        toolkit_version=snapshot.toolkit_version,
        modes=snapshot.modes,
        gpus=tuple(_gpu(gpu, owners) for gpu in snapshot.gpus),
        homes=_homes_of_agent(snapshot.gpus, records),
        slices=tuple(_slice_of_report(report) for report in snapshot.slices),
        warnings=snapshot.warnings,
        problems=tuple(problems),
    )


def shown_by_journal(
    node: str,
    records: Sequence[Record],
    gpus: Sequence[GpuReport],
    *,
    boot_id: str,
    driver_version: str,
    problems: Sequence[str] = (),
) -> Shown:
    """What journal and devices say while no agent runs."""
    owners = _owners(records)
    before = next((record.boot_id for record in records if isinstance(record, NodeRecord)), "")
    rebooted = bool(before and boot_id and before != boot_id)
    return Shown(
        node=node,
        source="journal",
        boot_id=boot_id,
        driver_version=driver_version,
        gpus=tuple(_gpu(gpu, owners) for gpu in gpus),
        homes=tuple(_home(record) for record in records if isinstance(record, SharedDeviceRecord)),
        slices=tuple(_slice_of_record(record) for record in records if isinstance(record, SliceRecord)),
        warnings=(_REBOOTED,) if rebooted else (),
        problems=tuple(problems),
    )


# -- inside -------------------------------------------------------------------------------------------------------

_Owners = dict[tuple[str, int], tuple[Owner, str]]


def _owners(records: Sequence[Record]) -> _Owners:
    """Whose each instance is, by GPU and id. Homes and warm ones last: a share's slice may name its home's instance."""
    owners: _Owners = {}
    for record in records:
        if isinstance(record, SliceRecord):
            for grant, device in zip(record.booking.devices, record.devices, strict=False):
                if device.gi_id is not None:
                    owners[grant.gpu, device.gi_id] = ("slice", record.booking.allocation)
    for record in records:
        if isinstance(record, SharedDeviceRecord) and record.device.gi_id is not None:
            owners[record.gpu, record.device.gi_id] = ("home", record.home)
        elif isinstance(record, WarmRecord):
            owners[record.gpu, record.gi_id] = ("warm", "")
    return owners


def _gpu(gpu: GpuReport, owners: _Owners) -> ShownGpu:
    instances = []
    for instance in gpu.instances:
        owner, of = owners.get((gpu.uuid, instance.gi_id), _without_record(gpu, instance))
        instances.append(
            ShownInstance(
                gi_id=instance.gi_id,
                profile=instance.profile,
                start=instance.start,
                size=instance.size,
                uuid=instance.uuid,
                owner=owner,
                of=of,
            )
        )
    return ShownGpu(
        index=gpu.index,
        uuid=gpu.uuid,
        model=gpu.model,
        memory_mib=gpu.memory_mib,
        mig_enabled=gpu.mig_enabled,
        fixed_layout=gpu.fixed_layout,
        state="lost" if gpu.lost else "ok" if gpu.healthy else "unhealthy",
        message=gpu.health_message,
        instances=tuple(sorted(instances, key=lambda instance: instance.start)),
        quarantined=gpu.quarantined,
    )


def _without_record(gpu: GpuReport, instance: InstanceReport) -> tuple[Owner, str]:
    if instance.allocation:
        return "slice", instance.allocation
    if not gpu.fixed_layout:
        return "foreign", ""
    return ("unusable", instance.unusable) if instance.unusable else ("free", "")


def _homes_of_agent(gpus: Sequence[GpuReport], records: Sequence[Record]) -> tuple[ShownHome, ...]:
    names = {
        (record.gpu, record.profile, record.start): record.home
        for record in records
        if isinstance(record, SharedDeviceRecord)
    }
    return tuple(
        ShownHome(
            home=names.get((gpu.uuid, daemon.profile, daemon.start), ""),
            gpu=gpu.uuid,
            profile=daemon.profile,
            start=daemon.start,
            device=daemon.device,
            namespace=daemon.namespace,
            uid=daemon.uid,
            state=daemon.state,
            pid=daemon.pid,
            clients=daemon.clients,
            message=daemon.message,
        )
        for gpu in gpus
        for daemon in gpu.daemons
    )


def _home(record: SharedDeviceRecord) -> ShownHome:
    return ShownHome(
        home=record.home,
        gpu=record.gpu,
        profile=record.profile,
        start=record.start,
        device=record.device.uuid,
        namespace=record.namespace,
        uid=record.uid,
        state=record.phase,
        pid=record.pid,
        clients=None,
        message=record.message,
    )


def _slice_of_report(report: SliceReport) -> ShownSlice:
    return _slice(report.booking, report.state, revoked=report.revoked)


def _slice_of_record(record: SliceRecord) -> ShownSlice:
    return _slice(record.booking, record.phase, revoked=record.revoked)


def _slice(booking: Booking, state: str, *, revoked: bool) -> ShownSlice:
    return ShownSlice(
        allocation=booking.allocation,
        request=booking.request,
        namespace=booking.namespace,
        name=booking.name,
        state=state,
        revoked=revoked,
        devices=tuple(
            ShownDevice(
                container=grant.container,
                gpu=grant.gpu,
                profile=grant.profile,
                start=grant.start,
                mode="exclusive" if grant.share is None else grant.share.mode,
                memory_mib=0 if grant.share is None else grant.share.memory_mib,
            )
            for grant in booking.devices
        ),
    )

"""The content of `show`, from the agent's snapshot, or from journal and devices. Owners of instances come from the
journal first, which has homes and warm ones. Pure."""

from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec

from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import Booking, GpuReport, InstanceReport, NodeSnapshot, PlacementReport
from sluice_node_agent.core.journal_records import NodeRecord, Record, SharedDeviceRecord, SliceRecord, WarmRecord

T = TypeVar("T")
Owner = Literal["slice", "home", "warm", "foreign", "free", "unusable"]
"""`free` and `unusable`: of a fixed layout, without a record."""
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
    """A GPU's current state."""

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
    """A node. `problems` name what could not be read."""

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
    """A node from its agent's snapshot; the journal adds homes and warm instances."""
    owners = _owners(records)
    return _alike(
        Shown,
        snapshot,
        source="agent",
        gpus=tuple(_gpu(gpu, owners) for gpu in snapshot.gpus),
        homes=_homes_of_agent(snapshot.gpus, records),
        slices=tuple(_slice(each.booking, each.state, revoked=each.revoked) for each in snapshot.slices),
        problems=tuple(problems),
    )


def _alike(kind: type[T], source: object, /, **others: object) -> T:
    """One of `kind` with `others`, and with what `source` has under the same names."""
    names = (name for name in getattr(kind, "__struct_fields__") if name not in others)  # noqa: B009
    return kind(**others, **{name: getattr(source, name) for name in names})


def shown_by_journal(
    node: str,
    records: Sequence[Record],
    gpus: Sequence[GpuReport],
    *,
    boot_id: str,
    driver_version: str,
    problems: Sequence[str] = (),
) -> Shown:
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
        slices=tuple(
            _slice(record.booking, record.phase, revoked=record.revoked)
            for record in records
            if isinstance(record, SliceRecord)
        ),
        warnings=(_REBOOTED,) if rebooted else (),
        problems=tuple(problems),
    )


_Owners = dict[tuple[str, int], tuple[Owner, str]]


def _owners(records: Sequence[Record]) -> _Owners:
    """The owner of each instance, by GPU and id. Homes and warm ones last: a share's record may name its home's."""
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
        instances.append(_alike(ShownInstance, instance, owner=owner, of=of))
    return _alike(
        ShownGpu,
        gpu,
        state="lost" if gpu.lost else "ok" if gpu.healthy else "unhealthy",
        message=gpu.health_message,
        instances=tuple(sorted(instances, key=lambda instance: instance.start)),
    )


def _without_record(gpu: GpuReport, instance: InstanceReport) -> tuple[Owner, str]:
    if instance.allocation:
        return "slice", instance.allocation
    if not gpu.fixed_layout:
        return "foreign", ""
    return ("unusable", instance.unusable) if instance.unusable else ("free", "")


def _homes_of_agent(gpus: Sequence[GpuReport], records: Sequence[Record]) -> tuple[ShownHome, ...]:
    homes = [record for record in records if isinstance(record, SharedDeviceRecord)]
    names = {(home.gpu, home.profile, home.start): home.home for home in homes}
    return tuple(
        _alike(ShownHome, daemon, home=names.get((gpu.uuid, daemon.profile, daemon.start), ""), gpu=gpu.uuid)
        for gpu in gpus
        for daemon in gpu.daemons
    )


def _home(record: SharedDeviceRecord) -> ShownHome:
    return _alike(ShownHome, record, device=record.device.uuid, state=record.phase, clients=None)


def _slice(booking: Booking, state: str, *, revoked: bool) -> ShownSlice:
    return _alike(
        ShownSlice,
        booking,
        state=state,
        revoked=revoked,
        devices=tuple(
            _alike(
                ShownDevice,
                grant,
                mode="exclusive" if grant.share is None else grant.share.mode,
                memory_mib=0 if grant.share is None else grant.share.memory_mib,
            )
            for grant in booking.devices
        ),
    )

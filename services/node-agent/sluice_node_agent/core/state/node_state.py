"""The state of one node: its devices, the slices and homes of shares on them, and the boot."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import DeviceGrant
from sluice_node_agent.core import events, instructions
from sluice_node_agent.core.journal_records import DeviceRecord, SharedDeviceRecord, SliceRecord
from sluice_node_agent.core.slices.mig_instance import strangers_of
from sluice_node_agent.core.state import tasks
from sluice_node_agent.core.state.devices import DevicePlacement, Devices, InstanceKey


@dataclass(slots=True)
class NodeState:
    """The state of one node that steps depend on."""

    boot_id: str = ""
    mps_root: str = ""
    has_pods: bool = False
    """Whether a kubelet may run pods here: then their processes are listed too, not only those on devices."""
    time_quota: bool = False
    devices: Devices = field(default_factory=Devices)
    slices: dict[AllocationId, tasks.SliceTask] = field(default_factory=dict)
    idle_since: Mapping[AllocationId, int] = field(default_factory=dict)
    """Of slices that idle, in unix seconds."""
    homes: dict[tasks.SharedDeviceKey, tasks.SharedDeviceTask] = field(default_factory=dict)
    _tenants: dict[tasks.SharedDeviceKey, dict[AllocationId, None]] = field(default_factory=dict)

    def enter(self, record: SliceRecord) -> tasks.SliceTask:
        allocation = record.booking.allocation
        work = self.slices.get(allocation)
        if work is None:
            work = self.slices[allocation] = tasks.SliceTask(record)
            for key in work.homes:
                self._tenants.setdefault(key, {})[allocation] = None
        work.record = record
        return work

    def leave(self, allocation: AllocationId) -> None:
        work = self.slices.pop(allocation, None)
        for key in work.homes if work is not None else ():
            tenants = self._tenants.get(key, {})
            tenants.pop(allocation, None)
            if not tenants:
                self._tenants.pop(key, None)

    def claims(self) -> dict[InstanceKey, AllocationId | None]:
        """The owner of each instance of ours: a home's is one of its tenants, or None when it has none."""
        found: dict[InstanceKey, AllocationId | None] = {}
        for home in self.homes.values():
            gi_id = home.record.device.gi_id
            if gi_id is not None:
                tenants = self._tenants.get(home.key, {})
                found[home.record.gpu, gi_id] = next(iter(tenants), None)
        for allocation, work in self.slices.items():
            record = work.record
            for grant, device in zip(record.booking.devices, record.devices, strict=False):
                if device.gi_id is not None:
                    found[grant.gpu, device.gi_id] = allocation
        return found

    def tenants(self, key: tasks.SharedDeviceKey) -> Iterator[tuple[tasks.SliceTask, DeviceGrant, DeviceRecord]]:
        for allocation in self._tenants.get(key, ()):
            work = self.slices[allocation]
            for _, grant, device in tasks.numbered_devices(work.record):
                if grant.share is not None and tasks.shared_device_key(grant) == key:
                    yield work, grant, device

    def has_tenants(self, key: tasks.SharedDeviceKey) -> bool:
        """Whether a slice that is not gone has or will have a share there."""
        return bool(self._tenants.get(key))

    def home_of(self, grant: DeviceGrant) -> SharedDeviceRecord | None:
        home = self.homes.get(tasks.shared_device_key(grant)) if grant.share is not None else None
        return home.record if home is not None else None

    def wants_home(self, key: tasks.SharedDeviceKey) -> bool:
        """Whether a home is needed: a slice is being created or ready there, or has not left it yet."""
        stays = {"making", "ready"}
        return any(device.step == "made" or work.record.phase in stays for work, _, device in self.tenants(key))


def apply_result(
    state: NodeState, sent: instructions.OwnInstruction, result: events.Result, job: tasks.Task | None
) -> None:
    devices = state.devices
    match sent, result:
        case instructions.CreateGpuInstance(), events.GpuInstanceCreated(gi_id=gi_id):
            devices.add(_place_of(sent, job), gi_id)
        case instructions.CreateComputeInstance(gpu=gpu, gi_id=gi_id), events.ComputeInstanceCreated(uuid=uuid):
            devices.name(gpu, gi_id, uuid)
        case instructions.DestroyComputeInstance(gpu=gpu, gi_id=gi_id), events.ComputeInstanceDestroyed():
            devices.name(gpu, gi_id, "")
        case instructions.DestroyGpuInstance(
            gpu=gpu, gi_id=gi_id, start=start, size=size
        ), events.GpuInstanceDestroyed():
            devices.remove(gpu, gi_id)
            devices.unmade(events.OwnershipMark(gpu, start, size))
        case instructions.ListHolders(gpu=gpu, uuid=uuid), events.HoldersListed(holders=holders) if devices.is_fixed(
            gpu
        ):
            if job is None or (
                isinstance(job, tasks.SliceTask | tasks.SharedDeviceTask) and job.record.phase == "making"
            ):
                owner = job.record.booking.owner if isinstance(job, tasks.SliceTask) else ""
                devices.note_users(uuid, strangers_of(holders, owner))  # later it has a tenant, and maybe its server
        case _, events.GpuRead(report=report):
            devices.read(report)
        case instructions.ReadGpu(gpu=gpu), events.DeviceRefused(message=message):
            devices.lose(gpu, message)
        case _, events.DeviceRefused(kind=events.DeviceErrorKind.GPU_LOST, message=message) if isinstance(
            sent, instructions.GpuInstruction
        ):
            devices.lose(sent.gpu, message)


def _place_of(sent: instructions.CreateGpuInstance, job: tasks.Task | None) -> DevicePlacement:
    if isinstance(job, tasks.SharedDeviceTask):
        return job.record
    assert isinstance(job, tasks.SliceTask)
    place = (sent.gpu, sent.start, sent.size)
    return next(d for d in job.record.booking.devices if (d.gpu, d.start, d.size) == place)

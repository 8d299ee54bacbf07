"""What a step's result shows about the GPUs."""

from sluice_node_agent.core.events import (
    ComputeInstanceCreated,
    ComputeInstanceDestroyed,
    DeviceErrorKind,
    DeviceRefused,
    GpuInstanceCreated,
    GpuInstanceDestroyed,
    GpuRead,
    Holder,
    HoldersListed,
    OwnershipMark,
    Result,
)
from sluice_node_agent.core.instructions import (
    GPU_INSTRUCTIONS,
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    ListHolders,
    OwnInstruction,
    ReadGpu,
)
from sluice_node_agent.core.slices.fixed_layouts import strangers_of
from sluice_node_agent.core.state.devices import DevicePlacement
from sluice_node_agent.core.state.node_state import NodeState
from sluice_node_agent.core.state.tasks import SharedDeviceTask, SliceTask, Task


def apply_result(state: NodeState, sent: OwnInstruction, result: Result, job: Task | None) -> None:
    """Update the node's devices from the result."""
    devices = state.devices
    match sent, result:
        case CreateGpuInstance(), GpuInstanceCreated(gi_id=gi_id):
            devices.add(_place_of(sent, job), gi_id)
        case CreateComputeInstance(gpu=gpu, gi_id=gi_id), ComputeInstanceCreated(uuid=uuid):
            devices.name(gpu, gi_id, uuid)
        case DestroyComputeInstance(gpu=gpu, gi_id=gi_id), ComputeInstanceDestroyed():
            devices.name(gpu, gi_id, "")
        case DestroyGpuInstance(gpu=gpu, gi_id=gi_id, start=start, size=size), GpuInstanceDestroyed():
            devices.remove(gpu, gi_id)
            devices.unmade(OwnershipMark(gpu, start, size))
        case ListHolders(gpu=gpu, uuid=uuid), HoldersListed(holders=holders) if devices.is_fixed(gpu):
            _note_users(state, uuid, holders, job)
        case _, GpuRead(report=report):
            devices.read(report)
        case ReadGpu(gpu=gpu), DeviceRefused(message=message):
            devices.lose(gpu, message)
        case _, DeviceRefused(kind=DeviceErrorKind.GPU_LOST, message=message) if isinstance(sent, GPU_INSTRUCTIONS):
            devices.lose(sent.gpu, message)
        case _:
            pass


def _note_users(state: NodeState, uuid: str, holders: tuple[Holder, ...], job: Task | None) -> None:
    """
    Note the processes on a device of a fixed layout, listed while it was unassigned or about to be assigned.

    An assigned device is skipped: its tenant and its home's MPS server are not foreign.
    """
    if job is None:
        state.devices.note_users(uuid, strangers_of(holders))
    elif isinstance(job, SliceTask) and job.record.phase == "making":
        state.devices.note_users(uuid, strangers_of(holders, job.record.booking.owner))
    elif isinstance(job, SharedDeviceTask) and job.record.phase == "making":
        state.devices.note_users(uuid, strangers_of(holders))


def _place_of(sent: CreateGpuInstance, job: Task | None) -> DevicePlacement:
    """The home, or the slice's device, that an instance was created for."""
    if isinstance(job, SharedDeviceTask):
        return job.record
    assert isinstance(job, SliceTask)
    place = (sent.gpu, sent.start, sent.size)
    return next(d for d in job.record.booking.devices if (d.gpu, d.start, d.size) == place)

"""What the result of a step says about what is on the GPUs."""

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
    """Keep the floor's devices as the result shows them."""
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
    Who is on a device of a fixed layout: seen by a look at what nobody has, or when it was to be handed out.

    A device that somebody has is not looked at here: its tenant and the MPS server of its home are no strangers.
    """
    if job is None:
        state.devices.note_users(uuid, strangers_of(holders))
    elif isinstance(job, SliceTask) and job.record.phase == "making":
        state.devices.note_users(uuid, strangers_of(holders, job.record.booking.owner))
    elif isinstance(job, SharedDeviceTask) and job.record.phase == "making":
        state.devices.note_users(uuid, strangers_of(holders))


def _place_of(sent: CreateGpuInstance, job: Task | None) -> DevicePlacement:
    """For whom an instance was created: a home, or one of a slice's devices."""
    if isinstance(job, SharedDeviceTask):
        return job.record
    assert isinstance(job, SliceTask)
    place = (sent.gpu, sent.start, sent.size)
    return next(d for d in job.record.booking.devices if (d.gpu, d.start, d.size) == place)

"""What the result of a step says about what is on the GPUs."""

from sluice_node_agent.core.devices import Place
from sluice_node_agent.core.events import (
    GPU_INSTRUCTIONS,
    ComputeInstanceCreated,
    ComputeInstanceDestroyed,
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    DeviceErrorKind,
    DeviceRefused,
    GpuInstanceCreated,
    GpuInstanceDestroyed,
    GpuRead,
    OwnInstruction,
    ReadGpu,
    Result,
)
from sluice_node_agent.core.floor import Floor
from sluice_node_agent.core.work import HomeWork, Job, Work


def learn(floor: Floor, sent: OwnInstruction, result: Result, job: Job | None) -> None:
    """Keep the floor's devices as the result shows them."""
    devices = floor.devices
    match sent, result:
        case CreateGpuInstance(), GpuInstanceCreated(gi_id=gi_id):
            devices.add(_place_of(sent, job), gi_id)
        case CreateComputeInstance(gpu=gpu, gi_id=gi_id), ComputeInstanceCreated(uuid=uuid):
            devices.name(gpu, gi_id, uuid)
        case DestroyComputeInstance(gpu=gpu, gi_id=gi_id), ComputeInstanceDestroyed():
            devices.name(gpu, gi_id, "")
        case DestroyGpuInstance(gpu=gpu, gi_id=gi_id), GpuInstanceDestroyed():
            devices.remove(gpu, gi_id)
        case _, GpuRead(report=report):
            devices.read(report)
        case ReadGpu(gpu=gpu), DeviceRefused(message=message):
            devices.lose(gpu, message)
        case _, DeviceRefused(kind=DeviceErrorKind.GPU_LOST, message=message) if isinstance(sent, GPU_INSTRUCTIONS):
            devices.lose(sent.gpu, message)
        case _:
            pass


def _place_of(sent: CreateGpuInstance, job: Job | None) -> Place:
    """For whom an instance was created: a home, or one of a slice's devices."""
    if isinstance(job, HomeWork):
        return job.record
    assert isinstance(job, Work)
    place = (sent.gpu, sent.start, sent.size)
    return next(d for d in job.record.booking.devices if (d.gpu, d.start, d.size) == place)

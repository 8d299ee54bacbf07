"""
Carries out one instruction of the core by a blocking call on a device or an MPS daemon.

Returns the result event. Refusals are raised as the ports' errors.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from sluice.contracts.messages import GpuReport
from sluice_node_agent.core.events import (
    ComputeInstanceCreated,
    ComputeInstanceDestroyed,
    ComputeModeSet,
    DeviceErrorKind,
    DeviceRefused,
    GpuInstanceCreated,
    GpuInstanceDestroyed,
    GpuRead,
    HoldersListed,
    InstanceVerified,
    MpsClientsTerminated,
    MpsLimitsSet,
    MpsRefused,
    MpsStarted,
    MpsStopped,
    QuotasSet,
    Result,
)
from sluice_node_agent.core.instructions import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    GpuInstruction,
    ListHolders,
    MpsInstruction,
    ReadGpu,
    SetComputeMode,
    SetMpsLimits,
    SetQuotas,
    StartMps,
    StopMps,
    TerminateMpsClients,
    VerifyInstance,
    WatchMps,
)
from sluice_node_agent.device.port import GpuBackend

if TYPE_CHECKING:  # imported where there is MPS
    from sluice_node_agent.device.mps.daemons import MpsDaemons
    from sluice_node_agent.shell.quota.controller import QuotaController


def on_device(backend: GpuBackend, order: GpuInstruction) -> Result:
    """Carry out an instruction about a GPU. Raises DeviceError."""
    token, gpu = order.token, order.gpu
    match order:
        case CreateGpuInstance():
            gi_id = backend.create_gpu_instance(gpu, order.profile_id, order.start, order.size)
            return GpuInstanceCreated(token, gi_id)
        case CreateComputeInstance():
            return ComputeInstanceCreated(token, backend.create_compute_instance(gpu, order.gi_id))
        case VerifyInstance():
            return _verify(order, backend.read_gpu(gpu))
        case DestroyComputeInstance():
            backend.destroy_compute_instance(gpu, order.gi_id, order.uuid)
            return ComputeInstanceDestroyed(token)
        case DestroyGpuInstance():
            backend.destroy_gpu_instance(gpu, order.gi_id, order.start, order.size)
            return GpuInstanceDestroyed(token)
        case ReadGpu():
            return GpuRead(token, backend.read_gpu(gpu))
        case ListHolders():
            return HoldersListed(token, backend.processes(gpu, order.uuid))
        case SetComputeMode():
            backend.set_exclusive_process(gpu, exclusive=order.exclusive_process)
            return ComputeModeSet(token)
    raise AssertionError(f"{order} is about no GPU")


def on_daemon(mps: "MpsDaemons", order: MpsInstruction, quotas: "QuotaController | None" = None) -> Result:
    """Carry out an instruction about an MPS daemon or its time quota. Raises MpsError, QuotaControllerError."""
    match order:
        case StartMps():
            pid, started_at = mps.start(order)
            return MpsStarted(order.token, pid, started_at)
        case SetMpsLimits():
            mps.set_limits(order)
            return MpsLimitsSet(order.token)
        case SetQuotas():
            if quotas is None:
                return MpsRefused(order.token, "this agent enforces no time")
            quotas.set(order)
            return QuotasSet(order.token)
        case WatchMps():
            seen = mps.look(order)
            return seen if quotas is None else replace(seen, quota=quotas.seen(order.home))
        case TerminateMpsClients():
            mps.terminate_clients(order)
            return MpsClientsTerminated(order.token)
        case StopMps():
            if quotas is not None:
                quotas.end(order.home)
            mps.stop(order)
            return MpsStopped(order.token)
    raise AssertionError(f"{order} is about no MPS daemon")


def _verify(order: VerifyInstance, report: GpuReport) -> Result:
    """Compare the instance on the device with what was ordered."""
    if report.lost:
        return DeviceRefused(order.token, DeviceErrorKind.GPU_LOST, report.health_message)
    if not report.healthy:
        return DeviceRefused(order.token, DeviceErrorKind.UNKNOWN, f"the GPU is not healthy: {report.health_message}")
    found = next((instance for instance in report.instances if instance.gi_id == order.gi_id), None)
    if found is None:
        message = f"GPU instance {order.gi_id} is not there"
        return DeviceRefused(order.token, DeviceErrorKind.NOT_FOUND, message)
    profile = next((profile.name for profile in report.profiles if profile.profile_id == order.profile_id), None)
    message = f"GPU instance {order.gi_id} is {found.profile} at {found.start}:{found.size}, {found.uuid}"
    if (found.profile, found.start, found.size) != (profile, order.start, order.size):
        return DeviceRefused(order.token, DeviceErrorKind.NOT_FOUND, message)  # it reuses the id of one that is gone
    if found.uuid != order.uuid:
        return DeviceRefused(order.token, DeviceErrorKind.DIFFERENT, message)
    return InstanceVerified(order.token)

"""Carries out one instruction of the core by a blocking call, and returns the result; refusals are raised."""

from msgspec.structs import replace

from sluice.contracts.messages import GpuReport
from sluice_node_agent.core import events, instructions
from sluice_node_agent.device.mps.daemons import MpsDaemons
from sluice_node_agent.device.port import GpuBackend
from sluice_node_agent.shell.quota.controller import QuotaController


def on_device(backend: GpuBackend, order: instructions.GpuInstruction) -> events.Result:
    """Carry out an instruction about a GPU. Raises DeviceError."""
    token, gpu = order.token, order.gpu
    match order:
        case instructions.CreateGpuInstance():
            gi_id = backend.create_gpu_instance(gpu, order.profile_id, order.start, order.size)
            return events.GpuInstanceCreated(token, gi_id)
        case instructions.CreateComputeInstance():
            return events.ComputeInstanceCreated(token, backend.create_compute_instance(gpu, order.gi_id))
        case instructions.VerifyInstance():
            return _verify(order, backend.read_gpu(gpu))
        case instructions.DestroyComputeInstance():
            backend.destroy_compute_instance(gpu, order.gi_id, order.uuid)
            return events.ComputeInstanceDestroyed(token)
        case instructions.DestroyGpuInstance():
            backend.destroy_gpu_instance(gpu, order.gi_id, order.start, order.size)
            return events.GpuInstanceDestroyed(token)
        case instructions.ReadGpu():
            return events.GpuRead(token, backend.read_gpu(gpu))
        case instructions.ListHolders():
            return events.HoldersListed(token, backend.processes(gpu, order.uuid))
        case instructions.SetComputeMode():
            backend.set_exclusive_process(gpu, exclusive=order.exclusive_process)
            return events.ComputeModeSet(token)
    raise AssertionError(f"{order} is about no GPU")


def on_daemon(mps: MpsDaemons, order: instructions.MpsInstruction, quotas: QuotaController | None) -> events.Result:
    """Carry out an instruction about an MPS daemon or its time quota. Raises MpsError, QuotaControllerError."""
    match order:
        case instructions.StartMps():
            pid, started_at = mps.start(order)
            return events.MpsStarted(order.token, pid, started_at)
        case instructions.SetMpsLimits():
            mps.set_limits(order)
            return events.MpsLimitsSet(order.token)
        case instructions.SetQuotas():
            if quotas is None:
                return events.MpsRefused(order.token, "this agent enforces no time")
            quotas.set(order)
            return events.QuotasSet(order.token)
        case instructions.WatchMps():
            seen = mps.look(order)
            return seen if quotas is None else replace(seen, quota=quotas.seen(order.home))
        case instructions.TerminateMpsClients():
            mps.terminate_clients(order)
            return events.MpsClientsTerminated(order.token)
        case instructions.StopMps():
            if quotas is not None:
                quotas.end(order.home)
            mps.stop(order)
            return events.MpsStopped(order.token)
    raise AssertionError(f"{order} is about no MPS daemon")


def _verify(order: instructions.VerifyInstance, report: GpuReport) -> events.Result:
    if report.lost:
        return events.DeviceRefused(order.token, events.DeviceErrorKind.GPU_LOST, report.health_message)
    if not report.healthy:
        message = f"the GPU is not healthy: {report.health_message}"
        return events.DeviceRefused(order.token, events.DeviceErrorKind.UNKNOWN, message)
    found = next((instance for instance in report.instances if instance.gi_id == order.gi_id), None)
    if found is None:
        message = f"GPU instance {order.gi_id} is not there"
        return events.DeviceRefused(order.token, events.DeviceErrorKind.NOT_FOUND, message)
    profile = next((profile.name for profile in report.profiles if profile.profile_id == order.profile_id), None)
    message = f"GPU instance {order.gi_id} is {found.profile} at {found.start}:{found.size}, {found.uuid}"
    if (found.profile, found.start, found.size) != (profile, order.start, order.size):
        # it reuses the id of one that is gone
        return events.DeviceRefused(order.token, events.DeviceErrorKind.NOT_FOUND, message)
    if found.uuid != order.uuid:
        return events.DeviceRefused(order.token, events.DeviceErrorKind.DIFFERENT, message)
    return events.InstanceVerified(order.token)

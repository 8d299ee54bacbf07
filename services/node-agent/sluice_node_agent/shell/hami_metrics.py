"""HAMi's metrics under HAMi's names and labels, for existing dashboards; off by default (`hami_metrics`). Names and
units are those of HAMi's reference (Project-HAMi/HAMi, pkg/metrics/catalog): a `_ratio` is mostly 0 to 100 there.
Metrics of its library inside containers, and the use of whole GPUs, are missing: DCGM's exporter has the latter."""

from collections.abc import Iterator

from sluice.contracts.messages import DeviceGrant, GpuReport, NodeSnapshot
from sluice.contracts.slice_usage import NodeUsage
from sluice.runtime.prometheus.metrics import Metric, Sample

_MIB = 1024**2
_GPU = ("node", "device_uuid", "device_index", "device_type")
_GIVEN = ("namespace", "node", "pod", "container_index", "device_uuid")
_USED = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
_ALL_CORES = "100"

MEMORY_LIMIT = Metric("hami_gpu_memory_limit_bytes", "gauge", "Memory of a GPU.", _GPU)
CORE_LIMIT = Metric("hami_gpu_core_limit_ratio", "gauge", "Percent of SMs that can be given: 100.", _GPU)
MEMORY_ALLOCATED = Metric(
    "hami_gpu_memory_allocated_bytes",
    "gauge",
    "Memory given to slices.",
    ("node", "device_uuid", "device_index", "device_cores", "device_type"),
)
CORE_ALLOCATED = Metric("hami_gpu_core_allocated_ratio", "gauge", "Percent of SMs given to slices.", _GPU)
SHARED = Metric("hami_gpu_shared_count", "gauge", "Containers with all or a part of the GPU.", _GPU)
MEMORY_RATIO = Metric(
    "hami_node_gpu_memory_allocated_ratio",
    "gauge",
    "Part of the memory given to slices, 0 to 1.",
    ("node", "device_uuid", "device_index"),
)
MIG_INSTANCE = Metric(
    "hami_node_gpu_mig_instance_info",
    "gauge",
    "1 for each MIG instance of a slice.",
    (
        "node",
        "device_uuid",
        "device_index",
        "mig_uuid",
        "profile",
        "gpu_instance_id",
        "compute_instance_id",
        "placement_start",
        "placement_size",
    ),
)
VGPU_MEMORY = Metric("hami_vgpu_memory_allocated_bytes", "gauge", "Memory given to a container.", _GIVEN)
VGPU_CORE = Metric(
    "hami_vgpu_core_allocated_ratio", "gauge", "Percent of SMs given to a container; 0 is no bound.", _GIVEN
)
USED = Metric("hami_vgpu_memory_used_bytes", "gauge", "Memory held by a slice's processes.", _USED)
LIMIT = Metric("hami_vgpu_memory_limit_bytes", "gauge", "Memory that a slice may use.", _USED)
UTILIZATION = Metric(
    "hami_container_device_utilization_ratio", "gauge", "Percent of the time in which a slice's kernels ran.", _USED
)
LAST_KERNEL = Metric("hami_container_last_kernel_elapsed_seconds", "gauge", "Time since a slice was last used.", _USED)


def hami_samples(snapshot: NodeSnapshot, usage: NodeUsage) -> Iterator[Sample]:
    gpus = {gpu.uuid: gpu for gpu in snapshot.gpus}
    memory_mib, cores, shared = (dict.fromkeys(gpus, 0.0) for _ in range(3))
    for report in snapshot.slices:
        booking = report.booking
        containers = list(dict.fromkeys(each.container for each in booking.devices))
        for grant in booking.devices:
            gpu = gpus.get(grant.gpu)
            if gpu is None:
                continue
            has_mib, has_cores = _given(grant, gpu)
            memory_mib[gpu.uuid] += has_mib
            cores[gpu.uuid] += has_cores
            shared[gpu.uuid] += 1
            index = str(containers.index(grant.container))
            given = (booking.namespace, snapshot.node, booking.name, index, gpu.uuid)
            yield Sample(VGPU_MEMORY, has_mib * _MIB, given)
            yield Sample(VGPU_CORE, has_cores, given)
    for gpu in snapshot.gpus:
        of_gpu = (snapshot.node, gpu.uuid, str(gpu.index))
        labels = (*of_gpu, gpu.model)
        yield Sample(MEMORY_LIMIT, gpu.memory_mib * _MIB, labels)
        yield Sample(CORE_LIMIT, 100, labels)
        yield Sample(MEMORY_ALLOCATED, memory_mib[gpu.uuid] * _MIB, (*of_gpu, _ALL_CORES, gpu.model))
        yield Sample(CORE_ALLOCATED, cores[gpu.uuid], labels)
        yield Sample(SHARED, shared[gpu.uuid], labels)
        yield Sample(MEMORY_RATIO, memory_mib[gpu.uuid] / max(1, gpu.memory_mib), of_gpu)
        for each in gpu.instances:
            if each.allocation is not None and each.uuid:
                place = (str(each.gi_id), "0", str(each.start), str(each.size))
                yield Sample(MIG_INSTANCE, 1, (*of_gpu, each.uuid, each.profile, *place))
    yield from _used(usage)


def _used(usage: NodeUsage) -> Iterator[Sample]:
    devices: dict[str, int] = {}
    for each in usage.slices:
        index = devices[each.allocation] = devices.get(each.allocation, -1) + 1
        labels = (each.namespace, each.name, ",".join(each.containers), str(index), each.gpu)
        yield Sample(LIMIT, each.memory_mib * _MIB, labels)
        if each.memory_used_mib is not None:
            yield Sample(USED, each.memory_used_mib * _MIB, labels)
        if each.busy_percent is not None:
            yield Sample(UTILIZATION, each.busy_percent, labels)
            yield Sample(LAST_KERNEL, each.idle_s or 0.0, labels)


def _given(grant: DeviceGrant, gpu: GpuReport) -> tuple[int, float]:
    if grant.share is not None:
        return grant.share.memory_mib, float(grant.share.sm_partition)
    if grant.profile is None:
        return gpu.memory_mib, 100.0
    profile = next((row for row in gpu.profiles if row.name == grant.profile), None)
    if profile is None:
        return 0, 0.0
    return profile.memory_mib, round(100 * profile.multiprocessors / max(1, gpu.multiprocessors), 1)

"""Metrics of an agent's node: slices by state and use, GPU health, and whether the journal was lost. Read from the
served snapshot and the last usage sample; `runtime.runtime_metrics` counts instructions (`sluice_action_seconds`)."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial

from sluice.contracts.messages import InstanceReport, NodeSnapshot, PlacementReport
from sluice.contracts.slice_usage import NodeUsage
from sluice.runtime.prometheus.metrics import Metric, Sample
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.usage import used_devices

_MIB = 1024**2

OPEN = Metric("sluice_agent_open", "gauge", "Nodes of this agent that carry out orders.", ())
SLICES = Metric(
    "sluice_agent_slices",
    "gauge",
    "Slices in the journal by state: planned, making, ready, failed, degraded, unmaking, quarantined.",
    ("state",),
)
GPUS = Metric("sluice_agent_gpus", "gauge", "GPUs by health: healthy, unhealthy, lost (no answer).", ("health",))
QUARANTINED = Metric("sluice_agent_quarantined_places", "gauge", "Places whose instance could not be destroyed.", ())
FOREIGN = Metric("sluice_agent_foreign_instances", "gauge", "MIG instances that Sluice did not create.", ())
HOMES = Metric(
    "sluice_agent_homes",
    "gauge",
    "Shared devices by the state of their MPS daemon: starting, ready, fault, down, stopping.",
    ("state",),
)
WARNINGS = Metric(
    "sluice_agent_warnings", "gauge", "Warnings about the node as a whole (a lost journal, for example).", ()
)

GPU_SLICES = Metric(
    "sluice_agent_gpu_memory_slices",
    "gauge",
    "Memory slices of each GPU: total, allocated, quarantined, foreign.",
    ("gpu", "model", "state"),
)
GPU_CREATABLE = Metric(
    "sluice_agent_gpu_creatable",
    "gauge",
    "Further instances of a profile that fit on each GPU. Profiles are alternatives: do not add them up.",
    ("gpu", "model", "profile"),
)
DEVICE_REFUSALS = Metric(
    "sluice_device_refusals_total",
    "counter",
    "Steps that a device or MPS daemon refused, by step and kind of error.",
    ("step", "kind"),
)
SLICE_INFO = Metric(
    "sluice_slice_info",
    "gauge",
    "1 for each device of a container, to join with DCGM's metrics (usage.md): of GPU, and of instance, if any.",
    ("UUID", "GPU_I_ID", "GPU_I_PROFILE", "namespace", "pod", "container", "mode"),
)
_of_slice = partial(Metric, labels=("owner_namespace", "owner_pod", "gpu", "device", "profile", "mode"))
SLICE_BUSY = _of_slice("sluice_slice_busy_ratio", "gauge", "Part of the time in which a kernel of the slice ran.")
SLICE_SMS = _of_slice("sluice_slice_sm_ratio", "gauge", "Part of the device's SMs that was busy; Hopper and newer.")
SLICE_MEMORY_BUSY = _of_slice(
    "sluice_slice_memory_busy_ratio",
    "gauge",
    "Part of the time (Hopper and newer: of the bandwidth) in which its memory was read or written.",
)
SLICE_MEMORY_USED = _of_slice("sluice_slice_memory_used_bytes", "gauge", "Device memory held by the slice's processes.")
SLICE_MEMORY = _of_slice("sluice_slice_memory_bytes", "gauge", "Device memory that the slice may use.")
SLICE_IDLE = _of_slice(
    "sluice_slice_idle_seconds",
    "gauge",
    "Time since the slice was last used; absent if unknown. Restarts with the agent.",
)
USAGE_LOOK_SECONDS = Metric(
    "sluice_usage_look_seconds",
    "histogram",
    "Time to sample one GPU's usage, by outcome: read, busy (skipped), refused (by the driver).",
    ("outcome",),
)


def usage_samples(usage: NodeUsage) -> Iterator[Sample]:
    for each in usage.slices:
        labels = (each.namespace, each.name, each.gpu, each.device, each.profile or "whole", each.mode)
        yield Sample(SLICE_MEMORY, each.memory_mib * _MIB, labels)
        if each.age_s is None:
            continue
        if each.memory_used_mib is not None:
            yield Sample(SLICE_MEMORY_USED, each.memory_used_mib * _MIB, labels)
        for metric, percent in (
            (SLICE_BUSY, each.busy_percent),
            (SLICE_SMS, each.sm_percent),
            (SLICE_MEMORY_BUSY, each.memory_busy_percent),
        ):
            if percent is not None:
                yield Sample(metric, percent / 100, labels)
        if each.idle_s is not None or each.busy_percent is not None:
            yield Sample(SLICE_IDLE, each.idle_s or 0.0, labels)


def slice_infos(snapshot: NodeSnapshot) -> Iterator[Sample]:
    """Whose each device of a ready slice is, as DCGM's exporter names devices (internal/pkg/rendermetrics)."""
    for place in used_devices(snapshot):
        ids = [str(each.gi_id) for each in place.gpu.instances if each.uuid == place.device]
        booking, share = place.booking, place.grant.share
        of_pod = (booking.namespace, booking.name)
        for container in dict.fromkeys(each.container for each in place.grants):
            labels = (place.gpu.uuid, "".join(ids), place.grant.profile or "", *of_pod, container)
            yield Sample(SLICE_INFO, 1, (*labels, share.mode if share is not None else "exclusive"))


def memory_slices(snapshot: NodeSnapshot) -> dict[tuple[str, str, str], int]:
    """Memory slices by GPU, model and state; every state of an existing GPU, also with none."""
    booked: dict[str, set[int]] = {}
    for report in snapshot.slices:
        for device in report.booking.devices:
            booked.setdefault(device.gpu, set()).update(range(device.start, device.start + device.size))
    found: dict[tuple[str, str, str], int] = {}
    for gpu in snapshot.gpus:
        foreign = () if gpu.fixed_layout else tuple(each for each in gpu.instances if each.allocation is None)
        taken = {"allocated": booked.get(gpu.uuid, set()), "quarantined": _units(gpu.quarantined)}
        taken["foreign"] = _units(foreign) - taken["allocated"]  # a home of shares is allocated to several
        found[gpu.uuid, gpu.model, "total"] = max(1, gpu.memory_slices)
        found |= {(gpu.uuid, gpu.model, state): len(units) for state, units in taken.items()}
    return found


def _units(spans: Iterable[PlacementReport | InstanceReport]) -> set[int]:
    return {unit for span in spans for unit in range(span.start, span.start + span.size)}


def agent_samples(core: Agent) -> Iterator[Sample]:
    """One agent's metrics."""
    yield Sample(OPEN, core.is_open)
    if not core.started:
        return
    snapshot = core.snapshot()
    for state, count in Counter(report.state for report in snapshot.slices).items():
        yield Sample(SLICES, count, (state,))
    for gpu in snapshot.gpus:
        yield Sample(GPUS, 1, ("lost" if gpu.lost else "healthy" if gpu.healthy else "unhealthy",))
        yield Sample(QUARANTINED, len(gpu.quarantined))
        if not gpu.fixed_layout:
            yield Sample(FOREIGN, sum(instance.allocation is None for instance in gpu.instances))
        for daemon in gpu.daemons:
            yield Sample(HOMES, 1, (daemon.state,))
        for profile, count in gpu.creatable.items():
            yield Sample(GPU_CREATABLE, count, (gpu.uuid, gpu.model, profile))
    yield from slice_infos(snapshot)
    for labels, count in memory_slices(snapshot).items():
        yield Sample(GPU_SLICES, count, labels)
    yield Sample(WARNINGS, len(snapshot.warnings))

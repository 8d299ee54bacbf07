"""What the nodes of a fleet file report when nothing runs on them, as inventory would show it: a fleet without agents.

GPUs are named after their node (`GPU-<node>-<index>`), so that equal files give equal answers."""

from sluice.contracts.fleet_file.fleet_spec import GpuGroupSpec, NodeSpec
from sluice.contracts.gpu_reports import profile_reports
from sluice.contracts.ids import GpuUuid, RunId
from sluice.contracts.messages import GpuReport, HostFacts, HostRoom, InstanceReport, NodeSnapshot

LINK_SCORE = 100
"""Closeness of two GPUs joined by one NVLink; in a group, each pair has one link."""


def host_facts(node: NodeSpec) -> HostFacts:
    return HostFacts(
        cpu_cores=node.cpu_cores,
        memory_mib=node.memory_mib,
        pods_free=node.pods,
        resources=node.resources,
        labels=node.labels,
        taints=node.taints,
        allocatable=HostRoom(
            cpu_milli=round(node.cpu_cores * 1000), memory_mib=node.memory_mib, resources=node.resources
        ),
    )


def empty_snapshot(node: NodeSpec) -> NodeSnapshot:
    """What an agent reports of a node before Sluice made anything on it. Equal models share their profiles."""
    gpus: list[GpuReport] = []
    for kind in node.gpus:
        gpus += _reports(node, kind, first=len(gpus))
    return NodeSnapshot(
        node=node.name,
        boot_id="boot",
        agent_run=RunId("agent"),
        generation=1,
        driver_version="simulated",
        gpus=tuple(gpus),
        slices=(),
        modes=node.modes,
        time_quota=node.time_quota,
    )


def gpu_uuid(node: NodeSpec, index: int) -> GpuUuid:
    """The name of one GPU of a node, counted from 0 over all its entries."""
    return GpuUuid(f"GPU-{node.name}-{index}")


def _reports(node: NodeSpec, kind: GpuGroupSpec, first: int) -> list[GpuReport]:
    model = kind.model
    linked = {gpu: group for group in kind.nvlink for gpu in group}
    return [
        GpuReport(
            uuid=gpu_uuid(node, first + number),
            index=first + number,
            model=kind.product_name,
            memory_mib=model.memory_mib,
            multiprocessors=model.multiprocessors,
            mig_enabled=kind.mig,
            memory_slices=model.memory_slices,
            compute_slices=model.compute_slices,
            profiles=profile_reports(model),
            instances=_instances(gpu_uuid(node, first + number), kind),
            creatable={},
            fixed_layout=kind.layout is not None,
            numa_node=kind.numa[number] if kind.numa else None,
            links={gpu_uuid(node, first + gpu): LINK_SCORE for gpu in linked.get(number, ()) if gpu != number},
        )
        for number in range(kind.count)
    ]


def _instances(gpu: GpuUuid, kind: GpuGroupSpec) -> tuple[InstanceReport, ...]:
    return tuple(
        InstanceReport(
            gi_id=number, profile=each.profile, start=each.start, size=each.size, uuid=f"MIG-{gpu}-{each.start}"
        )
        for number, each in enumerate(kind.layout or (), start=1)
    )

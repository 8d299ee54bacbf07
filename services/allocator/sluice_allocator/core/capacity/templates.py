"""Node templates: learned from nodes seen, and turned into the nodes that an autoscaler would add. A pool is known by
the labels that providers set per pool and per machine type. A node without any belongs to no pool."""

import re
import zlib

from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.ids import GpuUuid, NodeName, RunId
from sluice.contracts.kube.names import LABEL_HOSTNAME
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.placement.spec.place_request import meaning_of

POOL_LABELS = (
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "kubernetes.azure.com/agentpool",
    "doks.digitalocean.com/node-pool",
    "node.kubernetes.io/instance-type",
)
"""Labels of nodes by which autoscalers tell pools, and what their nodes have, apart: the providers' documentation, and
https://kubernetes.io/docs/reference/labels-annotations-taints/."""
NAME_CHARACTERS_MAX = 40  # of the label's value in a pool's name


def learned(snapshot: msg.NodeSnapshot, facts: msg.HostFacts) -> msg.PoolDemand | None:
    """The pool of a node; None when nothing says that it is of one, or not all of its GPUs can be known from it."""
    selector = {key: facts.labels[key] for key in POOL_LABELS if key in facts.labels}
    if not selector or not snapshot.gpus or not all(gpu.healthy for gpu in snapshot.gpus):
        return None
    name, template = _name(selector, facts), template_of(snapshot, facts)
    return msg.PoolDemand(pool=name, source=facts.source, selector=selector, template=template)


def template_of(snapshot: msg.NodeSnapshot, facts: msg.HostFacts) -> msg.NodeTemplate:
    alike: dict[tuple[str, bool, int | None], list[msg.GpuReport]] = {}
    for gpu in snapshot.gpus:
        alike.setdefault((gpu.model, gpu.mig_enabled, gpu.numa_node), []).append(gpu)
    cpu_milli = round(facts.cpu_cores * 1000)
    return msg.NodeTemplate(
        labels={key: value for key, value in facts.labels.items() if key != LABEL_HOSTNAME},
        taints=tuple(taint for taint in facts.taints if _lasts(taint)),
        room=msg.HostRoom(cpu_milli=cpu_milli, memory_mib=facts.memory_mib, resources=facts.resources),
        pods=facts.pods_free,
        gpus=tuple(msg.TemplateGpus(report=_empty(gpus[0]), count=len(gpus)) for gpus in alike.values()),
        modes=snapshot.modes,
        time_quota=snapshot.time_quota,
        kubelet_hands_over=snapshot.kubelet_hands_over,
    )


def merged(known: msg.PoolDemand, seen: msg.PoolDemand) -> msg.PoolDemand:
    """A pool after one more of its nodes was seen: the labels that all have, and the most room that any has."""
    before, now = known.template, seen.template
    room = msg.HostRoom(
        cpu_milli=max(before.room.cpu_milli, now.room.cpu_milli),
        memory_mib=max(before.room.memory_mib, now.room.memory_mib),
        resources={**before.room.resources, **now.room.resources},
    )
    template = replace(
        now,
        labels={key: value for key, value in before.labels.items() if now.labels.get(key) == value},
        room=room,
        pods=max(before.pods, now.pods),
        gpus=before.gpus if _kinds(before) == _kinds(now) else now.gpus,
    )
    return replace(known, template=template)


def new_node(demand: msg.PoolDemand, number: int) -> tuple[msg.NodeSnapshot, msg.HostFacts]:
    """The `number`-th node that a pool would get."""
    node, template = NodeName(f"new-{demand.pool}-{number}"), demand.template
    gpus: list[msg.GpuReport] = []
    for kind in template.gpus:
        first = len(gpus)
        gpus += (
            replace(kind.report, uuid=GpuUuid(f"GPU-{node}-{index}"), index=index)
            for index in range(first, first + kind.count)
        )
    snapshot = msg.NodeSnapshot(
        node=node,
        boot_id="",
        agent_run=RunId(""),
        generation=0,
        driver_version="",
        gpus=tuple(gpus),
        slices=(),
        modes=template.modes,
        time_quota=template.time_quota,
        kubelet_hands_over=template.kubelet_hands_over,
    )
    facts = msg.HostFacts(
        cpu_cores=template.room.cpu_milli / 1000,
        memory_mib=template.room.memory_mib,
        pods_free=template.pods,
        resources=template.room.resources,
        labels={**template.labels, LABEL_HOSTNAME: node},
        taints=template.taints,
        source=demand.source,
        allocatable=template.room,
    )
    return snapshot, facts


def memory_mib(demand: msg.PoolDemand) -> int:
    return sum(kind.count * kind.report.memory_mib for kind in demand.template.gpus)


def _kinds(template: msg.NodeTemplate) -> list[tuple[str, bool, int, int | None, int]]:
    """What tells nodes apart; two cards of one model may differ by some MiB."""
    return [
        (each.report.model, each.report.mig_enabled, len(each.report.profiles), each.report.numa_node, each.count)
        for each in template.gpus
    ]


def _empty(report: msg.GpuReport) -> msg.GpuReport:
    instances = tuple(replace(each, allocation=None, uuid="", unusable="") for each in report.instances)
    return replace(
        report,
        uuid=GpuUuid(""),
        index=0,
        instances=instances if report.fixed_layout else (),
        creatable={},
        quarantined=(),
        links={},
        daemons=(),
    )


def _lasts(taint: msg.Taint) -> bool:
    """Whether new nodes have it too: others are set and removed while a node joins, suffers or leaves."""
    return meaning_of(taint) is WaitReason.NODE_TAINTED


def _name(selector: dict[str, str], facts: msg.HostFacts) -> str:
    readable = re.sub("[^a-z0-9]+", "-", next(iter(selector.values())).lower())[:NAME_CHARACTERS_MAX].strip("-")
    told_apart = zlib.crc32(repr((facts.source, sorted(selector.items()))).encode())
    return f"{readable or 'pool'}-{told_apart:08x}"

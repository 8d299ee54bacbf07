"""Count the nodes that pools lack: what waits is placed on new, empty nodes, by the search for real places. The cost
follows from the bounds here and not from the cluster. An undercount is made up for when those nodes have come."""

import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.ids import GpuUuid, NodeName, RunId
from sluice.contracts.kube.names import LABEL_HOSTNAME
from sluice.contracts.messages import PoolDemand
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.placement import ClusterState, PlaceRequest, find_free
from sluice_allocator.core.placement.search.trial_pods import TrialPods
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
        # others are set and removed while a node joins, suffers or leaves
        taints=tuple(taint for taint in facts.taints if meaning_of(taint) is WaitReason.NODE_TAINTED),
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
    rooms = (before.room, now.room)
    cpu_milli, memory_mib = max(each.cpu_milli for each in rooms), max(each.memory_mib for each in rooms)
    resources = {**before.room.resources, **now.room.resources}
    room = msg.HostRoom(cpu_milli=cpu_milli, memory_mib=memory_mib, resources=resources)
    labels = {key: value for key, value in before.labels.items() if now.labels.get(key) == value}
    gpus = before.gpus if _kinds(before) == _kinds(now) else now.gpus
    template = replace(now, labels=labels, room=room, pods=max(before.pods, now.pods), gpus=gpus)
    return replace(known, template=template)


def new_node(demand: msg.PoolDemand, number: int) -> tuple[msg.NodeSnapshot, msg.HostFacts]:
    node, template = NodeName(f"new-{demand.pool}-{number}"), demand.template
    reports = [kind.report for kind in template.gpus for _ in range(kind.count)]
    gpus = [replace(each, uuid=GpuUuid(f"GPU-{node}-{index}"), index=index) for index, each in enumerate(reports)]
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


def _kinds(template: msg.NodeTemplate) -> list[tuple[str, bool, int, int | None, int]]:
    """What tells nodes apart; two cards of one model may differ by some MiB."""
    reports = ((each.report, each.count) for each in template.gpus)
    return [(each.model, each.mig_enabled, len(each.profiles), each.numa_node, count) for each, count in reports]


def _empty(report: msg.GpuReport) -> msg.GpuReport:
    kept = report.instances if report.fixed_layout else ()
    instances = tuple(replace(each, allocation=None, uuid="", unusable="") for each in kept)
    nothing = replace(report, creatable={}, quarantined=(), links={}, daemons=())
    return replace(nothing, uuid=GpuUuid(""), index=0, instances=instances)


def _name(selector: dict[str, str], facts: msg.HostFacts) -> str:
    readable = re.sub("[^a-z0-9]+", "-", next(iter(selector.values())).lower())[:NAME_CHARACTERS_MAX].strip("-")
    told_apart = zlib.crc32(repr((facts.source, sorted(selector.items()))).encode())
    return f"{readable or 'pool'}-{told_apart:08x}"


PLACES_MAX = 256  # most places looked for in one count


@dataclass(frozen=True, slots=True)
class Waiting:
    """`count` equal requests that have no place, and what each may have instead, in this order."""

    key: bytes
    asking: PlaceRequest
    count: int = 1
    instead: tuple[PlaceRequest, ...] = ()


@dataclass(slots=True)
class Missing:
    """How many more nodes of each pool would serve, and the pool that would serve each shape."""

    nodes: dict[str, int] = field(default_factory=dict)
    pool_of: dict[bytes, str] = field(default_factory=dict)


def count_missing(
    cluster: ClusterState, pools: Mapping[str, PoolDemand], waiting: Iterable[Waiting], *, nodes_max: int
) -> Missing:
    """The nodes to add, at most `nodes_max` of each pool; where several pools would serve, the one of smallest GPUs."""

    def size(demand: PoolDemand) -> tuple[int, str]:
        return sum(kind.count * kind.report.memory_mib for kind in demand.template.gpus), demand.pool

    smallest_first = sorted(pools.values(), key=size)
    with TrialPods(cluster.peers) as pods:
        trial = _Trial(cluster, smallest_first, nodes_max, pods)
        for each in waiting:
            for _ in range(each.count):
                if pods.taken >= PLACES_MAX or not trial.serve(each):
                    break
    return trial.found


class _Trial:
    """The nodes that would be added, and what would be on them."""

    def __init__(self, cluster: ClusterState, pools: list[PoolDemand], nodes_max: int, pods: TrialPods) -> None:
        self.found = Missing()
        self._fleet, self._nodes = cluster, cluster.without_nodes()
        self._pools, self._nodes_max, self._pods = pools, nodes_max, pods
        self._empty: dict[str, ClusterState] = {}  # one new node of each pool, for the question whether it would serve
        self._pool_of: dict[str, str] = {}

    def serve(self, waiting: Waiting) -> bool:
        """Take a place for one of these on a new node. False when no pool has one for it."""
        askings = (waiting.asking, *waiting.instead)
        for is_to_grow in (False, True):
            for asking in askings:
                if is_to_grow and not self._open_for(asking):
                    continue
                place = find_free(self._nodes, asking)
                if place is not None:
                    self.found.pool_of.setdefault(waiting.key, self._pool_of[place.node])
                    self._pods.book(self._nodes, place, asking)
                    return True
        return False

    def _open_for(self, asking: PlaceRequest) -> bool:
        for demand in self._pools:
            number = self.found.nodes.get(demand.pool, 0)
            if number < self._nodes_max and demand.source in {"", asking.source} and self._serves(demand, asking):
                self.found.nodes[demand.pool] = number + 1
                self._pool_of[_add(self._nodes, demand, number)] = demand.pool
                return True
        return False

    def _serves(self, demand: PoolDemand, asking: PlaceRequest) -> bool:
        empty = self._empty.get(demand.pool)
        if empty is None:
            empty = self._empty[demand.pool] = self._fleet.without_nodes()
            _add(empty, demand, self._nodes_max)
        return find_free(empty, asking) is not None


def _add(cluster: ClusterState, demand: PoolDemand, number: int) -> str:
    snapshot, facts = new_node(demand, number)
    cluster.set_host(snapshot.node, facts)
    cluster.show(snapshot)
    return snapshot.node

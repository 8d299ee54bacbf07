"""
Pods of the trace through the placement core, one after another; without a place a pod is rejected, and none leaves.

GPU pods are placed by the core, which knows CPU and memory of the nodes. Pods without GPU are not its business: they
go where kube-scheduler would put them by default (`LeastAllocated`: the node with the largest parts of its CPU and
memory left), and the core observes it as in production, by the node having less. All pods are of one trust domain.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from factories.scheduling.allocator import gpu_report, snapshot
from factories.words import booking_of
from judges.layouts import Layouts
from perf.packing.ours import CATALOG
from perf.trace.openb import TraceNode, TracePod

from sluice.contracts.ids import GpuUuid, NodeName
from sluice.contracts.messages import Claim, DeviceGrant, GpuReport, HostFacts, HostNeeds, HostRoom, Mode
from sluice_allocator.core.placement import ClusterState, Place, PlaceRequest, find_place

MEMORY_MIB = dict.fromkeys(("P100", "T4", "V100M16"), 16_384) | {"V100M32": 32_768, "A10": 24_576}
MEMORY_MIB |= {"G2": 40_960, "G3": 81_920}
"""Per GPU. The trace does not say; shares ask for memory in proportion, so that it decides nothing."""
MODES: tuple[Mode, ...] = ("exclusive", "mps", "fractional")
MIG_MODEL = "a100-40gb"

NO_ROOM = HostRoom()

Ask = Callable[[TracePod], Claim]


@dataclass(slots=True)
class Host:
    """What is left of a node."""

    node: TraceNode
    cpu_milli: int
    memory_mib: int
    others: HostRoom = NO_ROOM
    """What pods without GPU take."""

    def has(self, pod: TracePod) -> bool:
        """Whether CPU and memory are left for it."""
        return self.cpu_milli >= pod.cpu_milli and self.memory_mib >= pod.memory_mib

    def left_parts(self, pod: TracePod) -> float:
        """The parts of CPU and memory that would be left."""
        cpu = (self.cpu_milli - pod.cpu_milli) / self.node.cpu_milli
        return cpu + (self.memory_mib - pod.memory_mib) / self.node.memory_mib


class Cluster:
    """The trace's nodes behind the placement core. An independent judge looks at every place."""

    def __init__(self, nodes: Iterable[TraceNode], *, mig: bool, policy: str = "") -> None:
        """All empty. With `mig` every GPU is an A100-40GB with MIG, else one of its own model without."""
        self._policy = policy
        self._fleet = ClusterState()
        self._hosts: dict[str, Host] = {}
        self._layouts = Layouts.of_catalog(CATALOG)
        self.problems: list[str] = []
        """What the judge said."""
        self.given: list[tuple[TracePod, tuple[DeviceGrant, ...]]] = []
        """The GPU pods that found a place, with it."""
        for node in nodes:
            self._hosts[node.name] = Host(node, node.cpu_milli, node.memory_mib)
            reports = tuple(self._report(node, index, mig=mig) for index in range(node.gpus))
            self._fleet.show(snapshot(node.name, reports, modes=MODES))
            self._tell(node.name)
            self._fleet.set_usable(NodeName(node.name))

    def come(self, pods: Iterable[TracePod], ask: Ask) -> None:
        """Let these come in this order; `ask` says how a pod that shares a GPU asks for what it needs."""
        for number, pod in enumerate(pods):
            if pod.gpus:
                claim = ask(pod) if pod.shares else Claim(container="main", gpus=pod.gpus)
                self._place(f"pod-{number}", pod, claim)
            else:
                self._place_elsewhere(pod)

    def _report(self, node: TraceNode, index: int, *, mig: bool) -> GpuReport:
        if mig:
            report = gpu_report(node.name, index, model=MIG_MODEL)
            self._layouts.has_model(report.uuid, MIG_MODEL, mig=True)
            return report
        uuid = GpuUuid(f"GPU-{node.name}-{index}")
        memory_mib = MEMORY_MIB[node.model]
        self._layouts.has_plain(uuid, memory_mib=memory_mib, sms=100)
        plain = {"model": node.model, "memory_mib": memory_mib, "multiprocessors": 100, "memory_slices": 1}
        none = {"compute_slices": 1, "mig_enabled": False, "profiles": (), "instances": (), "creatable": {}}
        return GpuReport(uuid=uuid, index=index, **plain, **none)

    def _place(self, name: str, pod: TracePod, claim: Claim) -> None:
        room = HostRoom(cpu_milli=pod.cpu_milli, memory_mib=pod.memory_mib)
        policies = {"node_policy": self._policy, "gpu_policy": self._policy}
        found = find_place(self._fleet, PlaceRequest((claim,), host=HostNeeds(room=room), **policies))
        if not isinstance(found, Place):
            return
        self._fleet.book(booking_of(name, found.node, found.devices, room=room))
        self.given.append((pod, found.devices))
        self._judge(name, pod, found)

    def _judge(self, name: str, pod: TracePod, place: Place) -> None:
        devices: list[dict[str, Any]] = msgspec.to_builtins(place.devices)
        self.problems += self._layouts.grant(name, "default", devices)
        host = self._hosts[place.node]
        if not host.has(pod):
            self.problems.append(f"{name} is on {place.node}, which has no room for it")
        host.cpu_milli -= pod.cpu_milli
        host.memory_mib -= pod.memory_mib

    def _place_elsewhere(self, pod: TracePod) -> None:
        """As `LeastAllocated` of kube-scheduler's NodeResourcesFit does, with CPU and memory of equal weight."""
        roomy = [host for host in self._hosts.values() if host.has(pod)]
        if not roomy:
            return
        host = max(roomy, key=lambda it: it.left_parts(pod))
        host.cpu_milli -= pod.cpu_milli
        host.memory_mib -= pod.memory_mib
        cpu_milli, memory_mib = host.others.cpu_milli + pod.cpu_milli, host.others.memory_mib + pod.memory_mib
        host.others = HostRoom(cpu_milli=cpu_milli, memory_mib=memory_mib)
        self._tell(host.node.name)

    def _tell(self, name: str) -> None:
        host = self._hosts[name]
        cores = (host.node.cpu_milli - host.others.cpu_milli) / 1000
        memory_mib = host.node.memory_mib - host.others.memory_mib
        self._fleet.set_host(NodeName(name), HostFacts(cpu_cores=cores, memory_mib=memory_mib, pods_free=1000))

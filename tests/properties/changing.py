"""A fleet that changes under waiting requests: every fact goes to the engine and to the judges' truth, in order."""

from operator import attrgetter
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from judges.placements import NodeTruth, Truth
from properties.facts import HOSTS, NODES, changed, nodes

from sluice.contracts.ids import GpuUuid, NodeName
from sluice.contracts.messages import GpuReport
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.placement import ClusterState
from sluice_allocator.core.placement.spec.config import PlacementConfig, PoolConfig


class ChangingFleet(RuleBasedStateMachine):
    """What becomes of nodes, and what is reported of it."""

    def __init__(self) -> None:
        """Begin without a node."""
        super().__init__()
        self.truth = Truth()
        self.rules = PlacementConfig()
        self.fleet = ClusterState(self.rules)
        self.history: list[tuple[str, tuple[Any, ...]]] = []
        self.lost: dict[str, NodeTruth] = self.truth.elsewhere
        self.gone: dict[str, list[GpuReport]] = {}

    @initialize(
        data=st.data(),
        count=st.integers(1, 4),
        overcommit=st.sampled_from([100, 150]),
        pods_max=st.sampled_from([None, None, 2, 5]),
    )
    def begin(self, data: st.DataObject, count: int, overcommit: int, pods_max: int | None) -> None:
        """A fleet of one to four nodes."""
        default = PoolConfig(overcommit_percent=overcommit)
        self.rules = PlacementConfig(default=default, pods_per_node_max=pods_max)
        self.truth.overcommit_percent = overcommit
        self.fleet = ClusterState(self.rules)
        for name in NODES[:count]:
            self.truth.nodes[name] = NodeTruth(data.draw(nodes(name)), data.draw(HOSTS), pods_max=pods_max)
            self._tell("set_host", NodeName(name), self.truth.nodes[name].host)
            self._tell("show", self.truth.nodes[name].snapshot)

    def _tell(self, what: str, *args: Any) -> None:
        self.history.append((what, args))
        attrgetter(what)(self.fleet)(*args)

    def _reports(self) -> list[GpuReport]:
        return [gpu for node in self.truth.nodes.values() for gpu in node.snapshot.gpus]

    # -- facts -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.truth.nodes)
    @rule(data=st.data())
    def gpu_changes(self, data: st.DataObject) -> None:
        """Health, a foreign instance, a quarantined span, MIG mode."""
        node = self.truth.nodes[data.draw(st.sampled_from(sorted(self.truth.nodes)))]
        gpus = list(node.snapshot.gpus)
        if gpus:
            at = data.draw(st.integers(0, len(gpus) - 1))
            gpus[at] = changed(data.draw, gpus[at], self.truth.board(gpus[at].uuid))
            self._show(node, gpus)

    @precondition(lambda self: self.truth.nodes)
    @rule(data=st.data())
    def gpu_gone_or_back(self, data: st.DataObject) -> None:
        """A GPU falls off the bus, or those that did are back."""
        name = data.draw(st.sampled_from(sorted(self.truth.nodes)))
        node = self.truth.nodes[name]
        gone = self.gone.setdefault(name, [])
        if gone or not node.snapshot.gpus:
            self._show(node, [*node.snapshot.gpus, *gone])
            gone.clear()
        else:
            at = data.draw(st.integers(0, len(node.snapshot.gpus) - 1))
            gone.append(node.snapshot.gpus[at])
            self._show(node, [gpu for n, gpu in enumerate(node.snapshot.gpus) if n != at])

    @precondition(lambda self: self.truth.nodes)
    @rule(data=st.data())
    def hand_over_begins_or_ends(self, data: st.DataObject) -> None:
        """An agent is registered with its kubelet, or no longer is."""
        node = self.truth.nodes[data.draw(st.sampled_from(sorted(self.truth.nodes)))]
        hands_over = not node.snapshot.kubelet_hands_over
        node.snapshot = msgspec.structs.replace(node.snapshot, kubelet_hands_over=hands_over)
        self._show(node, list(node.snapshot.gpus))

    def _show(self, node: NodeTruth, gpus: list[GpuReport]) -> None:
        ordered = tuple(sorted(gpus, key=lambda gpu: gpu.index))
        generation = node.snapshot.generation + 1
        node.snapshot = msgspec.structs.replace(node.snapshot, gpus=ordered, generation=generation)
        self._tell("show", node.snapshot)

    @rule(name=st.sampled_from(NODES))
    def node_lost_or_back(self, name: str) -> None:
        """A node's inventory is gone, or there again; its pods stay booked."""
        if name in self.truth.nodes:
            node = self.lost[name] = self.truth.nodes.pop(name)
            node.usable, node.cordoned = True, frozenset()
            self._tell("forget_node", NodeName(name))
        elif name in self.lost:
            self.truth.nodes[name] = self.lost.pop(name)
            self._tell("show", self.truth.nodes[name].snapshot)

    @precondition(lambda self: self.truth.nodes)
    @rule(data=st.data(), stale=st.booleans())
    def usable_or_not(self, data: st.DataObject, stale: bool) -> None:
        """A node does not answer, or does again."""
        name = data.draw(st.sampled_from(sorted(self.truth.nodes)))
        self.truth.nodes[name].usable = not stale
        self._tell("set_usable", NodeName(name), *[WaitReason.NODE_STALE] * stale)

    @precondition(lambda self: self.truth.nodes)
    @rule(data=st.data())
    def cordon(self, data: st.DataObject) -> None:
        """An operator says which GPUs not to use."""
        name = data.draw(st.sampled_from(sorted(self.truth.nodes)))
        uuids = [gpu.uuid for gpu in self.truth.nodes[name].snapshot.gpus]
        chosen = frozenset(data.draw(st.lists(st.sampled_from(uuids), max_size=2))) if uuids else frozenset()
        self.truth.nodes[name].cordoned = chosen
        self._tell("cordon", NodeName(name), frozenset(GpuUuid(uuid) for uuid in chosen))

    @precondition(lambda self: self.truth.nodes)
    @rule(data=st.data())
    def host_changes(self, data: st.DataObject) -> None:
        """CPU, memory, labels, taints: others' pods come and go."""
        name = data.draw(st.sampled_from(sorted(self.truth.nodes)))
        self.truth.nodes[name].host = data.draw(HOSTS)
        self._tell("set_host", NodeName(name), self.truth.nodes[name].host)

"""Decide how new pods get their devices: by ResourceClaims once every GPU node's kubelet can hand them over. Admission
has no bus, and reads the result from a ConfigMap. A pod keeps the way with which it was created."""

from dataclasses import dataclass, field

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import NodeInventory
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.events import WriteHandOver

SETTLES_S = 5.0  # a change counts after this: an agent that restarts has registered with its kubelet again by then
RETRY_S = 60.0  # without the ConfigMap (manifests of before) each try is a warning


@dataclass(slots=True)
class HandOverMode:
    """The nodes of this cluster, which of them can, and the value that is written."""

    config: ClusterConfig
    is_served: bool | None = None
    _objects: dict[NodeName, None] = field(default_factory=dict)  # nodes of this cluster: a bus may serve several
    _can: dict[NodeName, bool] = field(default_factory=dict)  # of each node with GPUs
    _written: str = ""
    _wanted: tuple[str, float] = ("", 0.0)  # the mode now, and since when
    _under_way: bool = False
    _not_before: float = 0.0

    def here(self, node: NodeName) -> None:
        self._objects[node] = None

    def gone(self, node: NodeName) -> None:
        self._objects.pop(node, None)

    def inventory(self, message: NodeInventory) -> None:
        """The inventory of a node. A stale one shows the last that is known."""
        node = message.snapshot.node
        if message.removed or not message.snapshot.gpus:
            self._can.pop(node, None)
        else:
            self._can[node] = message.snapshot.kubelet_hands_over

    @property
    def mode(self) -> str:
        known = [can for node, can in self._can.items() if node in self._objects]
        return "dra" if self.is_served and known and all(known) else "tickets"

    def due(self, now: float) -> list[WriteHandOver]:
        if self.config.hand_over != "auto" or self.is_served is None:
            return []
        mode = self.mode
        if mode != self._wanted[0]:
            self._wanted = mode, now
        settled = now >= self._wanted[1] + SETTLES_S
        if mode == self._written or not settled or self._under_way or now < self._not_before:
            return []
        self._under_way = True
        return [WriteHandOver(self.config.namespace, mode)]

    def written(self, mode: str) -> None:
        self._written, self._under_way = mode, False

    def failed(self, now: float) -> None:
        self._under_way, self._not_before = False, now + RETRY_S

"""Decide which nodes of this cluster (seen, published or bound to by us) are removed (PROTOCOL §6, ADR 0012). A kubelet
registers a deleted Node again, so it must be absent for some time without a break, and its agent silent."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import AnyMessage, NodeChanged, NodeInventory, NodeRemoved
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.workqueue import remember

WHY = "its Node object was deleted"


@dataclass(slots=True)
class NodeRemovals:
    """Missing nodes, and what the bus shows of them."""

    config: ClusterConfig
    missing: dict[NodeName, float] = field(default_factory=dict)  # since when; the longest first
    _removed: OrderedDict[NodeName, float] = field(default_factory=OrderedDict)  # published removals, latest last
    _answers: dict[NodeName, None] = field(default_factory=dict)  # whose agents answer, by the inventory

    def here(self, node: NodeName) -> None:
        self.missing.pop(node, None)
        self._removed.pop(node, None)

    def is_removed(self, node: NodeName) -> bool:
        return node in self._removed

    def gone(self, node: NodeName, word: AnyMessage | None, now: float) -> None:
        """A node of ours without an object; `word` is the last message about it."""
        if isinstance(word, NodeRemoved):
            self._bury(node, now)
        elif node not in self._removed:
            self.missing.setdefault(node, now)

    def said(self, node: NodeName, message: AnyMessage | None, now: float) -> bool:
        """The last message about a node: its agent's, or its removal. True when a removed node's agent reports."""
        if isinstance(message, NodeRemoved) and node in self.missing:
            self._bury(node, now)
        elif isinstance(message, NodeChanged) and node in self._removed:
            del self._removed[node]
            self.missing[node] = now
            return True
        return False

    def begin_anew(self, now: float) -> None:
        """The bus was recreated: earlier messages about nodes are gone, and no agent has answered yet."""
        self._answers.clear()
        self.missing.update(dict.fromkeys((*self.missing, *self._removed), now))
        self._removed.clear()

    def stream_read(self, word: Callable[[NodeName], AnyMessage | None], now: float) -> None:
        """A reading of this incarnation is complete: publish again what the bus lost before its time."""
        for node, at in list(self._removed.items()):
            if word(node) is None and now - at < self.config.closing_ttl_s:
                del self._removed[node]
                self.missing[node] = now

    def inventory(self, message: NodeInventory) -> None:
        if message.stale or message.removed:
            self._answers.pop(message.snapshot.node, None)
        else:
            self._answers[message.snapshot.node] = None

    def due(self, now: float) -> list[NodeRemoved]:
        found: list[NodeRemoved] = []
        for node, since in self.missing.items():
            if now - since < self.config.node_removed_after_s or len(found) >= self.config.hosts_per_tick:
                break
            if node not in self._answers:
                found.append(NodeRemoved(node=node, cause=WHY))
        return found

    def _bury(self, node: NodeName, now: float) -> None:
        self.missing.pop(node, None)
        remember(self._removed, node, now, at_most=self.config.tombstones_max)

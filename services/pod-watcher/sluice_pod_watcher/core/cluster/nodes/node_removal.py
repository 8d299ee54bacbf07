"""
Which nodes of this cluster are not there any more, and when that may be said (PROTOCOL §6, ADR 0012).

A kubelet whose Node object was deleted by mistake registers it again, and a cluster collects the pods of a node that
stays away. So a node must have been absent for some time, without a break; and as long as its agent answers, its slices
are given back one by one, as their pods go. Only nodes of this cluster are spoken of: those whose object was seen, of
which our own source has said something, or to which our own pods were bound.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import AnyMessage, NodeChanged, NodeInventory, NodeRemoved
from sluice_pod_watcher.core.cluster.config import ClusterConfig

WHY = "its Node object was deleted"


@dataclass(slots=True)
class NodeRemovals:
    """Nodes that are missing, and what the bus says of them."""

    config: ClusterConfig
    missing: OrderedDict[NodeName, float] = field(default_factory=OrderedDict)
    """Since when; the longest first."""
    _removed: OrderedDict[NodeName, float] = field(default_factory=OrderedDict)
    """Ours that were said to be gone, and when: the last of them are remembered, for their agents may still speak."""
    _answers: dict[NodeName, None] = field(default_factory=dict)
    """Nodes whose agents answer, as the inventory says."""

    def here(self, node: NodeName) -> None:
        """Its object is there."""
        self.missing.pop(node, None)
        self._removed.pop(node, None)

    def is_removed(self, node: NodeName) -> bool:
        """Whether all is said of a node of ours, for some time."""
        return node in self._removed

    def gone(self, node: NodeName, word: AnyMessage | None, now: float) -> None:
        """A node of ours without an object; `word` is the last one about it."""
        if isinstance(word, NodeRemoved):
            self._bury(node, now)
        elif node not in self._removed:
            self.missing.setdefault(node, now)

    def said(self, node: NodeName, message: AnyMessage | None, now: float) -> bool:
        """The last word about a node: its agent's, or that it is not there. True when one speaks that was removed."""
        if isinstance(message, NodeRemoved) and node in self.missing:
            self._bury(node, now)
        elif isinstance(message, NodeChanged) and node in self._removed:
            del self._removed[node]
            self.missing[node] = now
            return True
        return False

    def begin_anew(self, now: float) -> None:
        """The bus lives anew: what was said of nodes is said no more, and nobody has answered yet."""
        self._answers.clear()
        self.missing.update(dict.fromkeys((*self.missing, *self._removed), now))
        self._removed.clear()

    def was_read(self, word: Callable[[NodeName], AnyMessage | None], now: float) -> None:
        """All was read, in the life in which it was said: what the bus has forgotten before its time is said again."""
        for node, at in list(self._removed.items()):
            if word(node) is None and now - at < self.config.closing_ttl_s:
                del self._removed[node]
                self.missing[node] = now

    def inventory(self, message: NodeInventory) -> None:
        """Whether an agent answers."""
        if message.stale or message.removed:
            self._answers.pop(message.snapshot.node, None)
        else:
            self._answers[message.snapshot.node] = None

    def due(self, now: float) -> list[NodeRemoved]:
        """What may be said now, of nodes that have been missing for long."""
        found: list[NodeRemoved] = []
        for node, since in self.missing.items():
            if now - since < self.config.node_removed_after_s or len(found) >= self.config.hosts_per_tick:
                break
            if node not in self._answers:
                found.append(NodeRemoved(node=node, cause=WHY))
        return found

    def _bury(self, node: NodeName, now: float) -> None:
        self.missing.pop(node, None)
        self._removed[node] = now
        if len(self._removed) > self.config.tombstones_max:
            self._removed.popitem(last=False)

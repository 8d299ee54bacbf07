"""
Which pods have a slice that is out of order, and why: from what the inventory shows of each node.

The binding of such a pod stands, and nothing else would tell its owner why the program fails. Costs the slices of one
node for each of its inventories.
"""

from dataclasses import dataclass, field

from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import DeviceGrant, GpuReport, NodeInventory
from sluice.contracts.refusals import shorten


@dataclass(slots=True)
class Ailing:
    """What ails the slices of a cluster's pods. An inventory that is stale changes nothing: nobody has looked."""

    _of_node: dict[NodeName, dict[RequestId, str]] = field(default_factory=dict)
    """A request may have slices on several nodes, of which one is its pod's."""

    def heard(self, word: NodeInventory) -> list[RequestId]:
        """What the inventory says of a node now. Returns the requests of which something is new."""
        if word.stale:
            return []
        node, gpus = word.snapshot.node, {gpu.uuid: gpu for gpu in word.snapshot.gpus}
        found: dict[RequestId, str] = {}
        for each in word.snapshot.slices:
            if each.state == "degraded" and not each.revoked:
                why = dict.fromkeys(_what_ails(device, gpus.get(device.gpu)) for device in each.booking.devices)
                found[each.booking.request] = "; ".join(filter(None, why)) or "its devices are not there any more"
        return self._replace(node, found)

    def node_gone(self, node: NodeName) -> list[RequestId]:
        """Nobody looks at that node any more."""
        return self._replace(node, {})

    def why(self, request: RequestId, node: NodeName) -> str:
        """What ails a request's slice on the node of its pod; empty when nothing is known."""
        return self._of_node.get(node, {}).get(request, "")

    def _replace(self, node: NodeName, found: dict[RequestId, str]) -> list[RequestId]:
        before = self._of_node.get(node, {})
        if found:
            self._of_node[node] = found
        else:
            self._of_node.pop(node, None)
        return [uid for uid in (before | found) if before.get(uid) != found.get(uid)]


def _what_ails(device: DeviceGrant, gpu: GpuReport | None) -> str:
    if gpu is None:
        return f"its GPU {device.gpu} is not there any more"
    if gpu.lost:
        return f"its GPU {gpu.index} does not answer{_because(gpu.health_message)}"
    if not gpu.healthy:
        return f"its GPU {gpu.index} is unhealthy{_because(gpu.health_message)}"
    home = (device.profile, device.start)
    daemon = next((each for each in gpu.daemons if (each.profile, each.start) == home), None)
    if device.share is not None and daemon is not None and daemon.state in {"fault", "down"}:
        return daemon.message or f"its MPS daemon is in the state {daemon.state!r}"
    return ""


def _because(message: str) -> str:
    return f" ({shorten(message, 300)})" if message else ""

"""Track from the inventory which pods have an unhealthy slice, and whose slice is being created. The binding of a pod
with an unhealthy slice stands, and only this shows its owner why the program fails. A slice under creation is the
answer for a pod without a binding. Costs the slices of one node per inventory."""

from dataclasses import dataclass, field

from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import DeviceGrant, GpuReport, NodeInventory
from sluice.contracts.reasons import shorten

_BEING_MADE = frozenset({"planned", "making"})


@dataclass(slots=True)
class SliceHealth:
    """The health of the slices of a cluster's pods, and slices under creation. A stale inventory changes nothing: it is
    no observation."""

    _of_node: dict[NodeName, dict[RequestId, str]] = field(default_factory=dict)  # by node, as several may have one
    _making_on: dict[NodeName, dict[RequestId, None]] = field(default_factory=dict)
    _made_on: dict[RequestId, NodeName] = field(default_factory=dict)  # by request, the latest observed

    def heard(self, word: NodeInventory) -> list[RequestId]:
        """Apply the inventory of a node. Returns the requests with news."""
        if word.stale:
            return []
        node, gpus = word.snapshot.node, {gpu.uuid: gpu for gpu in word.snapshot.gpus}
        found: dict[RequestId, str] = {}
        making: dict[RequestId, None] = {}
        for each in word.snapshot.slices:
            if each.state in _BEING_MADE and not each.revoked:
                making[each.booking.request] = None
            if each.state == "degraded" and not each.revoked:
                why = dict.fromkeys(_what_ails(device, gpus.get(device.gpu)) for device in each.booking.devices)
                found[each.booking.request] = "; ".join(filter(None, why)) or "its devices no longer exist"
        return [*self._replace(node, found), *self._replace_making(node, making)]

    def node_gone(self, node: NodeName) -> list[RequestId]:
        return [*self._replace(node, {}), *self._replace_making(node, {})]

    def made_on(self, request: RequestId) -> str:
        """The node on which a request's slice is being created; empty if none."""
        return self._made_on.get(request, "")

    def why(self, request: RequestId, node: NodeName) -> str:
        """What is wrong with a request's slice on its pod's node; empty if nothing is known."""
        return self._of_node.get(node, {}).get(request, "")

    def _replace(self, node: NodeName, found: dict[RequestId, str]) -> list[RequestId]:
        before = self._of_node.get(node, {})
        if found:
            self._of_node[node] = found
        else:
            self._of_node.pop(node, None)
        return [uid for uid in (before | found) if before.get(uid) != found.get(uid)]

    def _replace_making(self, node: NodeName, making: dict[RequestId, None]) -> list[RequestId]:
        before = self._making_on.pop(node, {})
        if making:
            self._making_on[node] = making
        changed = [uid for uid in (before | making) if (uid in before) != (uid in making)]
        for uid in changed:
            if uid in making:
                self._made_on[uid] = node
            elif self._made_on.get(uid) == node:
                del self._made_on[uid]
        return changed


def _what_ails(device: DeviceGrant, gpu: GpuReport | None) -> str:
    if gpu is None:
        return f"its GPU {device.gpu} no longer exists"
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

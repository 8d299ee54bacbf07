"""The fleet's nodes: state, what is on them, and since when they are idle. Everything from the bus."""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from sluice.contracts.messages import Closed, Cordoned, HostFacts, NodeInventory, NodeOpened, NodeRemoved
from sluice_console.core.documents import VERSION, Document, GpuDocument, InstanceDocument
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.gpus import gpus_document
from sluice_console.core.history.sentences import HistoryMessage

NodeState = Literal["open", "not open", "stale", "cordoned", "draining", "removed"]
"""Usable; not adopted yet; unreachable; no new slices; pods evicted too; removed."""

_NO_TENANT = frozenset({"free", "unusable"})
"""Places of a fixed layout without a tenant; an unusable one may be used by other software."""
_NO_OBJECT = "its Node object is gone; it is removed some minutes after its agent stops answering"


class FleetNodeDocument(Document, frozen=True, kw_only=True):
    """One node, and what is on it."""

    node: str
    state: NodeState
    why: str = ""
    """Reason of a state other than `open`."""
    models: dict[str, int] = msgspec.field(default_factory=dict)
    """GPUs of each product."""
    gpus: int = 0
    unhealthy: int = 0
    """Unhealthy or lost GPUs."""
    cordoned_gpus: tuple[str, ...] = ()
    """UUIDs of single cordoned GPUs."""
    gpus_empty: int = 0
    """GPUs with nothing on them or ordered."""
    free_fraction: float = 0.0
    """Memory slices neither booked nor reserved, 0 to 1; cordoned ones included."""
    pods: int = 0
    """With a slice there, booked or ending."""
    foreign: int = 0
    """Foreign GPU instances."""
    idle: bool = False
    """Nothing booked, nothing left, no foreign instance."""
    idle_since: str = ""
    """At least since then. Empty when it is not idle, or has been for longer than the history goes back."""


class NodesDocument(Document, frozen=True, kw_only=True):
    """`sluice nodes --json`."""

    version: int = VERSION
    nodes: tuple[FleetNodeDocument, ...]


def nodes_document(fleet_state: FleetState, since: Mapping[str, str], *, idle_only: bool = False) -> NodesDocument:
    """Every node by name, a removed one until its last slice is given up. `since`: since when idle ones are idle
    (`last_given_back`)."""
    by_node: dict[str, list[GpuDocument]] = {}
    for gpu in gpus_document(fleet_state).gpus:
        by_node.setdefault(gpu.node, []).append(gpu)
    pods = _pods(fleet_state)
    inventories = fleet_state.inventories()
    unopened = frozenset(fleet_state.unopened(list(inventories)))
    found = [
        _node(
            name,
            _state(fleet_state, name, inventory, is_open=name not in unopened),
            by_node.get(name, []),
            pods.get(name, frozenset()),
            since.get(name, ""),
        )
        for name, inventory in inventories.items()
    ]
    there = {node.node for node in found}
    found += [
        FleetNodeDocument(node=removed.node, state="removed", why=removed.cause, pods=len(pods[removed.node]))
        for _, removed in fleet_state.of("node", NodeRemoved)
        if removed.node not in there and pods.get(removed.node)
    ]
    shown = (node for node in found if node.idle or not idle_only)
    return NodesDocument(nodes=tuple(sorted(shown, key=lambda node: node.node)))


def _node(
    name: str, how: tuple[NodeState, str, tuple[str, ...]], gpus: list[GpuDocument], pods: frozenset[str], since: str
) -> FleetNodeDocument:
    state, why, cordoned = how
    places = [place for gpu in gpus for place in gpu.instances]
    foreign = sum(place.state == "foreign" for place in places)
    idle = not pods and not any(_is_taken(place) for place in places)
    models: dict[str, int] = {}
    for gpu in gpus:
        models[gpu.model] = models.get(gpu.model, 0) + 1
    return FleetNodeDocument(
        node=name,
        state=state,
        why=why,
        models=models,
        gpus=len(gpus),
        unhealthy=sum(not gpu.healthy for gpu in gpus),
        cordoned_gpus=cordoned,
        gpus_empty=sum(not any(_is_taken(place) for place in gpu.instances) for gpu in gpus),
        free_fraction=_free(gpus),
        pods=len(pods),
        foreign=foreign,
        idle=idle,
        idle_since=since if idle else "",
    )


def _is_taken(place: InstanceDocument) -> bool:
    return place.state not in _NO_TENANT


def _free(gpus: Iterable[GpuDocument]) -> float:
    slices = taken = 0
    for gpu in gpus:
        there = max(1, gpu.memory_slices)
        slices += there
        taken += min(there, sum(place.size for place in gpu.instances if place.state != "free"))
    return round(1 - taken / slices, 4) if slices else 0.0


def _state(
    fleet_state: FleetState, name: str, inventory: NodeInventory, *, is_open: bool
) -> tuple[NodeState, str, tuple[str, ...]]:
    """State, reason, and cordoned GPUs. The strongest restriction comes first."""
    said = fleet_state.at("cordon", Cordoned, name)
    host = fleet_state.at("host", HostFacts, name)
    single = said.gpus if said is not None else ()
    if fleet_state.at("node", NodeRemoved, name) is not None:
        return "removed", "its slices are being given up", single
    if host is not None and host.is_of_no_object:
        return "stale" if inventory.stale else "cordoned", _NO_OBJECT, single
    if inventory.stale:
        return "stale", inventory.stale_message, single
    if not is_open:
        return "not open", "what its agent reports is not booked yet", single
    if said is not None and not said.gpus:
        return ("draining" if said.drain else "cordoned"), said.why, ()
    if host is not None and host.cordoned:
        return "cordoned", "the node may not be scheduled on in Kubernetes", single
    if said is not None:
        return "open", said.why, single
    return "open", "", ()


def _pods(fleet_state: FleetState) -> dict[str, frozenset[str]]:
    """Requests with something on each node: in the ledger, or still reported by its agent."""
    found: dict[str, set[str]] = {}
    for _, booking in fleet_state.bookings():
        found.setdefault(booking.node, set()).add(booking.request)
    for name, inventory in fleet_state.inventories().items():
        found.setdefault(name, set()).update(each.booking.request for each in inventory.snapshot.slices)
    return {name: frozenset(requests) for name, requests in found.items()}


# -- since when ---------------------------------------------------------------------------------------------------


def last_given_back(words: Iterable[HistoryMessage]) -> dict[str, str]:
    """
    When each node's last slice was released; if unknown, when it was first adopted.

    Slices present at adoption were released later, and that is remembered for longer. `words` is the history in order.
    """
    opened: dict[str, str] = {}
    given_back: dict[str, str] = {}
    for happened in words:
        message = happened.envelope.message
        if isinstance(message, NodeOpened):
            opened.setdefault(message.node, happened.envelope.time)
        elif isinstance(message, Closed):
            given_back[message.node] = happened.envelope.time
    return opened | given_back


# -- for people ---------------------------------------------------------------------------------------------------

COLUMNS = ("NODE", "STATE", "GPUS", "FREE", "PODS", "IDLE SINCE (UTC)")


def node_cells(node: FleetNodeDocument) -> tuple[str, ...]:
    """The columns of one node."""
    if node.state == "removed":
        return node.node, _state_text(node), "", "", str(node.pods or ""), ""
    gpus = ", ".join(f"{count} x {model.removeprefix('NVIDIA ')}" for model, count in sorted(node.models.items()))
    gpus += f" ({node.unhealthy} unhealthy)" if node.unhealthy else ""
    free = f"{node.free_fraction:.0%}, {node.gpus_empty} empty" if node.gpus else ""
    pods = str(node.pods) + (f" and {node.foreign} of others" if node.foreign else "")
    return node.node, _state_text(node), gpus or "none", free, pods, _since_text(node)


def _state_text(node: FleetNodeDocument) -> str:
    text = f"{node.state}: {node.why}" if node.why and not node.cordoned_gpus else node.state
    if node.cordoned_gpus:
        count = len(node.cordoned_gpus)
        text += f", {count} GPU{'' if count == 1 else 's'} cordoned" + (f": {node.why}" if node.why else "")
    return text


def _since_text(node: FleetNodeDocument) -> str:
    if not node.idle:
        return ""
    return node.idle_since.partition(".")[0].removesuffix("Z").removesuffix("+00:00").replace("T", " ") or (
        "longer than the history goes back"
    )

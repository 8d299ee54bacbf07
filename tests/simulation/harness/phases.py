"""
What an event is about, and in which phase that is, for each core: read from what the core itself holds.

Only for the report of what was reached (`coverage`): nothing is judged by it, so it may look into cores.
"""

from typing import Any

from simulation.kube.phases import of_cluster

from sluice.contracts.bus.events import LastRead, Observed, Write, WriteAccepted, WriteRefused, WriteUnknown
from sluice.contracts.bus.subjects import Address, parse
from sluice.contracts.messages import (
    AllocationRequested,
    Bound,
    Closed,
    Grant,
    Refused,
    Released,
    RequestRejected,
    RequestWithdrawn,
    SliceReady,
    Waived,
)
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.events import AgentEnsured
from sluice_inventory.core.events import PullFailed, PullSucceeded
from sluice_inventory.core.inventory import Inventory
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.events import QuarantineReleased, Result
from sluice_node_agent.core.state.tasks import SharedDeviceTask, SliceTask
from sluice_pod_watcher.core.cluster.watcher import ClusterWatcher
from sluice_pod_watcher.core.folder.watcher import FolderWatcher

Phase = tuple[str, str]
"""What kind of thing (`allocator: request`, say), and in which phase it is."""
ANSWERS = (WriteAccepted, WriteRefused, WriteUnknown)


def phase_of(core: object, event: object, answered: Write | None) -> Phase | None:
    """
    What `event` is about, and its phase before the event was taken in. None where the core is none of these.

    `answered` is the write that the event answers.
    """
    address = _address(event, answered)
    match core:
        case Allocator():
            return _of_allocator(core, event, address, answered)
        case Agent():
            return _of_agent(core, event, address)
        case FolderWatcher():
            return _of_watcher(core, address)
        case ClusterWatcher():
            return of_cluster(core, event, address)
        case Inventory():
            return _of_inventory(core, event, address)
        case _:
            return None


def _address(event: object, answered: Write | None) -> Address | None:
    if answered is not None:
        return parse(answered.subject)
    if isinstance(event, Observed):
        return parse(event.entry.subject)
    return parse(event.subject) if isinstance(event, LastRead) else None


def _request_of(message: object) -> str:
    if isinstance(message, Closed):
        return message.request
    booking = getattr(message, "booking", None)
    return str(booking.request if booking is not None else getattr(message, "request", ""))


# -- the allocator ------------------------------------------------------------------------------------------------


def _of_allocator(core: Any, event: object, address: Address | None, answered: Write | None) -> Phase:
    world = core.ctx.facts
    if isinstance(event, AgentEnsured):
        return "allocator: node", _node_phase(world, event.node)
    if address is None or address.kind in {"source", "quota", "lease"}:
        standing = "stands by" if core.ctx.outbox.paused else "works"
        return "allocator: all", f"{standing}, {'knows all' if world.settled else 'reads'}"
    is_head = address.kind == "ledger" and address.key[1] == "head"
    if is_head or address.kind in {"node", "inventory", "host", "cordon"}:
        return "allocator: node", _node_phase(world, address.key[0])
    message = answered.message if answered is not None else getattr(getattr(event, "entry", None), "message", None)
    is_of_place = address.kind in {"ledger", "slice"}
    return "allocator: request", _request_phase(world, _request_of(message) if is_of_place else address.key[0])


def _request_phase(world: Any, request: str) -> str:
    asked, binding = world.requests.get(request), world.bindings.get(request)
    entries = [world.ledger[each] for each in world.allocations_of.get(request, ())]
    if isinstance(asked, RequestWithdrawn):
        standing = any(not isinstance(entry, Closed) for entry in entries)
        return "released" if isinstance(binding, Released) else "withdrawn, has a slice" if standing else "withdrawn"
    match binding:
        case Bound():
            return "bound"
        case Released():
            return "released"
        case Refused():
            return "refused"
        case Waived():
            return "waived"
    grants = [entry for entry in entries if isinstance(entry, Grant)]
    if grants:
        ready = any(isinstance(world.slices.get(grant.booking.allocation), SliceReady) for grant in grants)
        return "ready" if ready else "promised" if all(grant.after for grant in grants) else "granted"
    if any(not isinstance(entry, Closed) for entry in entries):
        return "revoked"
    asks = {AllocationRequested: "waits", RequestRejected: "rejected"}
    return asks.get(type(asked), "unknown")


def _node_phase(world: Any, node: str) -> str:
    if node in world.removed:
        return "removed"
    if node in world.heads:
        return "open, cordoned" if node in world.cordons else "open"
    if node in world.inventories:
        return "pulled"
    return "heard of" if node in world.news else "unknown"


# -- an agent -----------------------------------------------------------------------------------------------------


def _of_agent(core: Any, event: object, address: Address | None) -> Phase:
    if isinstance(event, QuarantineReleased):
        return "agent: slice", _slice_phase(core, event.allocation)
    if isinstance(event, Result):
        _, job = core._in_flight._sent.get(event.token, (None, None))
        if isinstance(job, SliceTask):
            return "agent: slice", job.record.phase
        if isinstance(job, SharedDeviceTask):
            return "agent: home", job.record.phase
    elif address is not None and address.kind in {"ledger", "slice"} and address.key[1] != "head":
        return "agent: slice", _slice_phase(core, address.key[1])
    return "agent: node", "open" if core.is_open else "closed" if core.started else "not started"


def _slice_phase(core: Any, allocation: str) -> str:
    work = core._state.slices.get(allocation)
    if work is not None:
        return str(work.record.phase)
    return "gone" if allocation in core._tombstones else "unknown"


# -- the other two ------------------------------------------------------------------------------------------------


def _of_watcher(core: Any, address: Address | None) -> Phase:
    if address is None or address.kind in {"source", "host"}:
        return "pod-watcher: all", "works" if core._ready else "reads"
    uid = address.key[0]
    record = core._identities.get(uid)
    if record is None:
        return "pod-watcher: pod", "unknown"
    if record.ended is not None:
        return "pod-watcher: pod", "ended"
    answer = core._pods.answers.get(uid)
    if answer is not None:
        return "pod-watcher: pod", type(answer).__name__.lower()
    word = core._publisher.request_on_bus(uid)
    said = {AllocationRequested: "asked", RequestRejected: "rejected", RequestWithdrawn: "withdrawn"}
    return "pod-watcher: pod", said.get(type(word), "not said yet")


def _of_inventory(core: Any, event: object, address: Address | None) -> Phase:
    name = event.node if isinstance(event, PullSucceeded | PullFailed) else None
    if name is None and address is not None:
        name = address.key[0]  # type: ignore[assignment]
    if name is None:
        return "inventory: all", "works" if core._ready else "reads"
    node = core._nodes.get(name)
    if node is None:
        return "inventory: node", "removed" if name in core._removed else "unknown"
    if node.inventory is None:
        return "inventory: node", "never pulled"
    return "inventory: node", "stale" if node.inventory.stale else "of before the wipe" if not node.current else "fresh"

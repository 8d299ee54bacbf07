"""Bugs planted in how truth is kept and found again: acknowledged and not on disk; not booked, and yet there."""

from dataclasses import replace
from typing import Any

from simulation.plans.plan import KEEP_WARM_S, Fault, Plan
from simulation.planted.bug import Bugs, PlantedBug, always
from simulation.world import agents, world
from simulation.world.agents import AgentHost

from sluice_allocator.core.node import reconcile as nodes
from sluice_allocator.core.request import bind, reconcile
from sluice_node_agent.core.events import JournalSaved
from sluice_node_agent.core.state.warm_pool import WarmPool

TRUTH_BUGS = Bugs()


def _agents_die(plan: Plan) -> Plan:
    """Of every node, repeatedly, and nothing else is lost."""
    faults = [fault for fault in plan.faults if fault.kind not in _FORGETS]
    faults += [Fault(at, "crash", f"agent-{node}", 0.3) for at in (6.0, 9.0, 12.0, 15.0) for node, _ in plan.nodes]
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


def _forgetful(plan: Plan) -> Plan:
    return replace(plan, closing_ttl_s=CLOSING_TTL_S)


TO_DISK_S = 0.5
CLOSING_TTL_S = 20
_FORGETS = frozenset({"journal lost", "journal damaged", "disk wiped", "node removed"})


@TRUTH_BUGS.plant("acknowledged before it is on disk", ("on disk", "LAW 3"), AgentHost, "_save", _agents_die)
def _acknowledged_first(_original: Any, self: Any, order: Any) -> JournalSaved:
    """A record is acknowledged when handed over; it is on disk a little later, unless the process dies.
    Loses capacity, for good: what was created is unknown."""
    life = self.life

    def write() -> None:
        if self.alive and self.life == life:
            self.machine.journal.append(order.record)

    self.clockwork.after(TO_DISK_S, write)
    return JournalSaved(order.token)


@TRUTH_BUGS.plant("closing messages without TTL", "closing", world, "quick_watcher", _forgetful)
def _closed_for_ever(original: Any, _closing_ttl_s: int) -> Any:
    """The last message of a source stays on the bus (but for a month), after every process has observed it.
    Loses time at every start, more with every pod that ever was."""
    return original(30 * 86_400)


def _agents_come_late(plan: Plan) -> Plan:
    """The broker is wiped, and agents come back after all other services have published."""
    faults = [fault for fault in plan.faults if fault.kind not in {*_FORGETS, "broker wipe"}]
    faults += [Fault(at, "broker wipe") for at in (12.0, 26.0)]
    nodes = [node for node, _ in plan.nodes]
    faults += [Fault(at - 0.2, "crash", f"agent-{node}", 5.0) for at in (12.0, 26.0) for node in nodes[::2]]
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


def _keeping_warm(plan: Plan) -> Plan:
    return replace(plan, keep_warm_s=KEEP_WARM_S)


TRUTH_BUGS += [
    PlantedBug(
        "published before it is on disk",
        "the memory of what was given back: after a power cut it is made again, under the next tenant",
        ("on disk",),
        ((agents, "must_outlive_boot", always(False)),),
    ),
    PlantedBug(
        "slice without entry counts as absent",
        "the slice that it runs on, after the broker was wiped",
        ("bound once", "undisturbed", "LAW 3"),
        tuple((each, "await_node", always(None)) for each in (reconcile, bind)),
        _agents_come_late,
    ),
    PlantedBug(
        "warm instances stay in the way",
        "the place that was granted, to an instance without owner",
        ("warm in the way", "I4"),
        ((WarmPool, "make_room", always(False)),),
        _keeping_warm,
    ),
]
NEVER_ENTERED = PlantedBug(
    "adopted once only",
    "its slice, and the place: its node was opened on an older word than what its agent was just making",
    ("I3", "I4"),
    ((nodes, "_look_for_unentered", always(None)),),
)
"""Too rare for chance: one stream of two must be lost. Played by a schedule alone."""

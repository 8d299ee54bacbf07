"""Bugs planted on purpose in how the grants of a removed node are closed, one for each case that the protocol names."""

from dataclasses import replace
from random import Random
from typing import Any

from simulation.faults.node_removals import BY_MISTAKE
from simulation.plans.plan import Fault, Plan, removing
from simulation.planted.bug import Bugs, PlantedBug, always, bug
from simulation.world import world

from sluice.contracts.messages import NodeRemoved
from sluice_allocator.core import recheck
from sluice_allocator.core.node import reconcile as nodes
from sluice_allocator.core.node import removal as node_removal
from sluice_allocator.core.request import grant_validity, reconcile
from sluice_allocator.core.request.bind import release
from sluice_allocator.core.state import facts
from sluice_allocator.core.state.bus_cache import BusCache
from sluice_allocator.core.state.conditions import Condition
from sluice_node_agent.core.agent import Agent

REMOVAL_BUGS = Bugs()


def _often(plan: Plan) -> Plan:
    """Three nodes are removed, and no journal is lost."""
    faults = tuple(fault for fault in plan.faults if fault.kind not in {"journal lost", "node removed"})
    return removing(replace(plan, faults=faults), Random(f"often {plan.seed}"), 3)


def _by_mistake(plan: Plan) -> Plan:
    """Nodes that live are said to be gone, late enough for every process to know that they live."""
    dice = Random(f"by mistake {plan.seed}")
    faults = [
        fault for fault in plan.faults if fault.kind not in {"journal lost", "node removed", "broker wipe", "pause"}
    ]
    faults += [Fault(dice.uniform(16.0, 22.0), "node removed", node, number=BY_MISTAKE) for node, _ in plan.nodes]
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


@REMOVAL_BUGS.plant("closed entries believed over agents", ("I1", "I3", "I4", "LAW 3"), nodes, "_is_missing", _often)
def _closed_is_believed(original: Any, ctx: Any, report: Any) -> bool:
    """What was closed with its node counts as gone, although no agent has said so.
    Loses a slice that is there, and its place to another request."""
    missing: bool = original(ctx, report)
    return missing and report.booking.allocation not in ctx.facts.ledger


@REMOVAL_BUGS.plant("grants closed before the record", "opened before use", nodes, "reconcile_removed", _often)
def _while_open(original: Any, ctx: Any, node: Any) -> bool:
    """The grants are closed first, and the head is left to the next adoption. Loses a living pod's GPU."""
    heads, ctx.facts.heads = ctx.facts.heads, {}
    try:
        removed: bool = original(ctx, node)
    finally:
        ctx.facts.heads = heads
    return removed


@REMOVAL_BUGS.plant("removed at once", "undisturbed", world, "quick_allocator", _by_mistake)
def _at_once(original: Any, closing_ttl_s: int) -> Any:
    """The agent gets no time to publish. Loses the slices of a node that lives."""
    return replace(original(closing_ttl_s), removed_grace_s=0.0)


@REMOVAL_BUGS.plant("removal ignores an agent that answers", "undisturbed", Agent, "_is_forgotten", _by_mistake)
def _not_answered(original: Any, self: Any, event: Any) -> bool:
    """An agent that lives reads that its node is not there, and leaves it at that.
    Loses the slices of a node that lives."""
    entry = getattr(event, "entry", None)
    forgotten: bool = original(self, event)
    return forgotten and not isinstance(getattr(entry, "message", None), NodeRemoved)


# Too rare for chance: an answer is lost, and an agent publishes meanwhile. Played by a schedule alone.
@bug("unanswered closing counts as open", "opened before use", facts, "_is_adopted")
def open_while_closing(original: Any, ctx: Any, node: Any, inventory: Any) -> bool:
    """A head counts as open until the end of it is answered. Loses a living pod's GPU."""
    busy, ctx.outbox.busy = ctx.outbox.busy, lambda _address: False
    try:
        opened: bool = original(ctx, node, inventory)
    finally:
        ctx.outbox.busy = busy
    return opened


def _any_that_is_ready(original: Any, grants: Any, held: Any) -> Any:
    """Of two slices of a pod the one is bound that is ready first, wherever the pod is."""
    return original(grants, None)


def _two_of_one(plan: Plan) -> Plan:
    """Two allocators that lag grant a pod twice, agents are away, and then nothing is known any more."""
    faults = [fault for fault in plan.faults if fault.kind not in {"journal lost", "node removed", "broker wipe"}]
    faults += [Fault(at, "broker wipe") for at in (8.0, 16.0, 24.0, 32.0)]
    nodes = [node for node, _ in plan.nodes]
    faults += [Fault(2.0 + 3.7 * n, "crash", f"agent-{nodes[n % len(nodes)]}", 4.0) for n in range(9)]
    ordered = tuple(sorted(faults, key=lambda fault: fault.at))
    weather = replace(plan.weather, stall=0.3)
    return replace(plan, allocators=2, both_active=True, faults=ordered, weather=weather)


# Too rare for chance: one of two allocators must read late when a node is back. Played by a schedule alone.
@bug("removal grace never restarted", ("I1", "I4", "I11", "opened before use", "undisturbed"), node_removal, "_follow")
def never_restarted(_original: Any, ctx: Any, node: Any) -> int:
    """A removed node is shut whenever it is open; its time was over long ago.
    Loses a place that is taken, to another request."""
    ctx.conditions.observe(Condition.NODE_REMOVED, node, due=ctx.now + ctx.rules.removed_grace_s)
    return 0


def _a_removed_node_has_nothing(original: Any, ctx: Any, allocation: Any, node: Any) -> bool:
    """Once a removed agent has had its time, by this process's clock, nothing of it is asked for."""
    is_over = ctx.conditions.is_mature(Condition.NODE_REMOVED, node)
    return not is_over and bool(original(ctx, allocation, node))


# The same, after a wipe: what closed the slice had landed before, and that its pod lost it is on its way.
@bug("released over an empty subject", "undisturbed", reconcile, "_release_lost")
def released_over_nothing(_original: Any, ctx: Any, request: Any, _asked: Any, cause: str) -> None:
    """A lost slice is reported at once, whatever was published before.
    Loses the slice that it runs on: that its node was removed, of before a wipe, landed when its agent was back."""
    release(ctx, request, cause)


REMOVAL_BUGS += [
    PlantedBug(
        "first ready slice bound",
        "a pod pinned to two nodes",
        ("bound once", "undisturbed", "I4"),
        ((reconcile, "bindable", _any_that_is_ready), (grant_validity, "_has_another", always(False))),
        _two_of_one,
    ),
]


REMOVED_HAS_NOTHING = PlantedBug(
    "removed node released without a close",
    "its slice: its node is back, and one that lags has it released, with nothing on the bus that would refuse it",
    ("LAW 3",),
    ((facts, "_is_unbooked", _a_removed_node_has_nothing),),
)
"""The same, after a wipe, and before its slice is bound again. A seed showed it once."""

OPENED_UNHEARD = PlantedBug(
    "adopted again on old knowledge",
    "its slice: its node was removed and is back, and an allocator that lags grants the place again",
    ("I1",),
    ((recheck, "watch_head", always(None)),),
)
"""The same: the end of the head has to arrive before its reason."""

GONE_IN_ANOTHER_LIFE = PlantedBug(
    "removal close of any incarnation",
    "the slice that it runs on: a node was removed, the broker wiped before that was written, and its agent was back",
    ("undisturbed", "LAW 3"),
    ((BusCache, "_went_in_another_life", always(False)), (facts, "_may_be_entered_again", always(False))),
)
"""The same: the broker must be wiped twice, once before and once while a write is without its answer."""

"""Bugs in messages that are published too early, of another order, or from an old picture of a node.

What they have in common: every message is true at some time, and believed at another.
"""

from dataclasses import replace
from typing import Any

from msgspec.structs import replace as changed
from simulation.plans.plan import Fault, Plan
from simulation.planted.bug import Bugs, PlantedBug

from sluice.contracts.bus import subjects
from sluice.contracts.messages import Bound, SliceReady
from sluice_allocator.core.node import reconcile as nodes
from sluice_allocator.core.request import reconcile
from sluice_inventory.core.inventory import Inventory
from sluice_node_agent.core.publish import slice_status

WORDS_BUGS = Bugs()


@WORDS_BUGS.plant("bound at the grant", "bound when ready", reconcile, "bound_of")
def _bound_at_the_grant(original: Any, ctx: Any, allocation: Any, grant: Any, revision: int) -> Any:
    """Section 4 broken: a pod is bound to its place as soon as that is booked.
    Loses its pod's start: it is released to a device that is not there."""
    if revision > 1 or grant.after or allocation in ctx.facts.slices:
        return original(ctx, allocation, grant, revision)
    booking = grant.booking
    return Bound(
        request=booking.request,
        request_revision=booking.request_revision,
        allocation=allocation,
        node=booking.node,
        revision=revision,
        ticket="",
        containers=(),
    )


@WORDS_BUGS.plant("first revision reported always", "told", slice_status, "_ready_message")
def _first_revision_for_ever(original: Any, *given: Any) -> Any:
    """Section 5 broken: an agent does not echo the revision that it answers.
    Loses the size that was published: it was another order's."""
    word = original(*given)
    return changed(word, revision=1) if isinstance(word, SliceReady) else word


def _an_old_picture_will_do(_original: Any, ctx: Any, node: Any, _inventory: Any) -> bool:
    """Section 6 broken: a node is opened by what was pulled once, whatever its agent has said since."""
    return ctx.facts.news.get(node) is not None and not ctx.facts.unreadable.get(node)


def _said_again_after_a_wipe(_original: Any, self: Any, node: Any) -> None:
    """The same in the inventory: after a wipe it says what it pulled before."""
    self._changed[node.name] = None
    if node.inventory is not None:
        self._outbox.keep(subjects.inventory(node.name), node.inventory)


def _wiped_while_pulls_fail(plan: Plan) -> Plan:
    """Ledgers are found empty, and agents that could report are seldom reached."""
    faults = [fault for fault in plan.faults if fault.kind != "journal lost"]
    faults += [Fault(at, "broker wipe") for at in (12.0, 24.0)]
    weather = replace(plan.weather, pull_failed=0.6)
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)), weather=weather)


WORDS_BUGS += [
    PlantedBug(
        "stale snapshot adopts a node",
        "the slice that it runs on, to a pod that is placed by what was there once",
        ("I1",),
        ((nodes, "_may_adopt", _an_old_picture_will_do), (Inventory, "_publish", _said_again_after_a_wipe)),
        _wiped_while_pulls_fail,
    ),
]

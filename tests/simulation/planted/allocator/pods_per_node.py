"""Bugs about how many pods a node takes, planted on purpose."""

from typing import Any

from simulation.judges.pods_per_node import with_limit
from simulation.plans.plan import Plan
from simulation.planted.bug import Bugs

from sluice.contracts.messages import Revoke
from sluice_allocator.core import changes
from sluice_allocator.core.placement.nodes.node import Node

CROWDING_BUGS = Bugs()


def _limited(plan: Plan) -> Plan:
    return with_limit(plan, 1.0)


@CROWDING_BUGS.plant("pods counted only where room is published", "pods per node", Node, "take", _limited)
def _only_where_room_is_told(original: Any, self: Any, allocation: Any, room: Any) -> None:
    """Pods are counted on the nodes that report how many they take, as before there was a limit.
    Loses the CPU of a node's pods, to more of them than its operator allows."""
    original(self, allocation, room)
    if self.facts is None:
        self.pods += 1


@CROWDING_BUGS.plant("pod count free at revoke", "pods per node", changes, "rebook", _limited)
def _free_at_revoke(original: Any, ctx: Any, allocation: Any) -> bool:
    """A slice being revoked does not count, though its processes may run for minutes.
    Loses likewise, for as long as pods take to end."""
    before = ctx.facts.ledger.get(allocation)
    freed: bool = original(ctx, allocation)
    if isinstance(before, Revoke) and ctx.cluster.booking(allocation) is not None:
        ctx.cluster.nodes[before.booking.node].pods += 1
    return freed

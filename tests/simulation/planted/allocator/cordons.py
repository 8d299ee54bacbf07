"""Bugs about nodes that are taken out of use, planted on purpose."""

from dataclasses import replace
from typing import Any

from simulation.judges.cordons import with_cordons
from simulation.plans.plan import Plan
from simulation.planted.bug import Bugs, PlantedBug, always, bug

from sluice.contracts.messages import Bound, Grant
from sluice_allocator.core import changes
from sluice_allocator.core.placement import ClusterState
from sluice_allocator.core.preemption import drain
from sluice_allocator.core.request import eviction_orders, grant_validity, reconcile

CORDON_BUGS = Bugs()


def _all_cordoning(plan: Plan) -> Plan:
    return with_cordons(replace(plan, quotas=()), 1.0)


@CORDON_BUGS.plant(
    "drained by the ledger alone", ("place first", "booked first"), eviction_orders, "why_drained", _all_cordoning
)
def _all_there(original: Any, ctx: Any, grant: Any) -> Any:
    """A pod with a slice on a drained node is evicted wherever it runs. Loses a pod that runs elsewhere."""
    request = grant.booking.request
    before = ctx.facts.bindings.get(request)
    ctx.facts.bindings[request] = Bound(
        request=request,
        request_revision=1,
        allocation=grant.booking.allocation,
        node=grant.booking.node,
        revision=1,
        ticket="",
        containers=(),
    )
    try:
        return original(ctx, grant)
    finally:
        del ctx.facts.bindings[request]
        if before is not None:
            ctx.facts.bindings[request] = before


@CORDON_BUGS.plant(
    "eviction order never taken back",
    ("I4", "place first", "booked first"),
    reconcile,
    "reconcile_eviction",
    _all_cordoning,
)
def _ordered_for_ever(original: Any, ctx: Any, request: Any, asked: Any, entries: Any) -> None:
    """What was ordered because of a drain stays ordered. Loses a pod of a node that is in use again."""
    ordered = ctx.facts.evictions.get(request)
    if (
        ordered is None
        or "drained" not in ordered.cause
        or eviction_orders.why_evict(ctx, request, asked, entries) is not None
    ):
        original(ctx, request, asked, entries)


@CORDON_BUGS.plant("drained by revokes", "undisturbed", grant_validity, "_why_revoke_place", _all_cordoning)
def _taken_away(original: Any, ctx: Any, grant: Grant, asked: Any) -> Any:
    """The slices of a drained node are revoked. Loses the work of all pods on a drained node."""
    return drain.why_drained(ctx, grant) or original(ctx, grant, asked)


# Caught by a schedule of its own: a write has to be unanswered while the message comes.
@bug("queued decision sent unchanged", "cordoned", changes, "look_at_drained")
def sent_as_decided(original: Any, ctx: Any, node: Any) -> None:
    """What waits for its turn goes out as it was decided, also behind a cordon.
    Loses a pod that comes to a node which is just being emptied."""
    take_back, ctx.__class__.take_back = ctx.__class__.take_back, lambda _ctx, _guard: None
    try:
        original(ctx, node)
    finally:
        ctx.__class__.take_back = take_back


# The same: what stands there has to stay.
@bug("useless reservation kept", "I4", grant_validity, "why_give_up")
def promised_for_ever(original: Any, ctx: Any, promised: Any, revision: int) -> Any:
    """A promise stands, whatever an operator says of its place.
    Loses any place at all: it waits for one that it may not have."""
    why = original(ctx, promised, revision)
    return None if why is not None and why.endswith("can no longer be used") else why


CORDON_BUGS += [
    PlantedBug(
        "single GPUs not cordoned",
        "the pods that come to a GPU which is about to be pulled out",
        ("cordoned",),
        ((ClusterState, "cordon", always(False)),),
        _all_cordoning,
    ),
    PlantedBug(
        "drain overlooks bound pods",
        "an operator's evening: the node never gets empty",
        ("I4",),
        ((changes, "look_at_drained", always(None)),),
        _all_cordoning,
    ),
]

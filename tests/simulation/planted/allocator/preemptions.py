"""Bugs about evictions for a place, planted on purpose."""

from dataclasses import replace
from typing import Any

import msgspec
from simulation.judges.preemptions import with_preemptions
from simulation.plans.plan import Plan
from simulation.planted.bug import Bugs, PlantedBug, always, bug

from sluice.contracts.messages import Grant
from sluice_allocator.core import changes
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.preemption import candidates
from sluice_allocator.core.request import eviction_orders
from sluice_allocator.core.reservations import reservation
from sluice_allocator.core.serve import offers

PREEMPTION_BUGS = Bugs()


def _all_preempting(plan: Plan) -> Plan:
    return with_preemptions(replace(plan, quotas=()), 1.0)


@PREEMPTION_BUGS.plant("equal priority preempts", "less important", offers, "find_victims", _all_preempting)
def _equals_go(original: Any, ctx: Any, request: Any, asking: Any, priority: int, *more: Any, **named: Any) -> Any:
    """Priorities are compared with `<=`. Loses a pod, to one that is no more important."""
    return original(ctx, request, asking, priority + 1, *more, **named)


@PREEMPTION_BUGS.plant("preemptionPolicy Never ignored", "never preempts", offers, "_evict_for", _all_preempting)
def _never_is_ignored(original: Any, ctx: Any, request: Any, asked: Any, **named: Any) -> Any:
    """Others are evicted for a pod that said it only waits. Loses a pod, to one that said it only waits."""
    return original(ctx, request, msgspec.structs.replace(asked, preempts=True), **named)


@PREEMPTION_BUGS.plant("victims without opt-in", "twice opt-in", candidates, "_may_go_at", _all_preempting)
def _not_asked(original: Any, ctx: Any, allocation: Any, entry: Any) -> Any:
    """Any pod of lower priority is evicted, whatever it opted for. Loses a pod that never said it may go."""
    request = getattr(getattr(entry, "booking", None), "request", None)
    asked = ctx.facts.requests.get(request)
    if getattr(asked, "leeway", None) is None:
        return original(ctx, allocation, entry)
    said = msgspec.structs.replace(asked, leeway=msgspec.structs.replace(asked.leeway, preemptible=True))
    ctx.facts.requests[request] = said
    try:
        return original(ctx, allocation, entry)
    finally:
        ctx.facts.requests[request] = asked


@PREEMPTION_BUGS.plant("after omitted", ("I1", "place first"), SchedulerContext, "grant", _all_preempting)
def _waits_for_none(
    original: Any, self: Any, booking: Any, after: tuple[Any, ...] = (), *, evict: bool = False
) -> None:
    """The place is ordered at once, while its tenants are still there. Loses a place, to two."""
    original(self, booking, () if evict else after, evict=evict)


@PREEMPTION_BUGS.plant(
    "evicted before booked for others", ("place first", "booked first"), eviction_orders, "why_evict", _all_preempting
)
def _evicted_first(original: Any, ctx: Any, request: Any, asked: Any, entries: Any) -> Any:
    """A pod is evicted for a more important waiting one, in the hope that its place fits. Loses a pod, for nothing."""
    head = ctx.queue.head_after(None)
    if getattr(asked, "leeway", None) is not None and asked.leeway.preemptible and entries and head is not None:
        waits = ctx.facts.requests.get(head[2])
        if getattr(waits, "priority", 0) > asked.priority:
            return f"its place is needed for {waits.namespace}/{waits.name}"
    return original(ctx, request, asked, entries)


@PREEMPTION_BUGS.plant("preempted place given away", ("I1", "I2"), changes, "rebook", _all_preempting)
def _place_given_away(original: Any, ctx: Any, allocation: Any) -> bool:
    """A promised place is free for all requests until its victims have gone.
    Loses a place that others were evicted for."""
    freed: bool = original(ctx, allocation)
    entry = ctx.facts.ledger.get(allocation)
    if isinstance(entry, Grant) and entry.evict and reservation.is_promise(ctx, entry):
        ctx.cluster.unbook(allocation)
    return freed


# Too rare by chance for the dose: it has a schedule of its own in `test_preemption`.
@bug("leaving pod counted for two preemptors", "guaranteed", SchedulerContext, "grant")
def counted_on_twice(
    original: Any, self: Any, booking: Any, after: tuple[Any, ...] = (), *, evict: bool = False
) -> None:
    """A victim of the first of two still fills a guarantee for the second, when one message serves both.
    Loses what a namespace is guaranteed, when one message serves two at once."""
    original(self, booking, after, evict=evict)
    for each in after if evict else ():
        self.sparing.settle(each)


# Likewise.
@bug("reservation counts toward a guarantee", "guaranteed", candidates, "_may_never_be_had")
def promised_is_had(_original: Any, ctx: Any, allocation: Any, entry: Any) -> bool:
    """A place that others have yet fills a guarantee.
    Loses what a namespace is guaranteed, for a place that others have, and may keep."""
    return entry is None and allocation in ctx.assumed


def _one_allocator(plan: Plan) -> Plan:
    """One that decides alone: of two, each may take the last that is above a guarantee."""
    faults = tuple(fault for fault in plan.faults if fault.target != "allocator-b" and fault.kind != "lease")
    return with_preemptions(replace(plan, quotas=(), allocators=1, both_active=False, faults=faults), 1.0)


PREEMPTION_BUGS += [
    PlantedBug(
        "guarantee ignored",
        "what a namespace is guaranteed",
        ("guaranteed",),
        ((candidates, "_keeps_guarantees", always(True)),),
        _one_allocator,
    ),
]

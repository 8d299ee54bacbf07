"""Bugs about larger profiles and about moving pods, planted on purpose."""

from dataclasses import replace
from typing import Any

from simulation.judges.moves import with_moves
from simulation.plans.plan import Plan
from simulation.planted.bug import Bugs, PlantedBug, always

from sluice.contracts.messages import AllocationRequested, Grant
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.moves import defragment, move
from sluice_allocator.core.placement.spec.larger_profiles import MinimumProfile
from sluice_allocator.core.request import eviction_orders, grant_validity
from sluice_allocator.core.state.grant_facts import is_move

MOVE_BUGS = Bugs()


def _all_moving(plan: Plan) -> Plan:
    return with_moves(plan, 1.0)


def _no_jobs_no_limits(plan: Plan) -> Plan:
    """Much that may be moved, and room to move it to: the pods that came first go soon."""
    pods = tuple(replace(life, removed_at=life.removed_at or life.made_at + 12.0) for life in plan.pods)
    return with_moves(replace(plan, pods=pods, quotas=()), 1.0)


@MOVE_BUGS.plant("substitute with less memory", "never less", MinimumProfile, "is_met_by", _all_moving)
def _compute_only(_original: Any, self: Any, profile: Any) -> bool:
    """Memory is not compared: more compute is taken for more of everything. Loses memory that a pod asked for."""
    return bool(profile.multiprocessors >= self.multiprocessors)


@MOVE_BUGS.plant("evicted before booked", "booked first", eviction_orders, "why_evict", _all_moving)
def _evicted_first(original: Any, ctx: Any, request: Any, asked: Any, entries: Any) -> str | None:
    """A pod that has a larger profile is evicted in the hope that its own will be free when it comes again.
    Loses a restart, for nothing."""
    larger = any(isinstance(entry, Grant) and entry.booking.instead_of for entry in entries.values())
    if larger and isinstance(asked, AllocationRequested) and asked.leeway.substitute == "return":
        return "it has more than it asked for"
    found: str | None = original(ctx, request, asked, entries)
    return found


@MOVE_BUGS.plant("kept place given twice", ("I1", "place first"), SchedulerContext, "grant", _no_jobs_no_limits)
def _two_in_one_place(
    original: Any, self: Any, booking: Any, after: tuple[Any, ...] = (), *, evict: bool = False
) -> None:
    """A pod in the stead of a moved one gets its place at once, while the old one is still kept there.
    Loses a place that is handed over, to two."""
    kept = self.facts.ledger.get(after[0]) if after else None
    heir = isinstance(kept, Grant) and is_move(kept) and kept.booking.request != booking.request
    original(self, booking, () if heir else after, evict=evict)


@MOVE_BUGS.plant("kept place never given up", "I4", grant_validity, "why_end_move", _no_jobs_no_limits)
def _kept_for_ever(original: Any, ctx: Any, grant: Any, asked: Any) -> str | None:
    """A place is kept until a replacement comes, which may never happen.
    Loses room: a place is kept for a pod that never comes."""
    why: str | None = original(ctx, grant, asked)
    return None if why is not None and why.endswith(" s)") else why


MOVE_BUGS += [
    PlantedBug(
        "moved without cooldown",
        "the work of a pod that is restarted all the time",
        ("moved too soon",),
        ((move, "has_stayed", always(True)),),
        _no_jobs_no_limits,
    ),
    PlantedBug(
        "moved to and fro",
        "the work of movable pods, wherever others want room",
        ("moved too soon",),
        ((defragment, "has_stayed", always(True)),),
        _no_jobs_no_limits,
    ),
]

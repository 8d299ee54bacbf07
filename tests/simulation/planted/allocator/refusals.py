"""Bugs about what is refused for good, what only waits, and what waits for ever."""

from typing import Any

from simulation.planted.bug import bug

from sluice.contracts.messages import AllocationRequested
from sluice.contracts.reasons import Refusal, RefusalReason, WaitReason
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.node import reconcile as nodes
from sluice_allocator.core.request import reconcile


@bug("refusal for capability final", "I4", reconcile, "_refusal")
def final_for_what_is_not_there(original: Any, ctx: SchedulerContext, asked: AllocationRequested) -> Refusal | None:
    """A request that no known model can serve is refused, and never tried again.
    Loses a pod that was there before the node that was added for it."""
    names = {profile.name for model in ctx.cluster.models() for profile in model.profiles}
    for claim in asked.claims:
        if claim.profile is not None and claim.profile not in names:
            return Refusal(reason=RefusalReason.UNKNOWN_PROFILE, message="no known model has it")
    found: Refusal | None = original(ctx, asked)
    return found


@bug("only the first reason counts", "I4", nodes, "_why_not_use")
def first_reason_only(original: Any, *args: Any) -> tuple[WaitReason, ...]:
    """Of a node that may not be used for several reasons what follows from the first is done.
    Loses its start: its node's agent was restarted before the slice was made, and has not answered since."""
    reasons: tuple[WaitReason, ...] = original(*args)
    return reasons[:1]


REFUSAL_BUGS = (final_for_what_is_not_there,)

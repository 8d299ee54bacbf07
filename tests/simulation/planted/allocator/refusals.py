"""Bugs about what is refused for good, and what only waits."""

from typing import Any

from simulation.planted.bug import bug

from sluice.contracts.messages import AllocationRequested
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice_allocator.core.context import SchedulerContext
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


REFUSAL_BUGS = (final_for_what_is_not_there,)

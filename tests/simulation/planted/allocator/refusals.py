"""Bugs about what is refused for good, and what only waits."""

from typing import Any

from simulation.planted.bug import PlantedBug

from sluice.contracts.messages import AllocationRequested
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.request import reconcile


def _by_what_is_there(original: Any, ctx: SchedulerContext, asked: AllocationRequested) -> Refusal | None:
    """A request that no known model can serve is refused, and never tried again."""
    names = {profile.name for model in ctx.cluster.models() for profile in model.profiles}
    for claim in asked.claims:
        if claim.profile is not None and claim.profile not in names:
            return Refusal(reason=RefusalReason.UNKNOWN_PROFILE, message="no known model has it")
    found: Refusal | None = original(ctx, asked)
    return found


FINAL_FOR_WHAT_IS_NOT_THERE = PlantedBug(
    "refusal for capability final",
    "a pod that was there before the node that was added for it",
    ("I4",),
    ((reconcile, "_refusal", _by_what_is_there),),
)
REFUSAL_BUGS = (FINAL_FOR_WHAT_IS_NOT_THERE,)

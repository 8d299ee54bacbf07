"""Counts the devices that queued requests wait for, by the GPU model and profile that would serve: for autoscalers.
Models are those of the catalog, not of the fleet, which may lack one just because no pod wanted it. Labels are never
free text: a request for no single known model or profile counts as `any`."""

from collections import Counter
from functools import lru_cache

from sluice.contracts.messages import AllocationRequested, Claim
from sluice.contracts.request_syntax.device_limit import devices_of
from sluice.mig.catalog import catalog
from sluice.mig.model import GpuModel
from sluice.mig.model_names import is_meant
from sluice_allocator.core.context import SchedulerContext

ANY = "any"
WHOLE = "whole"
SHARE = "share"


def pending_devices(ctx: SchedulerContext) -> Counter[tuple[str, str]]:
    """Devices of all requests inside the queue, by model and profile. Costs a walk over shapes, not over requests."""
    found: Counter[tuple[str, str]] = Counter()
    for group in ctx.queue.shapes.values():
        asked = ctx.facts.requests.get(group.members.first()[2])
        if not isinstance(asked, AllocationRequested):
            continue  # withdrawn, about to leave
        members = group.members.before(group.members.last()) + 1
        for claim in asked.claims:
            found[_labels(claim)] += members * devices_of(claim)
    return found


@lru_cache(maxsize=1024)
def _labels(claim: Claim) -> tuple[str, str]:
    models = [model for model in catalog() if _admits(claim, model)]
    known = {profile.name for model in models for profile in model.profiles}
    return models[0].key if len(models) == 1 else ANY, _profile_of(claim, known)


def _profile_of(claim: Claim, known: set[str]) -> str:
    if claim.profile is not None:
        return claim.profile if claim.profile in known else ANY
    if "exclusive" not in claim.modes or claim.shares_percent is not None:
        return SHARE
    sizes = (claim.sm_count, claim.sm_percentage, claim.memory_mib, claim.memory_percentage, claim.sm_partition)
    return WHOLE if all(size is None for size in sizes) else ANY


def _admits(claim: Claim, model: GpuModel) -> bool:
    if claim.profile is not None and model.profile(claim.profile) is None:
        return False
    only, names = claim.only, model.product_names
    if any(is_meant(name, part) for part in only.not_models for name in names):
        return False
    return not only.models or any(is_meant(name, part) for part in only.models for name in names)

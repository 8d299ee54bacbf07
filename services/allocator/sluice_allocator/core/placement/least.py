"""
What claims count at least, on the best of all models: what is sure of a place before one is looked for.

It must not look for places, and says nothing of what is free.
"""

from collections.abc import Iterator

from sluice.contracts.messages import Claim
from sluice.contracts.quotas.usage import PERMILLE, Usage, compute_slices_of, total
from sluice.contracts.reasons import WaitReason
from sluice.contracts.request_syntax.device_limit import devices_of
from sluice.mig.model import Profile
from sluice_allocator.core.placement.fleet import Fleet
from sluice_allocator.core.placement.wants import shape_for


def least_usage(fleet: Fleet, claims: tuple[Claim, ...]) -> Usage:
    """What these claims count at least, on whatever models that were seen. Costs a look at each model."""
    return total(_least_of(fleet, claim) for claim in claims)


def _least_of(fleet: Fleet, claim: Claim) -> Usage:
    """Of each dimension the least, which no single place may have: a bound from below."""
    ways = list(_ways(fleet, claim))
    gpus = devices_of(claim)
    if not ways:
        return Usage(gpus)
    each = Usage(1, min(way.memory_mib for way in ways), min(way.compute_permille for way in ways))
    if claim.shares_percent is not None:
        return Usage(gpus, each.memory_mib, each.compute_permille)
    return Usage(gpus, gpus * each.memory_mib, gpus * each.compute_permille)


def _ways(fleet: Fleet, claim: Claim) -> Iterator[Usage]:
    """What one device of a claim counts, on each model and in each mode; of shares, what is sure."""
    if claim.shares_percent is not None or claim.modes != ("exclusive",):
        yield Usage(1, claim.memory_mib or 1, 1)
    if claim.shares_percent is not None or "exclusive" not in claim.modes:
        return
    for model in fleet.models():
        for mig in (True, False):
            shape = shape_for(model, claim, fleet.rules, mig=mig)
            if isinstance(shape, Profile):
                yield Usage(1, shape.memory_mib, shape.compute_slices * PERMILLE)
            elif not isinstance(shape, WaitReason):
                yield Usage(1, model.memory_mib, compute_slices_of(model) * PERMILLE)

"""The least usage of claims, on the best of all models: a lower bound that is certain before a place is searched."""

from collections.abc import Iterator

from sluice.contracts.messages import Claim
from sluice.contracts.quotas.usage import PERMILLE, Usage, compute_slices_of, total
from sluice.contracts.reasons import WaitReason
from sluice.contracts.request_syntax.device_limit import devices_of
from sluice.mig.model import Profile
from sluice_allocator.core.placement.fleet import Fleet
from sluice_allocator.core.placement.wants import shape_for


def least_usage(fleet: Fleet, claims: tuple[Claim, ...]) -> Usage:
    """The least usage of these claims on any model seen. Costs a look at each model."""
    return total(_least_of(fleet, claim) for claim in claims)


def _least_of(fleet: Fleet, claim: Claim) -> Usage:
    """The least of each dimension, a lower bound that no single place need reach."""
    ways = list(_ways(fleet, claim))
    gpus = devices_of(claim)
    if not ways:
        return Usage(gpus)
    each = Usage(1, min(way.memory_mib for way in ways), min(way.compute_permille for way in ways))
    if claim.shares_percent is not None:
        return Usage(gpus, each.memory_mib, each.compute_permille)
    return Usage(gpus, gpus * each.memory_mib, gpus * each.compute_permille)


def _ways(fleet: Fleet, claim: Claim) -> Iterator[Usage]:
    """The usage of one device of a claim, on each model and in each mode; for shares, the certain part."""
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

"""Finds one device for one claim, in the first of its modes that has one."""

from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.placement.looking import Look
from sluice_allocator.core.placement.one_instance import Found, better, find_instance, find_whole
from sluice_allocator.core.placement.one_share import find_part, find_share
from sluice_allocator.core.placement.wants import Want, WholeGpu


def find_one(look: Look, want: Want) -> Found | None:
    """The best device for a claim, in the first of its modes that has one."""
    claim = want.claim
    if claim.shares_percent is not None:
        return find_part(look, want, claim.shares_percent)
    for mode in claim.modes:
        if mode == "exclusive":
            found = _find_exclusive(look, want, snug_only=claim.snug)
        else:
            found = find_share(look, want, mode)
        if found is not None:
            return found
    return _find_exclusive(look, want, snug_only=False) if claim.snug else None


def _find_exclusive(look: Look, want: Want, *, snug_only: bool) -> Found | None:
    best: Found | None = None
    for group in look.groups():
        if "exclusive" not in group.modes:
            continue
        for kind, sample in group.samples.items():
            shape = want.shape_on(sample)
            if isinstance(shape, WaitReason) or (snug_only and not want.is_snug(sample)):
                continue
            if isinstance(shape, WholeGpu):
                best = better(find_whole(look, want, group, kind), best)
            else:
                best = better(find_instance(look, want, group, sample, shape, best), best)
    return best

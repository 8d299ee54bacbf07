"""What no known model and no configured limit could ever serve: refused at once, with the field at fault."""

from sluice.contracts.messages import Claim
from sluice.contracts.refusals import Refusal, RefusalReason, WaitReason
from sluice.mig.catalog import catalog
from sluice.mig.model import Profile
from sluice_allocator.core.placement.asking import Asking
from sluice_allocator.core.placement.fleet import Fleet
from sluice_allocator.core.placement.policies import check_names
from sluice_allocator.core.placement.rules import PlacingRules
from sluice_allocator.core.placement.wants import is_whole, larger_for, shape_for


def refuse(fleet: Fleet, asking: Asking, *, max_gpus_per_node: int) -> Refusal | None:
    """Why no model that is known or was seen, and no configured limit, could ever serve this; None when one could."""
    total = sum(gpus_at_least(claim) for claim in asking.claims)
    if total > max_gpus_per_node:
        return Refusal(
            reason=RefusalReason.TOO_LARGE,
            message="more devices than any node may give to one pod",
            field="shares" if any(claim.shares_percent for claim in asking.claims) else "gpus",
            value=str(total),
            allowed=f"1 to {max_gpus_per_node} over all containers",
        )
    why = check_names(asking.node_policy, asking.gpu_policy)
    if why is not None:
        field, value = ("gpu-policy", asking.gpu_policy) if asking.gpu_policy else ("node-policy", asking.node_policy)
        return Refusal(reason=RefusalReason.INVALID_VALUE, message=why, field=field, value=value)
    for claim in asking.claims:
        refusal = _refuse_share(claim, fleet.rules) or _refuse_sizes(claim, fleet, substitute=asking.substitute)
        if refusal is not None:
            return refusal
    return None


def gpus_at_least(claim: Claim) -> int:
    """How many devices a claim takes at least."""
    return claim.gpus if claim.shares_percent is None else -(-claim.shares_percent // 100)


def _refuse_share(claim: Claim, rules: PlacingRules) -> Refusal | None:
    quantum = rules.shares_quantum_percent
    if claim.shares_percent is not None and claim.shares_percent % quantum:
        return Refusal(
            reason=RefusalReason.INVALID_VALUE,
            message="no whole number of the quanta that GPUs are split into here",
            field="shares",
            value=f"{claim.shares_percent / 100:g}",
            allowed=f"a multiple of {quantum / 100:g}",
        )
    shared = claim.shares_percent is not None or claim.modes[0] != "exclusive"
    if shared and claim.uid is None and rules.assumed_uid is None:
        return Refusal(
            reason=RefusalReason.CONTRADICTION,
            message="a share of a GPU needs to know whose processes use it, and this cluster assumes nothing",
            field="securityContext.runAsUser",
            allowed="a user id",
        )
    return None


def _refuse_sizes(claim: Claim, fleet: Fleet, *, substitute: bool) -> Refusal | None:
    if claim.modes != ("exclusive",) or claim.shares_percent is not None or is_whole(claim):
        return None
    models = [model for model in (*catalog(), *fleet.models()) if model.profiles]
    if any(not isinstance(shape_for(model, claim, fleet.rules, mig=True), WaitReason) for model in models):
        return None
    if substitute and any(larger_for(model, claim, fleet.rules) for model in models):
        return None
    if claim.profile is not None and all(model.profile(claim.profile) is None for model in models):
        names = sorted({profile.name for model in models for profile in model.profiles})
        return Refusal(
            reason=RefusalReason.UNKNOWN_PROFILE,
            message="no known GPU model has this profile",
            field="profile",
            value=claim.profile,
            allowed=", ".join(names),
        )
    return _too_large(claim, [profile for model in models for profile in model.profiles])


def _too_large(claim: Claim, profiles: list[Profile]) -> Refusal:
    memory = max((profile.memory_mib for profile in profiles), default=0)
    sms = max((profile.multiprocessors for profile in profiles), default=0)
    if claim.memory_mib is not None and claim.memory_mib > memory:
        field, value, allowed = "memory", f"{claim.memory_mib} MiB", f"at most {memory} MiB on the largest known model"
    elif claim.sm_count is not None and claim.sm_count > sms:
        field, value, allowed = "sm-count", str(claim.sm_count), f"at most {sms} SMs on the largest known model"
    else:
        sizes = f"{claim.sm_count} SMs, {claim.sm_percentage} %, {claim.memory_mib} MiB"
        field, value = "profile", claim.profile or sizes
        allowed = "sizes that one profile of one known model has together"
    return Refusal(
        reason=RefusalReason.TOO_LARGE,
        message="no profile of any known GPU model is large enough",
        field=field,
        value=value,
        allowed=allowed,
    )

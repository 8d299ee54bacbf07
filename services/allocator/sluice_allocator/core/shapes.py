"""
Which profile of a model serves a claim, and what no model could ever serve.

Never gives less than asked: sizes round up to the next profile. A GPU without MIG is only given whole.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from sluice.contracts.messages import Claim
from sluice.contracts.refusals import Refusal, RefusalReason, WaitReason
from sluice.mig.model import GpuModel, Profile
from sluice.mig.profile import ProfileName

WHOLE_GPU = "whole GPU"
"""The shape of a GPU without MIG: all of it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The shape of one device, without who asks: claims of equal asks wait for the same things."""

    profile: str | None
    sm_count: int | None
    sm_percentage: int | None
    memory_mib: int | None

    @property
    def whole(self) -> bool:
        """Whether a whole GPU is asked for: no size at all, or all of it."""
        sizes = (self.profile, self.sm_count, self.memory_mib)
        return all(size is None for size in sizes) and self.sm_percentage in {None, 100}


def ask_of(claim: Claim) -> Ask:
    """The shape that each device of a claim must have."""
    return Ask(claim.profile, claim.sm_count, claim.sm_percentage, claim.memory_mib)


def shape_for(model: GpuModel, *, mig_enabled: bool, ask: Ask) -> str | WaitReason:
    """The profile of `model` that serves `ask` (or WHOLE_GPU), or why none does."""
    if not mig_enabled:
        return WHOLE_GPU if ask.whole else WaitReason.GPU_MODE_NOT_FIT
    return _profile_for(model, ask)


@lru_cache(maxsize=4096)
def _profile_for(model: GpuModel, ask: Ask) -> str | WaitReason:
    if not model.profiles:
        return WaitReason.GPU_MODE_NOT_FIT
    if ask.profile is not None:
        profile = model.profile(ask.profile)
        fits = profile is not None and _is_enough(model, profile, ask)
        return ask.profile if fits else WaitReason.GPU_NO_SUCH_PROFILE
    if ask.whole:
        return model.largest.name
    enough = [profile for profile in model.profiles if _is_enough(model, profile, ask)]
    if not enough:
        return WaitReason.GPU_NO_SUCH_PROFILE
    return min(enough, key=_smallest_first).name


def _is_enough(model: GpuModel, profile: Profile, ask: Ask) -> bool:
    largest = model.largest
    if ask.memory_mib is not None and profile.memory_mib < ask.memory_mib:
        return False
    if ask.sm_count is not None and profile.multiprocessors < ask.sm_count:
        return False
    percentage = ask.sm_percentage
    return percentage is None or profile.multiprocessors * 100 >= percentage * largest.multiprocessors


def _smallest_first(profile: Profile) -> tuple[int, int, int, str]:
    """Compute slices, then memory; plain profiles before those with attributes (`+me`), which are scarce."""
    attributes = len(ProfileName.parse(profile.name).attributes)
    return (profile.compute_slices, profile.memory_mib, attributes, profile.name)


def refusal_for(claims: tuple[Claim, ...], models: Iterable[GpuModel], *, max_gpus_per_node: int) -> Refusal | None:
    """Why no known model and no configured limit could ever serve these claims; None when one could."""
    total = sum(claim.gpus for claim in claims)
    if total > max_gpus_per_node:
        return Refusal(
            reason=RefusalReason.TOO_LARGE,
            message="more devices than any node may give to one pod",
            field="gpus",
            value=str(total),
            allowed=f"1 to {max_gpus_per_node} over all containers",
        )
    known = [model for model in models if model.profiles]
    for claim in claims:
        refusal = _refusal_of_ask(ask_of(claim), known)
        if refusal is not None:
            return refusal
    return None


def _refusal_of_ask(ask: Ask, models: list[GpuModel]) -> Refusal | None:
    if any(not isinstance(shape_for(model, mig_enabled=True, ask=ask), WaitReason) for model in models) or ask.whole:
        return None
    if ask.profile is not None and all(model.profile(ask.profile) is None for model in models):
        names = sorted({profile.name for model in models for profile in model.profiles})
        return Refusal(
            reason=RefusalReason.UNKNOWN_PROFILE,
            message="no known GPU model has this profile",
            field="profile",
            value=ask.profile,
            allowed=", ".join(names),
        )
    return _too_large(ask, models)


def _too_large(ask: Ask, models: list[GpuModel]) -> Refusal:
    memory = max(profile.memory_mib for model in models for profile in model.profiles)
    sms = max(profile.multiprocessors for model in models for profile in model.profiles)
    if ask.memory_mib is not None and ask.memory_mib > memory:
        field, value, allowed = "memory", f"{ask.memory_mib} MiB", f"at most {memory} MiB on the largest known model"
    elif ask.sm_count is not None and ask.sm_count > sms:
        field, value, allowed = "sm-count", str(ask.sm_count), f"at most {sms} SMs on the largest known model"
    else:
        field, value = "profile", ask.profile or f"{ask.sm_count} SMs, {ask.sm_percentage} %, {ask.memory_mib} MiB"
        allowed = "sizes that one profile of one known model has together"
    return Refusal(
        reason=RefusalReason.TOO_LARGE,
        message="no profile of any known GPU model is large enough",
        field=field,
        value=value,
        allowed=allowed,
    )

"""A profile with sizes beside it that it has on no known model. A profile that no model has is not judged here."""

from sluice.contracts.messages import Claim
from sluice.contracts.refusals import Refusal, RefusalReason
from sluice.mig.catalog import catalog
from sluice.mig.model import GpuModel, Profile

_UNITS = {"memory": " MiB", "memory %": " %", "sm-count": " SMs", "sm-percentage": " %"}
_KEYS = {"memory %": "memory"}
_Known = tuple[GpuModel, Profile]
"""A profile as one model has it."""


def contradiction(claim: Claim, fields: dict[str, str]) -> Refusal | None:
    """
    Why no known model can give both the claim's profile and its other sizes; None when one can.

    `fields` are the keys as the person spelled them, by our own keys.
    """
    if claim.profile is None:
        return None
    known: list[_Known] = [(m, profile) for m in catalog() if (profile := m.profile(claim.profile)) is not None]
    asked = {
        "memory": claim.memory_mib,
        "memory %": claim.memory_percentage,
        "sm-count": claim.sm_count,
        "sm-percentage": claim.sm_percentage,
    }
    sizes = {key: size for key, size in asked.items() if size is not None and _KEYS.get(key, key) in fields}
    if not known or any(all(size <= _amount(each, key) for key, size in sizes.items()) for each in known):
        return None
    most = {key: max(_amount(each, key) for each in known) for key in sizes}
    key = next((key for key, size in sizes.items() if size > most[key]), None)
    if key is None:
        key = next(iter(sizes))
        why, allowed = "which has not all of these sizes on any known GPU model", "fewer sizes, or another profile"
    else:
        why = "which has less on every known GPU model"
        allowed = f"at most {most[key]}{_UNITS[key]} with that profile, or another profile"
    return Refusal(
        reason=RefusalReason.CONTRADICTION,
        message=f"contradicts {fields['profile']} = {claim.profile!r}, {why}",
        field=fields[_KEYS.get(key, key)],
        value=f"{sizes[key]}{_UNITS[key]}",
        allowed=allowed,
    )


def _amount(known: _Known, key: str) -> int:
    """What a profile has of one size. Percent are of the model's largest profile, in whole percent."""
    model, profile = known
    if key == "memory":
        return profile.memory_mib
    if key == "memory %":
        return model.memory_percent(profile)
    if key == "sm-count":
        return profile.multiprocessors
    return profile.multiprocessors * 100 // model.largest.multiprocessors

"""
Names of profiles: one that is written wrongly, and one with sizes beside it that it has on no known model.

Whether any GPU has a profile is not judged here, for tomorrow's may.
"""

from sluice.contracts.asking.written import nearest
from sluice.contracts.messages import Claim
from sluice.contracts.refusals import Refusal, RefusalReason
from sluice.mig.catalog import catalog
from sluice.mig.model import GpuModel, Profile
from sluice.mig.profile import ProfileName, ProfileNameError

_UNITS = {"memory": " MiB", "memory %": " %", "sm-count": " SMs", "sm-percentage": " %"}
_KEYS = {"memory %": "memory"}
_Known = tuple[GpuModel, Profile]
"""A profile as one model has it."""


def meant_profile(text: str) -> str:
    """`; did you mean 1g.10gb?` of a text that is nearly the name of a profile (`1G.10GB`), else nothing."""
    folded = text.strip().casefold()
    try:
        return f"; did you mean {ProfileName.parse(folded)}?"
    except ProfileNameError:
        return nearest(folded, sorted({profile.name for model in catalog() for profile in model.profiles}))


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

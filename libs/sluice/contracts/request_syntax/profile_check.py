"""
Check profile names: misspelled ones, and ones with more memory beside them than their name says.

Whether any GPU has the profile is not checked: a future one may.
"""

from collections.abc import Mapping

from sluice.contracts.messages import Claim
from sluice.contracts.request_syntax.source_text import SourceValue, did_you_mean
from sluice.mig.catalog import catalog
from sluice.mig.profile_name import ProfileName, ProfileNameError


def meant_profile(text: str) -> str:
    """`; did you mean 1g.10gb?` for a near miss of a profile name (`1G.10GB`), else empty."""
    folded = text.strip().casefold()
    try:
        return f"; did you mean {ProfileName.parse(folded)}?"
    except ProfileNameError:
        return did_you_mean(folded, sorted({profile.name for model in catalog() for profile in model.profiles}))


def check_memory(claim: Claim, given: Mapping[str, SourceValue]) -> None:
    """
    Raises RequestSyntaxError for more memory than the name of the claim's profile has, on any GPU.

    `given` are the values as written, by our own keys. A name has GB, rounded up from the instance's memory
    (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/, "Device Names"); SMs and parts depend on the model.
    """
    if claim.profile is None or claim.memory_mib is None or "memory" not in given:
        return
    most_gib = ProfileName.parse(claim.profile).memory_gb
    if claim.memory_mib > most_gib * 1024:
        why = f"such an instance has at most {most_gib} GiB"
        raise given["memory"].contradicts(given["profile"], why, f"at most {most_gib}Gi, or another profile")

"""NVIDIA's resources of the mixed MIG strategy: `nvidia.com/mig-<profile>: <count>`, each `+` in the profile written
`.`.

Source: https://docs.nvidia.com/datacenter/cloud-native/kubernetes/latest/index.html#mig-support-in-kubernetes."""

from collections.abc import Mapping

from sluice.contracts.messages import Claim
from sluice.contracts.reasons import RefusalReason, shorten
from sluice.contracts.request_syntax import values
from sluice.contracts.request_syntax.hami import HamiPodOptions
from sluice.contracts.request_syntax.keys import MIG_RESOURCE
from sluice.contracts.request_syntax.pod_request import ContainerRequest, RequestLimits
from sluice.contracts.request_syntax.source_text import SourceValue, did_you_mean, requested_amounts
from sluice.mig.catalog import catalog
from sluice.mig.model import INSTANCES_MAX
from sluice.mig.profile_name import ProfileName, ProfileNameError, from_resource


def meant_profile(text: str) -> str:
    """`; did you mean 1g.10gb?` for a near miss of a profile name (`1G.10GB`), else empty."""
    folded = text.strip().casefold()
    try:
        return f"; did you mean {ProfileName.parse(folded)}?"
    except ProfileNameError:
        return did_you_mean(folded, sorted({profile.name for model in catalog() for profile in model.profiles}))


def check_memory(claim: Claim, given: Mapping[str, SourceValue]) -> None:
    """Raises RequestSyntaxError for more memory than the name of the claim's profile has, rounded up as on any GPU."""
    if claim.profile is None or claim.memory_mib is None or "memory" not in given:
        return
    most_gib = ProfileName.parse(claim.profile).memory_gb
    if claim.memory_mib > most_gib * 1024:
        why = f"such an instance has at most {most_gib} GiB"
        raise given["memory"].contradicts(given["profile"], why, f"at most {most_gib}Gi, or another profile")


def resources_of(container: ContainerRequest) -> dict[str, SourceValue]:
    asked = requested_amounts(container.limits, container.requests)
    return {name: SourceValue(name, size) for name, size in asked.items() if name.startswith(MIG_RESOURCE)}


def claim_of(
    container: ContainerRequest, asked: dict[str, SourceValue], words: HamiPodOptions, limits: RequestLimits
) -> Claim | None:
    """The claim for one profile. Raises RequestSyntaxError, also for two profiles in one container."""
    claim: Claim | None = None
    first: SourceValue | None = None
    for written in asked.values():
        profile = _profile(written)
        count = values.amount(written, 0, limits.max_gpus_per_node * INSTANCES_MAX)
        if first is not None:
            why = "one container is given devices of one profile"
            raise written.contradicts(first, why, "one profile, or the other one in a container of its own")
        if words.mode is not None and "mig" not in words.modes:
            raise written.contradicts(words.mode, "a MIG instance is asked for", "mig, or leave the mode out")
        first = written
        claim = Claim(container=container.name, gpus=count, profile=profile, only=words.only, numa_bind=words.numa_bind)
    return claim


def _profile(written: SourceValue) -> str:
    text = written.field.removeprefix(MIG_RESOURCE)
    values.refuse_compute_instance(written, text, MIG_RESOURCE)
    try:
        return str(from_resource(text))
    except ProfileNameError:
        why = f"{shorten(text, 63)!r} is not the name of a MIG profile{meant_profile(text)}"
        allowed = f"for instance {MIG_RESOURCE}1g.5gb or {MIG_RESOURCE}1g.5gb.me"
        raise written.wrong(RefusalReason.UNKNOWN_PROFILE, why, allowed) from None

"""
NVIDIA's resources of the mixed MIG strategy: `nvidia.com/mig-<profile>: <count>`, each `+` in the profile written `.`.

Source: https://docs.nvidia.com/datacenter/cloud-native/kubernetes/latest/index.html#mig-support-in-kubernetes and the
resource names of https://github.com/NVIDIA/k8s-device-plugin. They always mean exclusive instances.
"""

from sluice.contracts.messages import Claim
from sluice.contracts.reasons import RefusalReason, shorten
from sluice.contracts.request_syntax import values
from sluice.contracts.request_syntax.hami import HamiPodOptions
from sluice.contracts.request_syntax.keys import MIG_RESOURCE
from sluice.contracts.request_syntax.pod_request import ContainerRequest, RequestLimits
from sluice.contracts.request_syntax.profile_check import meant_profile
from sluice.contracts.request_syntax.source_text import SourceValue, requested_amounts
from sluice.mig.model import INSTANCES_MAX
from sluice.mig.profile_name import ProfileNameError
from sluice.mig.resource_names import from_resource


def resources_of(container: ContainerRequest) -> dict[str, SourceValue]:
    """The amounts of MIG profiles that a container requests; limits before requests."""
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

"""Implicit extended resources of DeviceClasses: refused where Sluice serves the class."""

import pytest

from sluice.contracts.manifests import ManifestLimits, read_manifests
from sluice.contracts.request_syntax import RequestLimits

PREFIX = "deviceclass.resource.kubernetes.io/"
POD = "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: main, resources: {limits: {NAME: AMOUNT}}}]}"


def problems(name: str, amount: int = 1) -> list[str]:
    """What a cluster would deny a pod with that resource for."""
    text = POD.replace("NAME", name).replace("AMOUNT", str(amount))
    (pod,) = read_manifests("f.yaml", text, limits=ManifestLimits(), asks=RequestLimits())
    return [each.sentence for each in pod.problems]


@pytest.mark.parametrize("name", ["gpu.nvidia.com", "mig.nvidia.com", "sluice.dev"])
def test_the_resource_of_a_class_of_ours_is_refused(name):
    """The scheduler would look for devices by itself, for ever."""
    (found,) = problems(PREFIX + name)

    assert found == (
        f"spec.containers[main].resources.limits[{PREFIX}{name}] = '1': the scheduler itself would allocate {name} for "
        f"it, past Sluice (allowed: a ResourceClaimTemplate of class {name}, or nvidia.com/gpu)"
    )


@pytest.mark.parametrize(
    ("name", "amount"), [(f"{PREFIX}other.example", 1), ("nvidia.com/other", 1), (f"{PREFIX}sluice.dev", 0)]
)
def test_other_resources_are_left_alone(name, amount):
    assert problems(name, amount) == []

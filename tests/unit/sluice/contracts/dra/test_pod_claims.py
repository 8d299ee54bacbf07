"""All claims of a pod as one request."""

import pytest
from unit.sluice.contracts.dra.claim_specs import GPU, MIG, OURS, body, claim, ours, prioritized, request
from yaml import safe_load

from sluice.contracts.dra.pod_claims import combined, uid_of, users_of
from sluice.contracts.dra.reader import read_claim
from sluice.contracts.dra.slice_request import ClaimRequests
from sluice.contracts.manifests import ManifestLimits, read_manifests
from sluice.contracts.request_syntax import RequestLimits

SMALL = "A.profile == '1g.5gb'"
EITHER = prioritized("r", a=body(GPU), b=body(MIG, SMALL))
PARENT = {"matchAttribute": "gpu.nvidia.com/parentUUID"}
PAIR = claim(request("x", MIG, SMALL), request("y", MIG, SMALL), constraints=[PARENT])


def read(name: str, spec) -> ClaimRequests:
    found = read_claim(spec, {}, prefix=f"{name}.")
    assert isinstance(found, ClaimRequests), found
    return found


def test_the_ways_of_all_claims_are_combined_in_their_order():
    found = combined([read("p", claim(EITHER)), read("q", claim(EITHER)), read("s", PAIR)])
    ways = [[each.container for each in way[:2]] for way in (found.claims, *found.alternatives)]
    assert ways == [[f"p.r/{first}", f"q.r/{second}"] for first in "ab" for second in "ab"]
    assert found.same_gpu == (("s.x", "s.y"),)


def test_options_of_one_claim_are_those_of_the_pod():
    said = claim(request("r", OURS), config=[ours(priority=3)])
    other = claim(request("r", OURS), config=[ours(gpu_policy="spread")])
    found = combined([read("p", said), read("q", other), read("s", said)])
    assert (found.options.priority, found.options.gpu_policy) == (3, "spread")


OTHER_POLICIES = [claim(request("r", OURS), config=[ours(node_policy=name)]) for name in ("spread", "binpack")]


@pytest.mark.parametrize(
    ("specs", "why"),
    [
        ([claim(EITHER)] * 6, "64 ways to serve them"),
        ([claim(request("r", count=5))] * 2, "10 devices on one node"),
        (OTHER_POLICIES, "two claims of the pod differ in node-policy"),
    ],
)
def test_claims_that_do_not_go_together_are_refused(specs, why):
    found = combined([read(f"p{at}", spec) for at, spec in enumerate(specs)])
    assert (found.field, found.message) == ("spec.resourceClaims", why)


def test_the_user_of_a_claim_is_that_of_its_first_container():
    """Else the pod's; a value that no user has counts as none."""
    spec = safe_load("""
        securityContext: {runAsUser: 5}
        initContainers: [{name: i, resources: {claims: [{name: g}]}, securityContext: {runAsUser: 6}}]
        containers: [{name: c, resources: {claims: [{name: h}]}, securityContext: {runAsUser: -1}}]
    """)
    assert (uid_of(spec, "g"), uid_of(spec, "h"), uid_of(spec, "other"), uid_of({}, "g")) == (6, 5, 5, None)
    assert [each["name"] for each in users_of(spec, "h")] == ["c"]


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

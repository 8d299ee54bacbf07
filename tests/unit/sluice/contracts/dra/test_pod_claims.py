"""All claims of a pod as one request."""

import pytest
from unit.sluice.contracts.dra.claim_specs import GPU, MIG, OURS, body, claim, ours, prioritized, request

from sluice.contracts.dra.claim_requests import ClaimRequests
from sluice.contracts.dra.pod_claims import PodClaim, combined, read_pod_claims, uid_of, users_of
from sluice.contracts.dra.reader import read_claim
from sluice.contracts.reasons import Refusal

EITHER = prioritized("r", a=body(GPU), b=body(MIG, "A.profile == '1g.5gb'"))
PAIR = claim(
    request("x", MIG, "A.profile == '1g.5gb'"),
    request("y", MIG, "A.profile == '1g.5gb'"),
    constraints=[{"matchAttribute": "gpu.nvidia.com/parentUUID"}],
)


def read(name: str, spec) -> ClaimRequests:
    found = read_claim(spec, {}, prefix=f"{name}.")
    assert isinstance(found, ClaimRequests), found
    return found


def test_the_ways_of_all_claims_are_combined_in_their_order():
    """The first claim's wishes count most."""
    found = combined([read("p", claim(EITHER)), read("q", claim(EITHER)), read("s", PAIR)])

    assert [[each.container for each in way][:2] for way in (found.claims, *found.alternatives)] == [
        ["p.r/a", "q.r/a"],
        ["p.r/a", "q.r/b"],
        ["p.r/b", "q.r/a"],
        ["p.r/b", "q.r/b"],
    ]
    assert found.same_gpu == (("s.x", "s.y"),)


def test_options_of_one_claim_are_those_of_the_pod():
    """What the others leave out does not count."""
    said = claim(request("r", OURS), config=[ours(priority=3)])
    other = claim(request("r", OURS), config=[ours(gpu_policy="spread")])

    found = combined([read("p", said), read("q", other), read("s", said)])

    assert (found.options.priority, found.options.gpu_policy) == (3, "spread")


@pytest.mark.parametrize(
    ("specs", "why"),
    [
        ([claim(EITHER)] * 6, "64 ways to serve them"),
        ([claim(request("r", count=5))] * 2, "10 devices on one node"),
        (
            [claim(request("r", OURS), config=[ours(node_policy=name)]) for name in ("spread", "binpack")],
            "two claims of the pod differ in node-policy",
        ),
    ],
)
def test_claims_that_do_not_go_together_are_refused(specs, why):
    """Each alone is right."""
    found = combined([read(f"p{at}", spec) for at, spec in enumerate(specs)])

    assert isinstance(found, Refusal)
    assert (found.field, found.message) == ("spec.resourceClaims", why)


def test_the_user_of_a_claim_is_that_of_its_first_container():
    """Else the pod's; a value that no user has counts as none."""
    spec = {
        "securityContext": {"runAsUser": 5},
        "initContainers": [
            {"name": "i", "resources": {"claims": [{"name": "g"}]}, "securityContext": {"runAsUser": 6}}
        ],
        "containers": [{"name": "c", "resources": {"claims": [{"name": "h"}]}, "securityContext": {"runAsUser": -1}}],
    }

    assert (uid_of(spec, "g"), uid_of(spec, "h"), uid_of(spec, "other"), uid_of({}, "g")) == (6, 5, 5, None)
    assert [each["name"] for each in users_of(spec, "h")] == ["c"]


def test_the_claims_of_a_pod_are_read_from_its_spec():
    """By name or by template."""
    spec = {
        "resourceClaims": [
            {"name": "a", "resourceClaimName": "x"},
            {"name": "b", "resourceClaimTemplateName": "y", "resourceClaimName": None},
        ]
    }

    assert read_pod_claims(spec) == (
        PodClaim("spec.resourceClaims[0]", "a", claim="x"),
        PodClaim("spec.resourceClaims[1]", "b", template="y"),
    )
    assert read_pod_claims({}) == ()

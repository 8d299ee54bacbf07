"""Who may make, change and use the ResourceClaims of Sluice, with the sentence that a person sees."""

from typing import Any

import pytest
from deploy_check import Document
from unit.deploy.policy_engine import GATED, Rendering, denials, pod, policy_of

from sluice.contracts.dra.names import DEVICE_CLASS, DRIVER
from sluice.contracts.kube import names

OWNERS = [{"kind": "Pod", "name": "train", "uid": "u1", "controller": True}]
CLAIM_NAME = names.claim_name("x")
ONLY_OURS = "the label sluice.dev/managed is set by Sluice on the ResourceClaims that it makes, and stays"
ONE_OWNER = "the pod that owns a ResourceClaim of Sluice stays the same: delete the pod, and its claim goes with it"
ONE_POD = "Sluice made this ResourceClaim for one pod, and no other may use it"
ONE_DRIVER = "only Sluice allocates devices of gpu.sluice.dev"
NO_SHARING = (
    "a ResourceClaim that Sluice made for one pod cannot be named by another; use a claim of your own, or a template"
)


def claim(*, managed: bool = True, owners: list[Document] | None = None, **status: Any) -> Document:
    labels = {names.LABEL_MANAGED: names.MANAGED} if managed else {}
    return {
        "metadata": {"name": CLAIM_NAME, "labels": labels, "ownerReferences": OWNERS if owners is None else owners},
        "spec": {"devices": {"requests": [{"name": "main", "exactly": {"deviceClassName": DEVICE_CLASS}}]}},
        "status": status,
    }


def allocated(driver: str = DRIVER, *, reserved: tuple[str, ...] = ("u1",)) -> Document:
    results = [{"request": "main", "driver": driver, "pool": "n1", "device": "d"}]
    consumers = [{"resource": "pods", "name": uid, "uid": uid} for uid in reserved]
    return {"allocation": {"devices": {"results": results}}, "reservedFor": consumers}


def update(before: Document, after: Document, *, may_bind: bool = False) -> dict[str, Any]:
    request = {"operation": "UPDATE", "namespace": "team"}
    return {"oldObject": before, "object": after, "request": request, "authorizer": {"may_bind": may_bind}}


def creation(after: Document, *, may_bind: bool = False) -> dict[str, Any]:
    request = {"operation": "CREATE", "namespace": "team"}
    return {"object": after, "request": request, "authorizer": {"may_bind": may_bind}}


REFUSED = {
    "makes one that looks like ours": (creation(claim()), ONLY_OURS),
    "takes the label off": (update(claim(), claim(managed=False)), ONLY_OURS),
    "marks another's": (update(claim(managed=False, owners=[]), claim(owners=[])), ONLY_OURS),
    "moves it to another pod": (update(claim(), claim(owners=[{"kind": "Pod", "uid": "u2"}])), ONE_OWNER),
    "allocates our devices": (update(claim(managed=False), claim(managed=False, **allocated())), ONE_DRIVER),
}


@pytest.mark.parametrize("what", REFUSED)
def test_only_who_binds_slices_makes_and_allocates_claims_of_ours(rendered: Rendering, what):
    """Who could would give itself the device of another pod."""
    asked, sentence = REFUSED[what]
    policy = policy_of(rendered, "sluice-claims")
    assert denials(policy, asked) == [sentence]
    assert denials(policy, {**asked, "authorizer": {"may_bind": True}}) == []


@pytest.mark.parametrize("may_bind", [True, False])
def test_a_claim_of_one_pod_is_reserved_for_no_other(rendered: Rendering, may_bind):
    """The scheduler reserves a claim for every pod that names it, and both would get the device."""
    before, after = claim(**allocated()), claim(**allocated(reserved=("u1", "u2")))
    assert denials(policy_of(rendered, "sluice-claims"), update(before, after, may_bind=may_bind)) == [ONE_POD]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (claim(**allocated()), claim()),
        (claim(**allocated()), claim(**allocated(reserved=()))),
        (
            claim(managed=False, owners=[], **allocated()),
            claim(managed=False, owners=[], **allocated(reserved=("a", "b"))),
        ),
        (claim(managed=False, owners=[]), claim(managed=False, owners=[], **allocated("nic.example.com"))),
    ],
    ids=["deallocated", "unreserved", "a user's own for two pods", "of another driver"],
)
def test_what_the_controllers_of_a_cluster_do_passes(rendered: Rendering, before, after):
    """A claim that could not be let go would hold its device forever."""
    assert denials(policy_of(rendered, "sluice-claims"), update(before, after)) == []


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (
            {"exactly": {"deviceClassName": DEVICE_CLASS, "adminAccess": True}},
            "a request of the class sluice.dev may not set adminAccess, which shows others' devices: leave it out",
        ),
        (
            {"exactly": {"deviceClassName": DEVICE_CLASS, "allocationMode": "All"}},
            "a request of the class sluice.dev may not set allocationMode All: set count to the number of devices",
        ),
        (
            {"firstAvailable": [{"name": "a", "deviceClassName": DEVICE_CLASS, "allocationMode": "All"}]},
            "a request of the class sluice.dev may not set allocationMode All: set count to the number of devices",
        ),
        ({"exactly": {"deviceClassName": DEVICE_CLASS, "count": 2}}, ""),
        ({"exactly": {"deviceClassName": "nic.example.com", "adminAccess": True}}, ""),
    ],
)
@pytest.mark.parametrize("kind", ["resourceclaims", "resourceclaimtemplates"])
def test_what_a_claim_may_not_ask_for_is_refused_with_what_to_write(rendered: Rendering, kind, request_, sentence):
    """It would never be allocated; in a template the pod would be the first to find out."""
    spec = {"devices": {"requests": [{"name": "main", **request_}]}}
    made = {"metadata": {"name": "c"}, "spec": {"spec": spec} if kind == "resourceclaimtemplates" else spec}
    asked = {"object": made, "request": {"operation": "CREATE", "resource": {"resource": kind}}}
    assert denials(policy_of(rendered, "sluice-claim-requests"), asked) == ([sentence] if sentence else [])


@pytest.mark.parametrize(
    ("made", "refused"),
    [
        (pod(resourceClaims=[{"name": "x", "resourceClaimName": CLAIM_NAME}]), [NO_SHARING]),
        (pod(resourceClaims=[{"name": "x", "resourceClaimName": CLAIM_NAME}], **GATED), [NO_SHARING]),
        (pod(resourceClaims=[{"name": "sluice", "resourceClaimName": CLAIM_NAME}], **GATED), []),
        (pod(resourceClaims=[{"name": "x", "resourceClaimName": "sluice-demo"}]), []),
        (pod(resourceClaims=[{"name": "x", "resourceClaimTemplateName": "t"}]), []),
    ],
)
def test_a_claim_of_one_pod_is_named_by_no_other(rendered: Rendering, made, refused):
    """Also by pods that ask for no GPU, which the webhook never sees."""
    policy = policy_of(rendered, "sluice-no-side-door")
    assert denials(policy, {"object": made, "request": {"operation": "CREATE"}}) == refused

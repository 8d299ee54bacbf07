"""Policies keep pods and claims as Sluice made them."""

from typing import Any

import pytest
from deploy_check import Document
from factories.cluster import admission
from unit.deploy.policy_engine import GATED, OURS, Rendering, denials, evaluate, pod, policy_of, refused

from sluice.contracts.dra.names import DEVICE_CLASS, DRIVER
from sluice.contracts.kube import names

MANAGED = {"name": "p", "labels": {names.LABEL_MANAGED: names.MANAGED}, "annotations": {names.ANNOTATION_REQUEST: "{}"}}
NO_OPENING = "only Sluice opens the gate sluice.dev/slice: the pod waits for its slice (kubectl describe pod shows why)"
NO_CHANGE = "sluice.dev annotations of an existing pod may not change: "


def changed(before: Document, after: Document, *, may_bind: bool = False) -> dict[str, Any]:
    request = {"operation": "UPDATE", "namespace": "team"}
    return {"oldObject": before, "object": after, "request": request, "authorizer": {"may_bind": may_bind}}


NO_IGNORING = "a pod of Sluice cannot get the label sluice.dev/ignore: delete it and create it with that label"
NO_UNLABELLING = "the label sluice.dev/managed is set by Sluice and stays as long as the pod"
ASK, ALLOCATION = names.ANNOTATION_REQUEST, names.GRANTED_ALLOCATION


def gated(**metadata: Any) -> Document:
    """A pod of ours that waits behind its gate, with other metadata."""
    return pod(metadata={**MANAGED, **metadata}, **GATED)


def labelled(label: str, value: str = "") -> Document:
    return gated(labels={**MANAGED["labels"], label: value})


def annotated(key: str, value: str) -> Document:
    return gated(annotations={**MANAGED["annotations"], key: value})


WAITING = gated()
CHANGES = {
    "opens the gate": (pod(metadata=MANAGED), NO_OPENING),
    "writes a grant": (annotated(OURS, "GPU-1"), f"{NO_CHANGE}{OURS}"),
    "asks for something else": (annotated(ASK, '{"x":1}'), f"{NO_CHANGE}{ASK}"),
    "takes the ask back": (gated(annotations={}), f"{NO_CHANGE}{ASK}"),
    "writes which allocation it has": (annotated(ALLOCATION, "u_r_1"), f"{NO_CHANGE}{ALLOCATION}"),
    "has it ignored": (labelled(names.LABEL_IGNORE), NO_IGNORING),
    "takes the label off": (gated(labels={}), NO_UNLABELLING),
}


@pytest.mark.parametrize("what", CHANGES)
def test_only_who_binds_slices_changes_what_is_ours(rendered: Rendering, what):
    """A pod whose tenant opens its gate runs on another's device."""
    after, sentence = CHANGES[what]
    policy = policy_of(rendered, "sluice-keep")
    assert denials(policy, changed(WAITING, after)) == [sentence]
    assert denials(policy, changed(WAITING, after, may_bind=True)) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (WAITING, annotated("other", "x")),
        (WAITING, labelled("app", "x")),
        (WAITING, {**WAITING, "status": {"phase": "Running"}}),
        (pod(), pod(metadata={"name": "p", "labels": {"app": "x"}})),
        (pod(), pod(metadata={"name": "p", "labels": {names.LABEL_IGNORE: ""}})),
        (pod(), pod(metadata={"name": "p", "annotations": {"another.example/x": "y"}})),
    ],
    ids=["an annotation", "a label", "the status", "a pod that is not ours", "is ignored", "its annotations"],
)
def test_everything_else_of_a_pod_may_change(rendered: Rendering, before, after):
    """The kubelet, controllers and people go on as always."""
    assert denials(policy_of(rendered, "sluice-keep"), changed(before, after)) == []


def test_a_grant_does_not_come_in_by_a_binding(rendered: Rendering):
    said = "a Binding may not bring annotations of sluice.dev onto its pod"
    for key in (OURS, ALLOCATION):
        with_grant = {"metadata": {"name": "p", "annotations": {key: "all"}}}
        assert refused(rendered, "sluice-bindings", with_grant) == [said]
    assert refused(rendered, "sluice-bindings", {"metadata": {"name": "p"}}) == []


@pytest.mark.parametrize("label", [names.LABEL_MANAGED, names.LABEL_IGNORE])
def test_our_label_does_not_go_by_a_binding(rendered: Rendering, label):
    """A Binding's labels are copied over the pod's (from 1.35): it would leave the watch as if deleted."""
    brings = {"metadata": {"name": "p", "labels": {label: "false", "topology.kubernetes.io/zone": "a"}}}
    said = "a Binding may not bring labels of sluice.dev onto its pod"
    assert refused(rendered, "sluice-bindings", brings) == [said]
    del brings["metadata"]["labels"][label]
    assert refused(rendered, "sluice-bindings", brings) == []


ASKS = {
    "our annotation": pod(metadata={"annotations": {"sluice.dev/profile": "1g.5gb"}}),
    "our annotation for a container": pod(metadata={"annotations": {"main.sluice.dev/memory": "8Gi"}}),
    "FaST-GShare": pod(metadata={"annotations": {"fastgshare/gpu_mem": "1"}}),
    "our gate by hand": pod(**GATED),
    "our label by hand": pod(metadata={"labels": {names.LABEL_MANAGED: "x"}}),
    "NVIDIA's runtime by its class": pod(runtimeClassName="nvidia"),
    "another class of NVIDIA's runtime": pod(runtimeClassName="nvidia-cdi"),
    "an init container": pod(initContainers=[{"name": "i", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]),
    **{
        name: {**pod(), "spec": {"containers": [{"name": "main", "resources": {"limits": {name: "1"}}}]}}
        for name in ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/mig-1g.5gb", "volcano.sh/vgpu-memory")
    },
}
LEFT_ALONE = {
    "another runtime": pod(runtimeClassName="kata"),
    "the GPU operator's own": pod(metadata={"namespace": "gpu-operator"}, runtimeClassName="nvidia"),
    "no GPU": pod(),
    "other resources": {**pod(), "spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "1"}}}]}},
    "told to be ignored": pod(metadata={"labels": {names.LABEL_IGNORE: ""}, "annotations": {"sluice.dev/gpus": "1"}}),
    "a mirror pod": pod(metadata={"annotations": {"kubernetes.io/config.mirror": "x", "sluice.dev/gpus": "1"}}),
}


def is_sent(rendered: Rendering, manifest: Document) -> bool:
    """Whether the API server asks the webhook about a pod; the same for every default mode."""
    (config,) = [each for each in rendered("single") if each["kind"] == "MutatingWebhookConfiguration"]
    (answer,) = {
        all(evaluate(condition["expression"], {"object": manifest}) for condition in webhook["matchConditions"])
        for webhook in config["webhooks"]
    }
    return answer


@pytest.mark.parametrize("what", ASKS)
def test_who_asks_for_gpus_is_seen(rendered: Rendering, what):
    """A pod that is not sent to the webhook gets no gate, and waits for ever or runs on anything."""
    assert is_sent(rendered, ASKS[what])


@pytest.mark.parametrize("namespace", names.NVIDIA_NAMESPACES)
def test_programs_that_must_see_all_gpus_are_not_hidden_them(rendered: Rendering, namespace):
    """`sluice simulate` says of them what the API server does."""
    runtime = {"runtimeClassName": names.NVIDIA_CLASSES}
    assert is_sent(rendered, pod(metadata={"namespace": "research"}, **runtime))
    assert not is_sent(rendered, pod(metadata={"namespace": namespace}, **runtime))


@pytest.mark.parametrize("what", LEFT_ALONE)
def test_who_does_not_ask_does_not_depend_on_us(rendered: Rendering, what):
    assert not is_sent(rendered, LEFT_ALONE[what])


TWO_GPUS = admission.container(resources=admission.gpu(gpu="2", gpumem="8000"))
MADE_BY_THE_WEBHOOK = {
    "a profile": admission.pod(annotations={"sluice.dev/profile": "1g.5gb"}),
    "a share": admission.pod(annotations={"sluice.dev/mode": "mps", "sluice.dev/memory": "8Gi"}),
    "the device plugin's word": admission.pod(admission.container(resources=admission.gpu(mig_1g_5gb="1"))),
    "one of two containers": admission.pod(TWO_GPUS, admission.container("side")),
    "an init container": admission.pod(TWO_GPUS, init=[admission.container("first")]),
}


@pytest.mark.parametrize("what", MADE_BY_THE_WEBHOOK)
def test_what_the_webhook_makes_passes_the_policies(rendered: Rendering, what):
    """Policies run after it: one that refuses its work refuses every GPU pod of the cluster."""
    manifest = admission.taken(MADE_BY_THE_WEBHOOK[what])
    assert is_sent(rendered, MADE_BY_THE_WEBHOOK[what])
    assert is_sent(rendered, manifest), "it is asked again when another webhook has changed the pod"
    assert refused(rendered, "sluice-no-side-door", manifest) == []


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
    about = {"name": CLAIM_NAME, "labels": labels, "ownerReferences": OWNERS if owners is None else owners}
    spec = {"devices": {"requests": [{"name": "main", "exactly": {"deviceClassName": DEVICE_CLASS}}]}}
    return {"metadata": about, "spec": spec, "status": status}


def allocated(driver: str = DRIVER, *, reserved: tuple[str, ...] = ("u1",)) -> Document:
    results = [{"request": "main", "driver": driver, "pool": "n1", "device": "d"}]
    consumers = [{"resource": "pods", "name": uid, "uid": uid} for uid in reserved]
    return {"allocation": {"devices": {"results": results}}, "reservedFor": consumers}


NEW = {"operation": "CREATE", "namespace": "team"}
REFUSED = {
    "makes one that looks like ours": ({"object": claim(), "request": NEW}, ONLY_OURS),
    "takes the label off": (changed(claim(), claim(managed=False)), ONLY_OURS),
    "marks another's": (changed(claim(managed=False, owners=[]), claim(owners=[])), ONLY_OURS),
    "moves it to another pod": (changed(claim(), claim(owners=[{"kind": "Pod", "uid": "u2"}])), ONE_OWNER),
    "allocates our devices": (changed(claim(managed=False), claim(managed=False, **allocated())), ONE_DRIVER),
}


@pytest.mark.parametrize("what", REFUSED)
def test_only_who_binds_slices_makes_and_allocates_claims_of_ours(rendered: Rendering, what):
    """A pod that could would give itself the device of another pod."""
    asked, sentence = REFUSED[what]
    policy = policy_of(rendered, "sluice-claims")
    assert denials(policy, asked) == [sentence]
    assert denials(policy, {**asked, "authorizer": {"may_bind": True}}) == []


@pytest.mark.parametrize("may_bind", [True, False])
def test_a_claim_of_one_pod_is_reserved_for_no_other(rendered: Rendering, may_bind):
    """The scheduler reserves a claim for every pod that names it, and both would get the device."""
    before, after = claim(**allocated()), claim(**allocated(reserved=("u1", "u2")))
    assert denials(policy_of(rendered, "sluice-claims"), changed(before, after, may_bind=may_bind)) == [ONE_POD]


USERS = {"managed": False, "owners": []}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (claim(**allocated()), claim()),
        (claim(**allocated()), claim(**allocated(reserved=()))),
        (claim(**USERS, **allocated()), claim(**USERS, **allocated(reserved=("a", "b")))),
        (claim(**USERS), claim(**USERS, **allocated("nic.example.com"))),
    ],
    ids=["deallocated", "unreserved", "a user's own for two pods", "of another driver"],
)
def test_what_the_controllers_of_a_cluster_do_passes(rendered: Rendering, before, after):
    """A claim that could not be let go would hold its device forever."""
    assert denials(policy_of(rendered, "sluice-claims"), changed(before, after)) == []


OURS_CLASS, ALL = {"deviceClassName": DEVICE_CLASS}, {"allocationMode": "All"}
MAY_NOT_SET = "a request of the class sluice.dev may not set"
SHOWS_OTHERS, SET_COUNT = "which shows others' devices: leave it out", "set count to the number of devices"


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"exactly": OURS_CLASS | {"adminAccess": True}}, f"{MAY_NOT_SET} adminAccess, {SHOWS_OTHERS}"),
        ({"exactly": OURS_CLASS | ALL}, f"{MAY_NOT_SET} allocationMode All: {SET_COUNT}"),
        ({"firstAvailable": [OURS_CLASS | ALL | {"name": "a"}]}, f"{MAY_NOT_SET} allocationMode All: {SET_COUNT}"),
        ({"exactly": {"deviceClassName": DEVICE_CLASS, "count": 2}}, ""),
        ({"exactly": {"deviceClassName": "nic.example.com", "adminAccess": True}}, ""),
    ],
)
@pytest.mark.parametrize("kind", ["resourceclaims", "resourceclaimtemplates"])
def test_what_a_claim_may_not_ask_for_is_refused_with_what_to_write(rendered: Rendering, kind, request_, sentence):
    """It would never be allocated; in a template the pod would be the first to find out."""
    spec = {"devices": {"requests": [{"name": "main", **request_}]}}
    made = {"metadata": {"name": "c"}, "spec": {"spec": spec} if kind == "resourceclaimtemplates" else spec}
    request = {"operation": "CREATE", "resource": {"resource": kind}}
    assert refused(rendered, "sluice-claim-requests", made, request=request) == ([sentence] if sentence else [])


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (pod(resourceClaims=[{"name": "x", "resourceClaimName": CLAIM_NAME}]), [NO_SHARING]),
        (pod(resourceClaims=[{"name": "x", "resourceClaimName": CLAIM_NAME}], **GATED), [NO_SHARING]),
        (pod(resourceClaims=[{"name": "sluice", "resourceClaimName": CLAIM_NAME}], **GATED), []),
        (pod(resourceClaims=[{"name": "x", "resourceClaimName": "sluice-demo"}]), []),
        (pod(resourceClaims=[{"name": "x", "resourceClaimTemplateName": "t"}]), []),
    ],
)
def test_a_claim_of_one_pod_is_named_by_no_other(rendered: Rendering, made, expected):
    """Also by pods that ask for no GPU, which the webhook never sees."""
    assert refused(rendered, "sluice-no-side-door", made) == expected

"""Who may change what is ours on a pod, and which pods are sent to the webhook."""

from typing import Any

import pytest
from deploy_check import Document
from factories.cluster import admission
from unit.deploy.policy_engine import GATED, OURS, Rendering, denials, evaluate, pod, policy_of

from sluice.contracts.kube import names

MANAGED = {"name": "p", "labels": {names.LABEL_MANAGED: names.MANAGED}, "annotations": {names.ANNOTATION_REQUEST: "{}"}}
NO_OPENING = "only Sluice opens the gate sluice.dev/slice: the pod waits for its slice (kubectl describe pod shows why)"
NO_CHANGE = "sluice.dev annotations of an existing pod may not change: "


def changed(before: Document, after: Document, *, may_bind: bool = False) -> dict[str, Any]:
    request = {"operation": "UPDATE", "namespace": "team"}
    return {"oldObject": before, "object": after, "request": request, "authorizer": {"may_bind": may_bind}}


def with_annotations(**more: str) -> Document:
    """The metadata of a pod of ours with further annotations."""
    return {**MANAGED, "annotations": {**MANAGED["annotations"], **more}}


WAITING = pod(metadata=MANAGED, **GATED)
CHANGES = {
    "opens the gate": (pod(metadata=MANAGED), NO_OPENING),
    "writes a grant": (pod(metadata=with_annotations(**{OURS: "GPU-1"}), **GATED), f"{NO_CHANGE}{OURS}"),
    "asks for something else": (
        pod(metadata=with_annotations(**{names.ANNOTATION_REQUEST: '{"x":1}'}), **GATED),
        f"{NO_CHANGE}{names.ANNOTATION_REQUEST}",
    ),
    "takes the ask back": (
        pod(metadata={**MANAGED, "annotations": {}}, **GATED),
        f"{NO_CHANGE}{names.ANNOTATION_REQUEST}",
    ),
    "writes which allocation it has": (
        pod(metadata=with_annotations(**{names.GRANTED_ALLOCATION: "u_r_1"}), **GATED),
        f"{NO_CHANGE}{names.GRANTED_ALLOCATION}",
    ),
    "has it ignored": (
        pod(metadata={**MANAGED, "labels": {**MANAGED["labels"], names.LABEL_IGNORE: ""}}, **GATED),
        "a pod of Sluice cannot get the label sluice.dev/ignore: delete it and create it with that label",
    ),
    "takes the label off": (
        pod(metadata={**MANAGED, "labels": {}}, **GATED),
        "the label sluice.dev/managed is set by Sluice and stays as long as the pod",
    ),
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
        (WAITING, pod(metadata=with_annotations(other="x"), **GATED)),
        (WAITING, pod(metadata={**MANAGED, "labels": {**MANAGED["labels"], "app": "x"}}, **GATED)),
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
    """A Binding's annotations are copied onto the pod."""
    policy = policy_of(rendered, "sluice-bindings")
    said = "a Binding may not bring annotations of sluice.dev onto its pod"
    for key in (OURS, names.GRANTED_ALLOCATION):
        with_grant = {"metadata": {"name": "p", "annotations": {key: "all"}}}
        assert denials(policy, {"object": with_grant, "request": {"operation": "CREATE"}}) == [said]
    assert denials(policy, {"object": {"metadata": {"name": "p"}}, "request": {"operation": "CREATE"}}) == []


@pytest.mark.parametrize("label", [names.LABEL_MANAGED, names.LABEL_IGNORE])
def test_our_label_does_not_go_by_a_binding(rendered: Rendering, label):
    """A Binding's labels are copied over the pod's (from 1.35): it would leave the watch as if deleted."""
    policy = policy_of(rendered, "sluice-bindings")
    brings = {"metadata": {"name": "p", "labels": {label: "false", "topology.kubernetes.io/zone": "a"}}}
    said = "a Binding may not bring labels of sluice.dev onto its pod"
    assert denials(policy, {"object": brings, "request": {"operation": "CREATE"}}) == [said]
    del brings["metadata"]["labels"][label]
    assert denials(policy, {"object": brings, "request": {"operation": "CREATE"}}) == []


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
    answers = {
        all(evaluate(condition["expression"], {"object": manifest}) for condition in webhook["matchConditions"])
        for webhook in config["webhooks"]
    }
    (answer,) = answers
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
    """With the webhook down, these pods start as ever."""
    assert not is_sent(rendered, LEFT_ALONE[what])


MADE_BY_THE_WEBHOOK = {
    "a profile": admission.pod(annotations={"sluice.dev/profile": "1g.5gb"}),
    "a share": admission.pod(annotations={"sluice.dev/mode": "mps", "sluice.dev/memory": "8Gi"}),
    "the device plugin's word": admission.pod(admission.container(resources=admission.gpu(mig_1g_5gb="1"))),
    "one of two containers": admission.pod(
        admission.container(resources=admission.gpu(gpu="2", gpumem="8000")), admission.container("side")
    ),
    "an init container": admission.pod(
        admission.container(resources=admission.gpu(gpu="1")), init=[admission.container("first")]
    ),
}


@pytest.mark.parametrize("what", MADE_BY_THE_WEBHOOK)
def test_what_the_webhook_makes_passes_the_policies(rendered: Rendering, what):
    """Policies run after it: one that refuses its work refuses every GPU pod of the cluster."""
    manifest = admission.taken(MADE_BY_THE_WEBHOOK[what])
    policy = policy_of(rendered, "sluice-no-side-door")

    assert is_sent(rendered, MADE_BY_THE_WEBHOOK[what])
    assert is_sent(rendered, manifest), "it is asked again when another webhook has changed the pod"
    assert denials(policy, {"object": manifest, "request": {"operation": "CREATE"}}) == []

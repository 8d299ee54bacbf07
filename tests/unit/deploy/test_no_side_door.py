"""No way to a GPU beside Sluice: what policies refuse, in which sentence, and what passes; as on a real server."""

from typing import Any

import pytest
from deploy_check import COMPONENTS, Document
from unit.deploy.policy_engine import GATED, INJECTED, MOUNT, OURS, VOLUME, Rendering, denials, env, pod, policy_of

from sluice.contracts.kube import names

BY_HAND = "GPU environment is set by Sluice, not by hand: main"
NO_GRANT = "annotations of granted.sluice.dev are written by Sluice after creation"
NO_TICKET = "volumes of slice.sluice.dev are added and mounted by Sluice, not by hand"
NOT_BOTH = "a pod labelled sluice.dev/ignore has neither the gate nor the label nor the ask of Sluice"
LEFT_ALONE = NOT_BOTH.replace("a pod labelled", "a pod of a namespace labelled")
NOT_ENABLED = (
    "a pod of a namespace that is not labelled sluice.dev/enabled=true has neither the gate nor the label nor the ask "
    "of Sluice"
)
BY_IMAGE = (
    "under a runtime class of NVIDIA an image chooses its GPUs; request them from Sluice, or set "
    "NVIDIA_VISIBLE_DEVICES=void in: main"
)
BY_MOUNT = "a mount at nvidia-container-devices selects GPUs by hand; request them from Sluice"
LOUD_DEBUG = "a container for debugging sets NVIDIA_VISIBLE_DEVICES=void here, else its image chooses GPUs"
NVIDIA = {"runtimeClassName": "nvidia"}
NO_DEBUG = "a container for debugging gets no GPU and no ticket of the pod"


def host(path: str) -> Document:
    return {"name": "h", "hostPath": {"path": path}}


PASS = {
    "a pod that has nothing to do with GPUs": pod(),
    "what the webhook makes": pod(env=[INJECTED], mounts=[MOUNT], volumes=[VOLUME], **GATED),
    "a pod that is to be left alone": pod(metadata={"labels": {names.LABEL_IGNORE: "true"}}),
    "a container without a GPU": pod(env=[env("NVIDIA_VISIBLE_DEVICES", "void")]),
    "GPUs hidden from a library": pod(env=[env("CUDA_VISIBLE_DEVICES", ""), env("CUDA_VISIBLE_DEVICES", "-1")]),
    "one of a pod's own devices, by its index": pod(env=[INJECTED, env("CUDA_VISIBLE_DEVICES", "0,1")], **GATED),
    "another directory of the host": pod(volumes=[host("/home"), host("/run/other"), host("/run/sluicegate")]),
    "monitoring of the host": pod(volumes=[host("/"), host("/var/run"), host("/run")]),
    "another driver of the kubelet's": pod(volumes=[host("/var/lib/kubelet/pods"), host("/var/lib/kubelet/plugins")]),
    "a pod of NVIDIA's operator": pod(metadata={"namespace": "gpu-operator"}, **NVIDIA),
    "an image under NVIDIA's runtime with void": pod(env=[env("NVIDIA_VISIBLE_DEVICES", "void")], **NVIDIA),
    "what the webhook makes under NVIDIA's runtime": pod(env=[INJECTED], volumes=[VOLUME], **GATED, **NVIDIA),
    "processes of the host": pod(volumes=[host("/proc"), host("/etc")]),
    "a mirror pod": pod(
        env=[env("NVIDIA_VISIBLE_DEVICES", "all")], metadata={"annotations": {"kubernetes.io/config.mirror": "x"}}
    ),
}
REFUSED = {
    "all GPUs by hand": (pod(env=[env("NVIDIA_VISIBLE_DEVICES", "all")]), BY_HAND),
    "a second entry after a harmless one": (
        pod(env=[env("NVIDIA_VISIBLE_DEVICES", "void"), env("NVIDIA_VISIBLE_DEVICES", "0")]),
        BY_HAND,
    ),
    "a GPU for a library by hand": (pod(env=[env("CUDA_VISIBLE_DEVICES", "0")]), BY_HAND),
    "a GPU for a library by its UUID": (pod(env=[env("CUDA_VISIBLE_DEVICES", "0,MIG-1")], **GATED), BY_HAND),
    "a GPU from a ConfigMap": (
        pod(env=[{"name": "CUDA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]),
        BY_HAND,
    ),
    "somebody else's MPS daemon": (pod(env=[env("CUDA_MPS_PIPE_DIRECTORY", "/x")]), BY_HAND),
    "an image under NVIDIA's runtime": (pod(**NVIDIA), BY_IMAGE),
    "an image under a runtime of NVIDIA's family, with an envFrom": (pod(runtimeClassName="nvidia-cdi"), BY_IMAGE),
    "devices by mounts": (pod(mounts=[{"name": "n", "mountPath": "/var/run//nvidia-container-devices/all"}]), BY_MOUNT),
    "another container's grant": (
        pod(
            env=[
                {
                    "name": names.ENV_VISIBLE_DEVICES,
                    "valueFrom": {"fieldRef": {"fieldPath": names.granted_field_path("other", names.VISIBLE_DEVICES)}},
                }
            ],
            **GATED,
        ),
        BY_HAND,
    ),
    "our variable without our gate": (pod(env=[INJECTED]), BY_HAND),
    "a grant at creation": (pod(metadata={"annotations": {OURS: "GPU-1"}}), NO_GRANT),
    "a grant for no container": (pod(metadata={"annotations": {"granted.sluice.dev/x": "y"}}), NO_GRANT),
    "an allocation at creation": (pod(metadata={"annotations": {names.GRANTED_ALLOCATION: "u_r_1"}}), NO_GRANT),
    "our gate where admission ignores pods": (pod(metadata={"labels": {names.LABEL_IGNORE: ""}}, **GATED), NOT_BOTH),
    "our label where admission ignores pods": (
        pod(metadata={"labels": {names.LABEL_IGNORE: "", names.LABEL_MANAGED: names.MANAGED}}),
        NOT_BOTH,
    ),
    "a request where admission ignores pods": (
        pod(metadata={"labels": {names.LABEL_IGNORE: ""}, "annotations": {names.ANNOTATION_REQUEST: "{}"}}),
        NOT_BOTH,
    ),
    "our volume without our gate": (pod(volumes=[VOLUME], mounts=[MOUNT]), NO_TICKET),
    "the whole volume": (pod(volumes=[VOLUME], mounts=[{**MOUNT, "subPathExpr": "."}], **GATED), NO_TICKET),
    "our volume, to write on": (pod(volumes=[VOLUME], mounts=[{**MOUNT, "readOnly": False}], **GATED), NO_TICKET),
    "our volume under another name": (
        pod(volumes=[{**VOLUME, "name": "x"}], mounts=[{"name": "x", "mountPath": "/x"}], **GATED),
        NO_TICKET,
    ),
}


@pytest.mark.parametrize("what", PASS)
def test_what_is_harmless_passes(rendered: Rendering, what):
    """A rule that is too wide stops a cluster that has nothing to do with us."""
    policy = policy_of(rendered, "sluice-no-side-door")
    assert denials(policy, {"object": PASS[what], "request": {"operation": "CREATE"}}) == []


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_reach_a_gpu_beside_us_is_refused(rendered: Rendering, what):
    """The sentence is what a person reads in `kubectl apply`, or in the events of a ReplicaSet."""
    manifest, sentence = REFUSED[what]
    policy = policy_of(rendered, "sluice-no-side-door")
    assert denials(policy, {"object": manifest, "request": {"operation": "CREATE"}}) == [sentence]


MARKS = {
    "our gate": pod(**GATED),
    "our label": pod(metadata={"labels": {names.LABEL_MANAGED: names.MANAGED}}),
    "an ask": pod(metadata={"annotations": {names.ANNOTATION_REQUEST: "{}"}}),
}


@pytest.mark.parametrize("mark", MARKS)
def test_nobody_is_served_from_a_namespace_that_is_left_alone(rendered: Rendering, mark):
    """A pod that was let in elsewhere would get a slice unseen. Who takes GPUs without us is let alone there."""
    policy = policy_of(rendered, "sluice-left-alone")
    (where,) = policy["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    free = pod(env=[env("NVIDIA_VISIBLE_DEVICES", "all")])

    assert where == {"key": names.LABEL_IGNORE, "operator": "Exists"}
    assert denials(policy, {"object": MARKS[mark], "request": {"operation": "CREATE"}}) == [LEFT_ALONE]
    assert denials(policy, {"object": free, "request": {"operation": "CREATE"}}) == []


@pytest.mark.parametrize("mark", MARKS)
def test_with_opt_in_nobody_is_served_past_the_webhook(rendered: Rendering, mark):
    """A pod that was let in once, exported and made privileged, would get a slice where no webhook looks at it."""
    policy = policy_of(rendered, "sluice-no-side-door", ["opt-in"])
    asked = {"object": MARKS[mark], "request": {"operation": "CREATE"}}
    enabled = {"metadata": {"labels": {names.LABEL_ENABLED: "true"}}}

    assert denials(policy, asked) == [NOT_ENABLED]
    assert denials(policy, {**asked, "object": pod()}) == []
    assert denials(policy, {**asked, "namespaceObject": enabled}) == []
    half = {"metadata": {"labels": {names.LABEL_ENABLED: ""}}}
    assert denials(policy, {**asked, "namespaceObject": half}) == [NOT_ENABLED]


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/run/sluice", "/run/sluice/"),
        ("/run//sluice/mps", "/run/sluice/mps/"),
        ("/run/./sluice/", "/run/sluice/"),
        ("/var/run/sluice/pods", "/var/run/sluice/pods/"),
        ("//var/./lib//sluice", "/var/lib/sluice/"),
        ("/etc/sluice", "/etc/sluice/"),
        ("/var/lib/kubelet/plugins/slice.sluice.dev", "/var/lib/kubelet/plugins/slice.sluice.dev/"),
    ],
)
def test_no_spelling_leads_into_our_directories(rendered: Rendering, path, shown):
    """Another tenant's MPS daemon is behind them."""
    policy = policy_of(rendered, "sluice-no-side-door")
    expected = f"a volume of type hostPath may not reach into the directories of Sluice: {shown}"
    for spec in ({}, GATED):
        found = denials(policy, {"object": pod(volumes=[host(path)], **spec), "request": {"operation": "CREATE"}})
        assert expected in found


@pytest.mark.parametrize(
    "path",
    ["/", "//", "/run", "/run/", "/var", "/var/run", "/var/lib", "/var/lib/kubelet/pods/x", "/proc", "/proc/1/root"],
)
def test_a_pod_with_a_slice_may_not_mount_what_holds_them(rendered: Rendering, path):
    """Pods without a slice may, unless the operator wants it stricter."""
    loose, strict = (policy_of(rendered, "sluice-no-side-door", each) for each in ((), COMPONENTS))
    for policy, spec, refused in ((loose, GATED, True), (loose, {}, False), (strict, {}, True)):
        found = denials(policy, {"object": pod(volumes=[host(path)], **spec), "request": {"operation": "CREATE"}})
        assert bool(found) is refused
        assert all("may not mount a directory of the host" in each for each in found)


def debugging(container: Document) -> dict[str, Any]:
    """The request that adds a container for debugging to an opened pod of ours."""
    opened = pod(env=[INJECTED], mounts=[MOUNT], volumes=[VOLUME], ephemeralContainers=[container])
    return {"object": opened, "oldObject": opened, "request": {"operation": "UPDATE"}}


def test_a_person_can_debug_a_pod_of_ours(rendered: Rendering):
    """Its gate is gone by then, and its own environment must not be held against it."""
    policy = policy_of(rendered, "sluice-no-side-door")
    assert denials(policy, debugging({"name": "debug", "image": "i"})) == []


@pytest.mark.parametrize(
    "container",
    [
        {"name": "d", "image": "i", "env": [env("NVIDIA_VISIBLE_DEVICES", "all")]},
        {"name": "d", "image": "i", "volumeMounts": [{"name": names.VOLUME, "mountPath": "/x"}]},
    ],
    ids=["all GPUs", "the tickets"],
)
def test_debugging_is_no_way_to_a_gpu(rendered: Rendering, container):
    """It was, on a server without this rule."""
    policy = policy_of(rendered, "sluice-no-side-door")
    assert denials(policy, debugging(container)) == [NO_DEBUG]


def test_debugging_by_an_image_that_asks_for_all_gpus_is_no_way_either(rendered: Rendering):
    """Also where the webhook never looked; a container from before this rule stays no obstacle."""
    policy = policy_of(rendered, "sluice-no-side-door")
    loud, quiet = {"name": "d", "image": "i"}, {"name": "q", "env": [env("NVIDIA_VISIBLE_DEVICES", "void")]}
    for marks in (NVIDIA, {"metadata": {"labels": {names.LABEL_MANAGED: names.MANAGED}}}):
        old, new = (pod(ephemeralContainers=each, **marks) for each in ([loud], [loud, {**loud, "name": "e"}]))
        asked = {"oldObject": old, "request": {"operation": "UPDATE"}}
        assert denials(policy, {"object": new, **asked}) == [LOUD_DEBUG]
        assert denials(policy, {"object": pod(ephemeralContainers=[loud, quiet], **marks), **asked}) == []

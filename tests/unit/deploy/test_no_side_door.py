"""No way to a GPU beside Sluice: what policies refuse, in which sentence, and what passes; as on a real server."""

import pytest
from deploy_check import COMPONENTS, Document
from unit.deploy.policy_engine import GATED, INJECTED, MOUNT, OURS, VOLUME, Rendering, env, pod, policy_of, refused

from sluice.contracts.kube import names

BY_HAND = "GPU environment is set by Sluice, not by hand: main"
NO_GRANT = "annotations of granted.sluice.dev are written by Sluice after creation"
NO_TICKET = "volumes of slice.sluice.dev are added and mounted by Sluice, not by hand"
NOT_BOTH = "a pod labelled sluice.dev/ignore has neither the gate nor the label nor the ask of Sluice"
LEFT_ALONE = NOT_BOTH.replace("a pod labelled", "a pod of a namespace labelled")
NOT_ENABLED = LEFT_ALONE.replace("labelled sluice.dev/ignore", "that is not labelled sluice.dev/enabled=true")
BY_IMAGE = (
    "under a runtime class of NVIDIA an image chooses its GPUs; request them from Sluice, or set "
    "NVIDIA_VISIBLE_DEVICES=void in: main"
)
BY_MOUNT = "a mount at nvidia-container-devices selects GPUs by hand; request them from Sluice"
LOUD_DEBUG = "a container for debugging sets NVIDIA_VISIBLE_DEVICES=void here, else its image chooses GPUs"
NVIDIA = {"runtimeClassName": "nvidia"}
NO_DEBUG = "a container for debugging gets no GPU and no ticket of the pod"
ALL_GPUS = env("NVIDIA_VISIBLE_DEVICES", "all")
VOID = env("NVIDIA_VISIBLE_DEVICES", "void")
AT_X = {"name": "x", "mountPath": "/x"}
FROM_A_MAP = {"name": "CUDA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}
OF_ANOTHER = {"valueFrom": {"fieldRef": {"fieldPath": names.granted_field_path("other", names.VISIBLE_DEVICES)}}}
AN_ASK = {"annotations": {names.ANNOTATION_REQUEST: "{}"}}
IGNORED, OUR_LABEL = {names.LABEL_IGNORE: ""}, {names.LABEL_MANAGED: names.MANAGED}


def host(path: str) -> Document:
    return {"name": "h", "hostPath": {"path": path}}


PASS = {
    "a pod that has nothing to do with GPUs": pod(),
    "what the webhook makes": pod(env=[INJECTED], mounts=[MOUNT], volumes=[VOLUME], **GATED),
    "a pod that is to be left alone": pod(metadata={"labels": {names.LABEL_IGNORE: "true"}}),
    "a container without a GPU": pod(env=[VOID]),
    "GPUs hidden from a library": pod(env=[env("CUDA_VISIBLE_DEVICES", ""), env("CUDA_VISIBLE_DEVICES", "-1")]),
    "one of a pod's own devices, by its index": pod(env=[INJECTED, env("CUDA_VISIBLE_DEVICES", "0,1")], **GATED),
    "another directory of the host": pod(volumes=[host("/home"), host("/run/other"), host("/run/sluicegate")]),
    "monitoring of the host": pod(volumes=[host("/"), host("/var/run"), host("/run")]),
    "another driver of the kubelet's": pod(volumes=[host("/var/lib/kubelet/pods"), host("/var/lib/kubelet/plugins")]),
    "a pod of NVIDIA's operator": pod(metadata={"namespace": "gpu-operator"}, **NVIDIA),
    "an image under NVIDIA's runtime with void": pod(env=[VOID], **NVIDIA),
    "what the webhook makes under NVIDIA's runtime": pod(env=[INJECTED], volumes=[VOLUME], **GATED, **NVIDIA),
    "processes of the host": pod(volumes=[host("/proc"), host("/etc")]),
    "a mirror pod": pod(env=[ALL_GPUS], metadata={"annotations": {"kubernetes.io/config.mirror": "x"}}),
}
REFUSED = {
    "all GPUs by hand": (pod(env=[ALL_GPUS]), BY_HAND),
    "a second entry after a harmless one": (pod(env=[VOID, env("NVIDIA_VISIBLE_DEVICES", "0")]), BY_HAND),
    "a GPU for a library by hand": (pod(env=[env("CUDA_VISIBLE_DEVICES", "0")]), BY_HAND),
    "a GPU for a library by its UUID": (pod(env=[env("CUDA_VISIBLE_DEVICES", "0,MIG-1")], **GATED), BY_HAND),
    "a GPU from a ConfigMap": (pod(env=[FROM_A_MAP]), BY_HAND),
    "another pod's MPS daemon": (pod(env=[env("CUDA_MPS_PIPE_DIRECTORY", "/x")]), BY_HAND),
    "an image under NVIDIA's runtime": (pod(**NVIDIA), BY_IMAGE),
    "an image under a runtime of NVIDIA's family, with an envFrom": (pod(runtimeClassName="nvidia-cdi"), BY_IMAGE),
    "devices by mounts": (pod(mounts=[{"name": "n", "mountPath": "/var/run//nvidia-container-devices/all"}]), BY_MOUNT),
    "another container's grant": (pod(env=[INJECTED | OF_ANOTHER], **GATED), BY_HAND),
    "our variable without our gate": (pod(env=[INJECTED]), BY_HAND),
    "a grant at creation": (pod(metadata={"annotations": {OURS: "GPU-1"}}), NO_GRANT),
    "a grant for no container": (pod(metadata={"annotations": {"granted.sluice.dev/x": "y"}}), NO_GRANT),
    "an allocation at creation": (pod(metadata={"annotations": {names.GRANTED_ALLOCATION: "u_r_1"}}), NO_GRANT),
    "our gate where admission ignores pods": (pod(metadata={"labels": IGNORED}, **GATED), NOT_BOTH),
    "our label where admission ignores pods": (pod(metadata={"labels": IGNORED | OUR_LABEL}), NOT_BOTH),
    "a request where admission ignores pods": (pod(metadata={"labels": IGNORED} | AN_ASK), NOT_BOTH),
    "our volume without our gate": (pod(volumes=[VOLUME], mounts=[MOUNT]), NO_TICKET),
    "the whole volume": (pod(volumes=[VOLUME], mounts=[{**MOUNT, "subPathExpr": "."}], **GATED), NO_TICKET),
    "our volume, to write on": (pod(volumes=[VOLUME], mounts=[{**MOUNT, "readOnly": False}], **GATED), NO_TICKET),
    "our volume under another name": (pod(volumes=[{**VOLUME, "name": "x"}], mounts=[AT_X], **GATED), NO_TICKET),
}


@pytest.mark.parametrize("what", PASS)
def test_what_is_harmless_passes(rendered: Rendering, what):
    """A rule that is too wide stops a cluster that has nothing to do with us."""
    assert refused(rendered, "sluice-no-side-door", PASS[what]) == []


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_reach_a_gpu_beside_us_is_refused(rendered: Rendering, what):
    """The sentence is what a person reads in `kubectl apply`, or in the events of a ReplicaSet."""
    manifest, sentence = REFUSED[what]
    assert refused(rendered, "sluice-no-side-door", manifest) == [sentence]


MARKS = {
    "our gate": pod(**GATED),
    "our label": pod(metadata={"labels": OUR_LABEL}),
    "an ask": pod(metadata=AN_ASK),
}


@pytest.mark.parametrize("mark", MARKS)
def test_no_pod_is_served_from_a_namespace_that_is_left_alone(rendered: Rendering, mark):
    """A pod that was let in elsewhere would get a slice unseen. Who takes GPUs without us is let alone there."""
    policy = policy_of(rendered, "sluice-left-alone")
    (where,) = policy["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    assert where == {"key": names.LABEL_IGNORE, "operator": "Exists"}
    assert refused(rendered, "sluice-left-alone", MARKS[mark]) == [LEFT_ALONE]
    assert refused(rendered, "sluice-left-alone", pod(env=[ALL_GPUS])) == []


@pytest.mark.parametrize("mark", MARKS)
def test_with_opt_in_no_pod_is_served_past_the_webhook(rendered: Rendering, mark):
    """A pod that was let in once, exported and made privileged, would get a slice where no webhook looks at it."""
    policy = (rendered, "sluice-no-side-door", MARKS[mark], ["opt-in"])
    assert refused(*policy) == [NOT_ENABLED]
    assert refused(rendered, "sluice-no-side-door", pod(), ["opt-in"]) == []
    for label, sentences in (("true", []), ("", [NOT_ENABLED])):
        namespace = {"metadata": {"labels": {names.LABEL_ENABLED: label}}}
        assert refused(*policy, namespaceObject=namespace) == sentences


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
    expected = f"a volume of type hostPath may not reach into the directories of Sluice: {shown}"
    for spec in ({}, GATED):
        assert expected in refused(rendered, "sluice-no-side-door", pod(volumes=[host(path)], **spec))


@pytest.mark.parametrize(
    "path",
    ["/", "//", "/run", "/run/", "/var", "/var/run", "/var/lib", "/var/lib/kubelet/pods/x", "/proc", "/proc/1/root"],
)
def test_a_pod_with_a_slice_may_not_mount_what_holds_them(rendered: Rendering, path):
    """Pods without a slice may, unless the operator wants it stricter."""
    for components, spec, is_refused in (((), GATED, True), ((), {}, False), (COMPONENTS, {}, True)):
        found = refused(rendered, "sluice-no-side-door", pod(volumes=[host(path)], **spec), components)
        assert bool(found) is is_refused
        assert all("may not mount a directory of the host" in each for each in found)


def changed(rendered: Rendering, old: Document, new: Document) -> list[str]:
    """What is said against a change, such as another container for debugging."""
    return refused(rendered, "sluice-no-side-door", new, oldObject=old, request={"operation": "UPDATE"})


@pytest.mark.parametrize(
    ("wants", "sentences"),
    [({}, []), ({"env": [ALL_GPUS]}, [NO_DEBUG]), ({"volumeMounts": [AT_X | {"name": names.VOLUME}]}, [NO_DEBUG])],
    ids=["nothing", "all GPUs", "the tickets"],
)
def test_a_pod_of_ours_can_be_debugged_and_debugging_is_no_way_to_a_gpu(rendered: Rendering, wants, sentences):
    """Its gate is gone by then, and its own environment is no reason to deny it."""
    container = {"name": "d", "image": "i", **wants}
    opened = pod(env=[INJECTED], mounts=[MOUNT], volumes=[VOLUME], ephemeralContainers=[container])
    assert changed(rendered, opened, opened) == sentences


def test_debugging_by_an_image_that_asks_for_all_gpus_is_no_way_either(rendered: Rendering):
    """Also where the webhook never looked; a container from before this rule stays no obstacle."""
    loud, quiet = {"name": "d", "image": "i"}, {"name": "q", "env": [VOID]}
    for marks in (NVIDIA, {"metadata": {"labels": OUR_LABEL}}):
        old = pod(ephemeralContainers=[loud], **marks)
        for added, sentences in (({**loud, "name": "e"}, [LOUD_DEBUG]), (quiet, [])):
            assert changed(rendered, old, pod(ephemeralContainers=[loud, added], **marks)) == sentences

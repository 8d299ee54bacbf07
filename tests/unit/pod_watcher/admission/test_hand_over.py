"""Pods whose devices the kubelet hands over: the claim that admission adds, and claims that a pod may not name."""

import pytest
from factories.cluster.admission import answer, container, container_of, env_of, gpu, pod, sent_patch, taken, why_denied

from sluice.contracts.kube.names import claim_name
from sluice_pod_watcher.admission import AdmissionConfig
from sluice_pod_watcher.shell.webhook.handlers import HandOverFile

DRA = AdmissionConfig(hand_over="dra", runtime_class="nvidia")
CLAIM = claim_name("705ab4f5-6393-11e8-b7cc-42010a800002")
OTHERS = claim_name("another review")
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def uses(made, name):
    return container_of(made, name).get("resources", {}).get("claims", [])


def test_a_pod_gets_a_claim_instead_of_volume_annotations_and_runtime_class_by_exactly_this_patch():
    """What every pod goes through where the kubelet hands over; anything left of the other way would fight CDI."""
    response = answer(pod(container(resources=gpu(gpu="1"))), DRA)
    assert sent_patch(response) == [
        {
            "op": "add",
            "path": "/metadata/annotations",
            "value": {"sluice.dev/request": '{"first":"main","resources":{"main":{"nvidia.com/gpu":"1"}},"version":1}'},
        },
        {"op": "add", "path": "/metadata/labels", "value": {"sluice.dev/managed": "true"}},
        {"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "sluice.dev/slice"}]},
        {"op": "add", "path": "/spec/resourceClaims", "value": [{"name": "sluice", "resourceClaimName": CLAIM}]},
        {"op": "remove", "path": "/spec/containers/0/resources/limits/nvidia.com~1gpu"},
        {"op": "remove", "path": "/spec/containers/0/resources/requests/nvidia.com~1gpu"},
        {"op": "add", "path": "/spec/containers/0/resources/claims", "value": [{"name": "sluice", "request": "main"}]},
        {"op": "add", "path": "/spec/containers/0/env", "value": [VOID]},
    ]


def test_each_container_refers_to_its_own_request_and_an_init_container_to_that_of_its_app():
    """With another's request a container would see another's devices; without one it would see none."""
    train, side = container("train", resources=gpu(gpu="1")), container("side", resources=gpu(**{"mig-1g.5gb": "1"}))
    prep = container("prep", resources=gpu(gpu="1"))
    made = taken(pod(train, side, container("proxy"), init=[prep], annotations={}), DRA)
    for name, request in (("train", "train"), ("side", "side"), ("proxy", None), ("prep", "train")):
        assert uses(made, name) == ([{"name": "sluice", "request": request}] if request else [])
        assert env_of(made, name) == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_a_container_without_resources_gets_its_claim_too():
    """A patch of a path that does not exist would refuse the pod."""
    made = taken(pod(container(), annotations={"sluice.dev/profile": "1g.5gb"}), DRA)
    assert uses(made, "main") == [{"name": "sluice", "request": "main"}]


@pytest.mark.parametrize("mode", ["dra", "tickets"])
def test_a_second_review_follows_the_first_whatever_the_setting_is_now(mode):
    """Two ways of hand-over in one pod would give it two sets of devices, or none."""
    asks = pod(container(resources=gpu(gpu="1"), env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]))
    made = taken(asks, AdmissionConfig(hand_over=mode))
    for later in ("dra", "tickets"):
        response = answer(made, AdmissionConfig(hand_over=later), uid="another")
        assert (response.allowed, sent_patch(response)) == (True, []), response.message


def test_a_container_that_another_webhook_adds_later_gets_no_device():
    """A sidecar of a mesh shares neither the claim nor the GPUs of its node."""
    made = taken(pod(container(resources=gpu(gpu="1"))), DRA)
    made["spec"]["containers"].append(container("proxy"))
    assert sent_patch(answer(made, DRA)) == [{"op": "add", "path": "/spec/containers/1/env", "value": [VOID]}]
    made["spec"]["containers"][1]["resources"] = {"claims": [{"name": "sluice", "request": "main"}]}
    assert why_denied(made, DRA) == (
        "spec.containers[proxy].resources.claims[sluice] = 'main': Sluice gives each container its own devices of this "
        "claim (allowed: leave it out)"
    )


@pytest.mark.parametrize("resources", [gpu(gpu="1"), {}])
def test_the_claim_of_another_pod_is_refused(resources):
    """Its devices would be shared with a pod that never asked for a slice."""
    made = pod(container(resources=resources), resourceClaims=[{"name": "mine", "resourceClaimName": OTHERS}])
    assert why_denied(made, DRA) == (
        f"spec.resourceClaims[mine].resourceClaimName = '{OTHERS}': Sluice made this ResourceClaim for one other pod "
        "(allowed: a ResourceClaim of your own, or a template)"
    )


def test_the_name_of_our_claim_is_refused_by_hand():
    made = pod(container(resources=gpu(gpu="1")), resourceClaims=[{"name": "sluice", "resourceClaimName": "x"}])
    assert why_denied(made, DRA).startswith(
        "spec.resourceClaims[sluice] = 'x': this name belongs to the claim that Sluice adds"
    )


@pytest.mark.parametrize("name", ["sluice.dev", "gpu.nvidia.com", "mig.nvidia.com"])
def test_the_extended_resource_of_a_class_is_refused_with_what_to_write_instead(name):
    """The scheduler makes such a claim itself, finds no device, and the pod would wait forever."""
    key = f"deviceclass.resource.kubernetes.io/{name}"
    amounts = {"limits": {key: "1"}}
    assert why_denied(pod(container(resources=amounts))) == (
        f"spec.containers[main].resources.limits[{key}] = '1': the scheduler itself would allocate {name} for it, past "
        f"Sluice (allowed: a ResourceClaimTemplate of class {name}, or nvidia.com/gpu)"
    )


def test_more_containers_than_a_claim_holds_are_refused_by_number():
    """The API server would refuse the claim later, and the pod would wait for it."""
    listed = [container(f"c{number}", resources=gpu(**{"mig-1g.5gb": "1"})) for number in range(33)]
    assert why_denied(pod(*listed), DRA) == (
        "spec.containers = '33': 33 containers request GPUs, and a ResourceClaim holds 32 requests (allowed: at most "
        "32, or a namespace labelled sluice.dev/hand-over=tickets)"
    )
    assert answer(pod(*listed), AdmissionConfig()).allowed


@pytest.mark.parametrize(
    ("text", "mode"), [(None, "tickets"), ("dra", "dra"), ("dra\n", "dra"), ("tickets", "tickets"), ("DRA", "tickets")]
)
def test_the_mounted_value_decides_and_tickets_where_there_is_none(tmp_path, text, mode):
    """A pod that waits for a claim which no kubelet prepares never starts; tickets work everywhere."""
    path = tmp_path / "mode"
    now = HandOverFile(path)
    assert now() == "tickets"
    if text is not None:
        path.write_text(text)
    assert now() == mode


def test_the_extended_resource_of_another_class_is_left_alone():
    """Other drivers publish their devices."""
    key = "deviceclass.resource.kubernetes.io/nic.example.com"
    assert answer(pod(container(resources={"limits": {key: "1"}}))).allowed

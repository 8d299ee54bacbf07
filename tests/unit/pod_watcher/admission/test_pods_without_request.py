"""Pods that ask for nothing, by claims, or in unusual names."""

import re

import pytest
from factories.cluster.admission import answer, container, env_of, gpu, patched, pod, sent_patch, taken

from sluice.contracts.kube import names
from sluice_pod_watcher.admission import AdmissionConfig

VOID = {"NVIDIA_VISIBLE_DEVICES": "void"}
ZERO = {"limits": {"nvidia.com/gpu": "0"}}


ANOTHER_PLUGINS = {"resources": {"limits": {"nvidia.com/gpu.shared": "1"}}}
SAID = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]}


@pytest.mark.parametrize("fields", [ANOTHER_PLUGINS, SAID], ids=["another device plugin", "said already"])
def test_devices_of_others_are_left_alone(fields):
    """The kubelet lets a pod's own variable win over what a device plugin says."""
    made = pod(container(**fields), container("side"), runtimeClassName="nvidia")
    after = patched(made, sent_patch(answer(made)))
    assert after["spec"]["containers"][0] == made["spec"]["containers"][0]
    assert env_of(after, "side") == VOID


def test_devices_by_hand_without_an_ask_are_warned_of_and_not_called_hidden():
    """`given none` would be said of the one container that would see every GPU; and a rehearsal would be silent."""
    by_hand = container(resources=ZERO, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    hidden, chosen = answer(pod(by_hand, container("side"), runtimeClassName="nvidia")).warnings
    assert hidden == (
        "spec.runtimeClassName = 'nvidia': the pod requests no GPU, so container side gets none "
        "(NVIDIA_VISIBLE_DEVICES=void)"
    )
    assert chosen == (
        "container main: NVIDIA_VISIBLE_DEVICES = 'all': the pod requests no GPU, and a policy of Sluice refuses "
        "devices selected by hand; request what it needs"
    )


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("NVIDIA_VISIBLE_DEVICES", "all", True),
        ("NVIDIA_VISIBLE_DEVICES", "", True),
        ("NVIDIA_VISIBLE_DEVICES", "void", False),
        ("CUDA_VISIBLE_DEVICES", "0", True),
        ("CUDA_VISIBLE_DEVICES", "-1", False),
        ("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps", True),
        ("NVIDIA_DRIVER_CAPABILITIES", "all", False),
    ],
)
def test_what_the_policy_refuses_is_warned_of_without_a_runtime_class_too(name, value, refused):
    """The policy looks at all pods (tests/unit/deploy/test_no_side_door.py); a rehearsal would be silent."""
    warnings = answer(pod(container(env=[{"name": name, "value": value}]))).warnings
    why = "the pod requests no GPU, and a policy of Sluice refuses devices selected by hand"
    assert warnings == ((f"container main: {name} = {value!r}: {why}; request what it needs",) if refused else ())


@pytest.mark.parametrize(("ours", "runtime"), [(True, "nvidia"), (False, "nvidia"), (True, None)])
@pytest.mark.parametrize("more", [{}, {"envFrom": [{"configMapRef": {"name": "all"}}]}])
def test_a_container_for_debugging_sees_no_gpu_by_its_image(ours, runtime, more):
    """It is put into a running pod whose runtime is NVIDIA's, by its class or as the node's default."""
    main = container(resources=gpu(gpu="1")) if ours else container()
    made = taken(pod(main, **({"runtimeClassName": runtime} if runtime else {})))
    before = {"name": "earlier"}
    old = {**made, "spec": {**made["spec"], "ephemeralContainers": [before]}}
    new = {**made, "spec": {**made["spec"], "ephemeralContainers": [before, {"name": "debugger", **more}]}}
    response = answer(new, operation="UPDATE", subResource="ephemeralcontainers", oldObject=old)
    added = patched(new, sent_patch(response))["spec"]["ephemeralContainers"]
    assert added == [before, {"name": "debugger", **more, "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]}]


def test_a_claim_of_any_driver_shows_an_image_no_other_gpu():
    """The runtime gives what an image asks for beside the claim's devices."""
    made = pod(container(resources={"claims": [{"name": "nic"}]}), runtimeClassName="nvidia")
    assert env_of(patched(made, sent_patch(answer(made))), "main") == VOID


@pytest.mark.parametrize("text", ["a", "main-0123-abc", "0", "a-b--c"])
def test_a_ticket_is_one_plain_component(text):
    assert names.is_ticket_name(text)


@pytest.mark.parametrize("text", ["", ".", "..", "a.b", "a/b", "/a", "-a", "a-", "A", "a b", "a\n", "ä"])
def test_no_ticket_leads_elsewhere(text):
    """`.` mounts the tickets of the whole pod, and passes the kubelet."""
    assert not names.is_ticket_name(text)


def test_a_grant_is_never_taken_for_an_ask():
    """A user who could write one for the other could grant a slice by hand."""
    key = names.granted("main", names.TICKET)
    assert key == "main.granted.sluice.dev/ticket"
    assert all(map(names.is_granted, (key, "granted.sluice.dev/ticket", "x.y.granted.sluice.dev/")))
    others = ("granted/sluice.dev", "main.sluice.dev/granted.sluice.dev/ticket", "notgranted.sluice.dev/ticket")
    assert not any(map(names.is_granted, others))


def test_every_key_fits_what_the_api_server_takes():
    """A pod whose container has the longest name must still be created."""
    longest = "c" * 63
    listed = [names.granted(longest, key) for key in names.GRANTED_KEYS]
    listed += [names.GATE, names.LABEL_MANAGED, names.LABEL_ENABLED, names.LABEL_DEFAULT_MODE, names.ANNOTATION_REQUEST]
    for name in listed:
        prefix, _, rest = name.partition("/")
        assert len(prefix) <= 253
        assert 0 < len(rest) <= 63
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", rest)


def test_every_granted_key_is_read_by_a_variable_and_the_other_way_round():
    """A value that no container reads is lost; a variable without a value starts its container empty."""
    read = [key for _, key in (*names.ENV_ALWAYS, *names.ENV_SHARES, *names.ENV_QUOTA)]
    assert sorted(read) == sorted(names.GRANTED_KEYS)
    assert names.granted_field_path("main", "ticket") == "metadata.annotations['main.granted.sluice.dev/ticket']"


DRA = AdmissionConfig(hand_over="dra")
CLAIM = {"name": "gpus", "resourceClaimName": "mine"}
TEMPLATE = {"name": "gpus", "resourceClaimTemplateName": "one"}
USES = {"claims": [{"name": "gpus"}]}
ASKS = pod(container(resources=USES), resourceClaims=[CLAIM])


@pytest.mark.parametrize("entry", [CLAIM, TEMPLATE])
def test_such_a_pod_gets_our_marks_and_nothing_else_by_exactly_this_patch(entry):
    """It may be another driver's pod, whose devices and variables are no matter of ours."""
    asks = pod(container(resources=USES), resourceClaims=[entry])
    response = answer(asks, DRA)
    assert (response.allowed, response.warnings) == (True, ())
    assert sent_patch(response) == [
        {"op": "add", "path": "/metadata/annotations", "value": {"sluice.dev/request": '{"first":"main","version":1}'}},
        {"op": "add", "path": "/metadata/labels", "value": {"sluice.dev/managed": "true"}},
        {"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "sluice.dev/slice"}]},
    ]
    made = patched(asks, sent_patch(response))
    for config in (DRA, AdmissionConfig()):
        again = answer(made, config, uid="another")
        assert (again.allowed, sent_patch(again)) == (True, []), again.message


def test_a_key_of_the_whole_pod_beside_claims_is_refused():
    """A priority that nothing reads would be missed when the pod waits."""
    made = pod(container(resources=USES), resourceClaims=[CLAIM], annotations={"sluice.dev/priority": "5"})
    assert answer(made, DRA).message == (
        "sluice.dev/priority = '5': the pod asks by ResourceClaims, whose parameters say how (allowed: priority in the "
        "claim's SliceRequest)"
    )


def test_containers_of_a_pod_with_claims_see_only_those_under_a_runtime_class():
    """Their image asks NVIDIA's runtime for all devices of the node."""
    asks = pod(container(resources=USES), container("side"), resourceClaims=[CLAIM], runtimeClassName="nvidia")
    made = taken(asks, DRA)
    assert [env_of(made, name) for name in ("main", "side")] == [{"NVIDIA_VISIBLE_DEVICES": "void"}] * 2


def test_marks_set_by_hand_are_refused_as_on_every_pod():
    made = taken(ASKS, DRA)
    made["metadata"]["annotations"]["granted.sluice.dev/allocation"] = "stolen"
    assert "Sluice writes this with a grant" in answer(made, DRA).message


def test_with_tickets_such_a_pod_is_left_as_it_is():
    """No kubelet would get devices of ours: the claim is another driver's, or waits for the scheduler."""
    response = answer(ASKS, AdmissionConfig())
    assert (response.allowed, sent_patch(response)) == (True, [])


def test_a_pod_that_is_on_a_node_already_is_left_as_it_is():
    """The API server takes no gate of such a pod."""
    made = pod(container(resources=USES), resourceClaims=[CLAIM], nodeName="n1")
    assert sent_patch(answer(made, DRA)) == []


@pytest.mark.parametrize("runtime", ["nvidia", "nvidia-cdi", "my-gpu-runtime"])
@pytest.mark.parametrize("resources", [None, ZERO])
def test_an_image_that_asks_for_all_gpus_gets_none_without_an_ask(runtime, resources):
    """`nvidia/cuda` says NVIDIA_VISIBLE_DEVICES=all, and would see the slices of all tenants of the node."""
    main = container(**({"resources": resources} if resources else {}))
    made = pod(main, init=[container("prep")], runtimeClassName=runtime)
    response = answer(made)
    after = patched(made, sent_patch(response))
    assert (env_of(after, "main"), env_of(after, "prep")) == (VOID, VOID)
    assert "schedulingGates" not in after["spec"]
    (warning,) = response.warnings
    assert warning == (
        f"spec.runtimeClassName = {runtime!r}: the pod requests no GPU, so its containers get none "
        "(NVIDIA_VISIBLE_DEVICES=void)"
    )
    assert sent_patch(answer(after)) == []

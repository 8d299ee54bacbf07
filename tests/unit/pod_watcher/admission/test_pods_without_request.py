"""Pods that ask for no GPU, whose images would ask NVIDIA's runtime for all of them."""

import pytest
from factories.cluster.admission import answer, container, env_of, gpu, patched, pod, sent_patch, taken

VOID = {"NVIDIA_VISIBLE_DEVICES": "void"}
ZERO = {"limits": {"nvidia.com/gpu": "0"}}


@pytest.mark.parametrize("runtime", ["nvidia", "nvidia-cdi", "my-gpu-runtime"])
@pytest.mark.parametrize("resources", [None, ZERO])
def test_an_image_that_asks_for_all_gpus_gets_none_without_an_ask(runtime, resources):
    """`nvidia/cuda` says NVIDIA_VISIBLE_DEVICES=all, and would see the slices of everybody on the node."""
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


@pytest.mark.parametrize(
    "fields",
    [
        {"resources": {"limits": {"nvidia.com/gpu.shared": "1"}}},
        {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]},
    ],
    ids=["another device plugin", "said already"],
)
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

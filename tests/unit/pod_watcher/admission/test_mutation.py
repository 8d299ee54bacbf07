"""What becomes of pods that are admitted: golden patches, and which pods get which environment and mounts."""

import json

from factories.cluster.admission import (
    answer,
    asked_by,
    container,
    container_of,
    env_of,
    from_grant,
    gpu,
    patched,
    pod,
    review_of,
    sent_patch,
    taken,
)

from sluice_pod_watcher.admission import AdmissionConfig, read_stored, review_pod

MOUNT = {"name": "sluice-slice", "mountPath": "/run/sluice/slice", "subPathExpr": "$(SLUICE_TICKET)", "readOnly": True}
VOLUME = {"name": "sluice-slice", "csi": {"driver": "slice.sluice.dev", "readOnly": True}}
GRANTED = {
    "NVIDIA_VISIBLE_DEVICES": "visible-devices",
    "NVIDIA_DRIVER_CAPABILITIES": "driver-capabilities",
    "SLUICE_TICKET": "ticket",
    "CUDA_MPS_PIPE_DIRECTORY": "mps-pipe-directory",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "active-thread-percentage",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "pinned-memory-limit",
}
EXCLUSIVE, SHARES = [*GRANTED][:3], [*GRANTED][3:]


def from_field(name, key):
    return {"valueFrom": {"fieldRef": {"fieldPath": from_grant(name, key)}}}


def mounts_of(made, name):
    return [each for each in container_of(made, name).get("volumeMounts", []) if each["name"] == "sluice-slice"]


def stored(made):
    return json.loads(made["metadata"]["annotations"]["sluice.dev/request"])


def test_a_pod_with_a_profile_is_gated_and_told_its_slice_by_exactly_this_patch():
    """The good case, operation by operation: what every user's pod goes through."""
    response = answer(pod(annotations={"sluice.dev/profile": "1g.5gb"}))
    assert sent_patch(response) == [
        {
            "op": "add",
            "path": "/metadata/annotations/sluice.dev~1request",
            "value": '{"annotations":{"sluice.dev/profile":"1g.5gb"},"first":"main","version":1}',
        },
        {"op": "add", "path": "/metadata/labels", "value": {"sluice.dev/managed": "true"}},
        {"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "sluice.dev/slice"}]},
        {"op": "add", "path": "/spec/volumes/-", "value": VOLUME},
        {
            "op": "add",
            "path": "/spec/containers/0/env",
            "value": [{"name": name} | from_field("main", GRANTED[name]) for name in EXCLUSIVE],
        },
        {"op": "add", "path": "/spec/containers/0/volumeMounts/-", "value": MOUNT},
    ]
    assert response.warnings == ()


def test_a_pod_with_resources_keeps_what_is_not_ours_and_loses_what_we_satisfy():
    """A scheduler would wait for ever for `nvidia.com/gpu` on a node without a device plugin."""
    resources = {
        "limits": {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "8000", "memory": "4Gi"},
        "requests": {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "8000", "cpu": "1"},
    }
    made = pod(
        container(resources=resources, env=[{"name": "A", "value": "1"}]),
        labels={"app": "train"},
        schedulingGates=[{"name": "kueue.x-k8s.io/admission"}],
    )
    response = answer(made)
    assert sent_patch(response) == [
        {
            "op": "add",
            "path": "/metadata/annotations",
            "value": {
                "sluice.dev/request": '{"first":"main","resources":{"main":{"nvidia.com/gpu":"2",'
                '"nvidia.com/gpumem":"8000"}},"version":1}'
            },
        },
        {"op": "add", "path": "/metadata/labels/sluice.dev~1managed", "value": "true"},
        {"op": "add", "path": "/spec/schedulingGates/-", "value": {"name": "sluice.dev/slice"}},
        {"op": "add", "path": "/spec/volumes/-", "value": VOLUME},
        {"op": "remove", "path": "/spec/containers/0/resources/limits/nvidia.com~1gpu"},
        {"op": "remove", "path": "/spec/containers/0/resources/limits/nvidia.com~1gpumem"},
        {"op": "remove", "path": "/spec/containers/0/resources/requests/nvidia.com~1gpu"},
        {"op": "remove", "path": "/spec/containers/0/resources/requests/nvidia.com~1gpumem"},
        *(
            {"op": "add", "path": f"/spec/containers/0/env/{at}", "value": {"name": name} | from_field("main", key)}
            for at, (name, key) in enumerate(GRANTED.items())
        ),
        {"op": "add", "path": "/spec/containers/0/volumeMounts/-", "value": MOUNT},
    ]
    after = patched(made, sent_patch(response))
    assert after["spec"]["containers"][0]["resources"] == {"limits": {"memory": "4Gi"}, "requests": {"cpu": "1"}}
    assert list(env_of(after, "main")) == [*EXCLUSIVE, *SHARES, "A"]
    gates = [gate["name"] for gate in after["spec"]["schedulingGates"]]
    assert gates == ["kueue.x-k8s.io/admission", "sluice.dev/slice"]


def test_only_a_pod_that_may_be_fractional_is_told_where_its_time_is():
    """A fractional pod computes without a limit of time; or any other pod is preloaded with what is not for it."""
    shared = {"sluice.dev/memory": "4Gi", "sluice.dev/sm-partition": "50", "sluice.dev/quota-request": "0.3"}
    made = pod(container(), annotations=shared)
    after = env_of(patched(made, sent_patch(answer(made))), "main")
    assert list(after) == [*EXCLUSIVE, *SHARES, "SLUICE_QUOTA_SOCKET", "LD_PRELOAD"]
    assert after["SLUICE_QUOTA_SOCKET"] == "metadata.annotations['main.granted.sluice.dev/quota-socket']"
    assert after["LD_PRELOAD"] == "metadata.annotations['main.granted.sluice.dev/quota-preload']"
    made = pod(container(), annotations={"sluice.dev/mode": "mps", "sluice.dev/memory": "4Gi"})
    assert list(env_of(patched(made, sent_patch(answer(made))), "main")) == [*EXCLUSIVE, *SHARES]


def test_each_vocabulary_is_taken_as_it_is_written():
    """Manifests for HAMi, Volcano, NVIDIA's device plugin and FaST-GShare need no edit."""
    fast = {"fastgshare/gpu_mem": "1073741824", "fastgshare/gpu_sm_partition": "20"}
    fast["fastgshare/gpu_quota_limit"] = "0.5"
    volcano = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"}
    for made, asked in (
        (pod(container(resources={"limits": {"nvidia.com/mig-1g.5gb": "1"}})), {"profile": "1g.5gb"}),
        (pod(annotations=fast), {"sm_partition": 20, "memory_mib": 1024}),
        (pod(container(resources={"limits": volcano})), {"memory_mib": 3000}),
    ):
        after = taken(made)
        claim = asked_by(after).pod.claims[0]
        assert {field: getattr(claim, field) for field in asked} == asked
        assert not after["spec"]["containers"][0].get("resources", {}).get("limits")


def test_a_container_that_asked_for_nothing_sees_no_gpu():
    """An image with `NVIDIA_VISIBLE_DEVICES=all` in it would else see every GPU of the node."""
    own_void = container("own-void", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}])
    made = taken(pod(container(resources=gpu(gpu="1")), container("logs"), own_void, init=[container("fetch")]))
    assert env_of(made, "logs") == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert env_of(made, "fetch") == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert env_of(made, "own-void") == {"NVIDIA_VISIBLE_DEVICES": "none"}
    assert mounts_of(made, "logs") == mounts_of(made, "fetch") == []
    assert mounts_of(made, "main") == [MOUNT]


def test_an_init_container_uses_the_devices_of_a_container_that_asks_for_the_same():
    """It is over before the others begin: a second slice for it would stand empty as long as the pod runs."""
    main, warm_up = (container(name, resources=gpu(gpu="1", gpumem="8000")) for name in ("main", "warm-up"))
    made = taken(pod(main, init=[warm_up]))
    found = asked_by(made)
    assert [claim.container for claim in found.pod.claims] == ["main"]
    assert found.served_by == {"warm-up": "main"}
    assert env_of(made, "warm-up")["NVIDIA_VISIBLE_DEVICES"] == from_grant("warm-up", "visible-devices")
    assert mounts_of(made, "warm-up") == [MOUNT]


def test_a_pod_that_can_only_be_exclusive_gets_no_variables_of_shares():
    assert list(env_of(taken(pod(annotations={"sluice.dev/profile": "1g.5gb"})), "main")) == EXCLUSIVE
    auto = pod(annotations={"sluice.dev/memory": "4Gi", "sluice.dev/mode": "auto"})
    assert list(env_of(taken(auto), "main")) == [*EXCLUSIVE, *SHARES]


def test_the_runtime_class_is_set_where_the_pod_names_none():
    config = AdmissionConfig(runtime_class="nvidia")
    asks = {"sluice.dev/memory": "4Gi"}
    assert taken(pod(annotations=asks), config)["spec"]["runtimeClassName"] == "nvidia"
    assert taken(pod(annotations=asks, runtimeClassName="kata"), config)["spec"]["runtimeClassName"] == "kata"
    assert "runtimeClassName" not in taken(pod(annotations=asks))["spec"]


ASKS = pod(annotations={"sluice.dev/profile": "1g.5gb"})


def untouched(made, config=None, **request):
    response = answer(made, config, **request)
    return response.allowed and response.patch == () and response.warnings == ()


def test_mirror_pods_system_namespaces_and_those_who_opt_out_are_left_alone():
    """A static pod runs already; a system pod does not wait for Sluice; an opt-out is the device plugin's pod."""
    assert untouched(pod(annotations={"sluice.dev/profile": "1g.5gb", "kubernetes.io/config.mirror": "0"}))
    assert untouched(pod(annotations={"sluice.dev/profile": "1g.5gb"}, labels={"sluice.dev/ignore": ""}))
    assert untouched(ASKS, namespace="kube-system")
    assert untouched(ASKS, AdmissionConfig(exempt_namespaces=frozenset({"sluice-system"})), namespace="sluice-system")
    assert not untouched(ASKS)


def test_only_the_creation_of_pods_is_reviewed():
    """A policy of the API server freezes what is ours afterwards."""
    assert untouched(ASKS, operation="UPDATE")
    assert untouched(ASKS, operation="DELETE", object=None)
    assert untouched(ASKS, kind={"group": "apps", "version": "v1", "kind": "Deployment"})
    assert untouched(ASKS, subResource="status", operation="UPDATE")


def test_what_is_no_review_of_a_pod_is_said_and_never_raised():
    """A webhook that breaks refuses every pod of the cluster."""
    for raw in (None, [], {}, {"kind": "Pod"}, review_of({}), review_of({"metadata": [], "spec": {}})):
        assert "why" in dir(review_pod(raw, AdmissionConfig())), raw
    wrong_version = review_of(ASKS) | {"apiVersion": "admission.k8s.io/v1beta1"}
    assert review_pod(wrong_version, AdmissionConfig()).why == (
        "admission.k8s.io/v1beta1 AdmissionReview is not an admission.k8s.io/v1 AdmissionReview"
    )


def test_the_default_mode_of_a_namespace_is_written_down_where_it_fits():
    """It shows afterwards why a pod was given a share, and stays when the namespace's default changes."""
    config = AdmissionConfig(default_mode="mps")
    made = pod(annotations={"sluice.dev/memory": "4Gi"})
    assert stored(taken(made, config))["annotations"] == {"main.sluice.dev/mode": "mps", "sluice.dev/memory": "4Gi"}
    assert asked_by(taken(made, config)).pod.claims[0].modes == ("mps",)
    assert answer(made, config).warnings == (
        "main.sluice.dev/mode = 'mps': the default of this namespace, because the pod names no mode",
    )
    vgpu = pod(container(resources=gpu(gpu="1", gpumem="4000")))
    assert asked_by(taken(vgpu, config)).pod.claims[0].modes == ("mps",)


def test_a_default_mode_never_refuses_a_pod_nor_overrules_one():
    """A default is a wish of the namespace; the pod's own annotations count."""
    config = AdmissionConfig(default_mode="mps")
    said = {"sluice.dev/memory": "4Gi", "sluice.dev/mode": "exclusive"}
    for annotations in ({"sluice.dev/profile": "1g.5gb"}, {"sluice.dev/sm-partition": "20"}, said):
        assert stored(taken(pod(annotations=annotations), config))["annotations"] == annotations
    mig = pod(container(resources=gpu(**{"mig-1g.5gb": "1"})))
    assert asked_by(taken(mig, config)).pod.claims[0].modes == ("exclusive",)


def test_a_default_mode_keeps_an_init_container_on_the_devices_of_its_app():
    """Else the default of a namespace would refuse a pod that is fine elsewhere."""
    annotations = {"main.sluice.dev/memory": "4Gi", "prep.sluice.dev/memory": "4Gi"}
    found = asked_by(taken(pod(annotations=annotations, init=[container("prep")]), AdmissionConfig(default_mode="mps")))
    assert found.served_by == {"prep": "main"}
    assert found.pod.claims[0].modes == ("mps",)


def test_a_claim_of_dra_beside_an_ask_is_warned_of():
    """The pod would hold two GPUs, and its user thinks of one."""
    made = pod(annotations={"sluice.dev/profile": "1g.5gb"}, resourceClaims=[{"name": "gpu"}])
    (warning,) = answer(made).warnings
    assert warning == (
        "spec.resourceClaims: Dynamic Resource Allocation gives the pod further devices, which Sluice does "
        "not see; use one of the two"
    )
    assert answer(pod(resourceClaims=[{"name": "gpu"}])).warnings == ()


def test_keys_that_say_nothing_here_are_told_as_warnings():
    """A user who moves from HAMi learns from kubectl what is different, and the pod runs."""
    made = pod(
        container(resources=gpu(gpu="1", priority="1")),
        annotations={"hami.io/device-scoring-weights": "slot=1,core=1,memory=3"},
        schedulerName="hami-scheduler",
    )
    assert answer(made).warnings == (
        "Sluice does not use nvidia.com/priority: the annotation sluice.dev/priority orders waiting pods",
        "Sluice does not use hami.io/device-scoring-weights: the pool's weights apply",
        "spec.schedulerName = 'hami-scheduler': that scheduler starts the pod, so it must be running",
    )
    slurm = pod(container(resources=gpu(gpu="1")), schedulerName="slurm-bridge-scheduler")
    (warning,) = answer(slurm).warnings
    assert warning.endswith("leave schedulerName out, or leave the pod to Slurm with the label sluice.dev/ignore")
    few = pod(annotations={"main.sluice.dev/memory": "10"})
    assert answer(few).warnings == (
        "main.sluice.dev/memory: 10 without a unit is 10 MiB; did you mean 10Gi? (write 10Mi to confirm)",
    )
    assert answer(pod(annotations={"sluice.dev/memory": "8000"})).warnings == ()
    fast = pod(annotations={"sluice.dev/mode": "fastpod", "sluice.dev/sm-partition": "10"})
    assert answer(fast).warnings == ("sluice.dev/mode = 'fastpod': fastpod is now called fractional; use that name",)


def in_env(value: str):
    return [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": value}]


def test_capabilities_are_said_of_the_pod_of_a_container_or_by_its_variable():
    """A pod that transcodes in one container and computes in another needs both."""
    said = {"sluice.dev/driver-capabilities": "compute,video", "logs.sluice.dev/driver-capabilities": "all"}
    listed = [
        container(resources=gpu(gpu="1")),
        container("logs", resources=gpu(gpu="1")),
        container("draw", resources=gpu(**{"mig-1g.5gb": "1"}), env=in_env("compat32,graphics,graphics")),
        container("side", env=in_env("display")),
    ]
    made = taken(pod(*listed, annotations=said))
    found = {claim.container: claim.driver_capabilities for claim in asked_by(made).pod.claims}
    assert found == {"main": "compute,video", "logs": "all", "draw": "compat32,graphics"}
    assert env_of(made, "side") == {"NVIDIA_DRIVER_CAPABILITIES": "display", "NVIDIA_VISIBLE_DEVICES": "void"}


def test_where_an_operator_restricts_them_all_is_what_is_allowed_and_nothing_else_is_implied():
    """`all` is what most images and charts say, and the runtime reads it in the same way."""
    config = AdmissionConfig(driver_capabilities=("compute", "utility", "video"))
    made = pod(
        container(resources=gpu(gpu="1"), env=in_env("all")),
        container("draw", resources=gpu(**{"mig-1g.24gb.gfx": "1"})),
    )
    response = answer(made, config)
    after = patched(made, sent_patch(response))
    found = read_stored(after["metadata"]["annotations"]["sluice.dev/request"], after["spec"], config.asks)
    assert [claim.driver_capabilities for claim in found.pod.claims] == ["compute,utility,video", "compute,utility"]
    assert "NVIDIA_DRIVER_CAPABILITIES = 'all' becomes 'compute,utility,video'" in response.warnings[0]

"""Which pods are not taken. What a person reads then, word for word: tests/kubernetes/test_shown_denials.py."""

import re

import pytest
from factories.cluster.admission import answer, container, gpu, pod, taken

from sluice_pod_watcher.admission import AdmissionConfig

GPU = gpu(gpu="1")
ENV_ALLOWED = {
    "NVIDIA_VISIBLE_DEVICES": "leave it out, or 'all', for all devices of the container",
    "NVIDIA_DRIVER_CAPABILITIES": "a literal value, or the annotation sluice.dev/driver-capabilities",
    "CUDA_VISIBLE_DEVICES": "leave it out, or indexes of the container's own devices, from 0",
}
VOID_ALLOWED = "leave it out; NVIDIA_VISIBLE_DEVICES may be 'void' in a container without a GPU"
HOST_ALLOWED = "which gives access to the slices of other pods (allowed: other directories of the host)"
MOUNT = {"name": "sluice-slice", "mountPath": "/run/sluice/slice", "subPathExpr": "$(SLUICE_TICKET)", "readOnly": True}


def denial(made, rules=None, **request):
    """Code and message; the pod must be denied, and nothing of it changed."""
    response = answer(made, rules, **request)
    sent = response.as_review()["response"]
    assert not sent["allowed"]
    assert "patch" not in sent
    assert sent["status"]["reason"] == {403: "Forbidden", 422: "Invalid"}[response.code]
    assert sent["status"]["code"] == response.code
    return response.code, sent["status"]["message"]


def why_env(where, name, value, allowed=None):
    allowed = allowed or ENV_ALLOWED.get(name, VOID_ALLOWED)
    return f"spec.{where}.env[{name}] = {value!r}: Sluice sets this from what the pod is granted (allowed: {allowed})"


def with_env(**entry):
    return pod(container(resources=GPU, env=[entry]))


def with_volume(**volume):
    return pod(container(resources=GPU), volumes=[volume])


def host(path):
    return with_volume(name="h", hostPath={"path": path})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NVIDIA_VISIBLE_DEVICES", "0"),
        ("NVIDIA_VISIBLE_DEVICES", "GPU-1"),
        ("NVIDIA_VISIBLE_DEVICES", ""),
        ("NVIDIA_VISIBLE_DEVICES", "$(ELSEWHERE)"),
        ("NVIDIA_MIG_CONFIG_DEVICES", "all"),
        ("CUDA_VISIBLE_DEVICES", "1"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
        ("CUDA_VISIBLE_DEVICES", "MIG-11111111-2222-3333-4444-555555555555"),
        ("CUDA_MPS_PIPE_DIRECTORY", "/run/sluice/x"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"),
        ("SLUICE_TICKET", "."),
        ("SLUICE_QUOTA_SOCKET", ""),
    ],
)
def test_nobody_chooses_devices_by_variables(name, value):
    """A pod with its own device list would see the slices of others."""
    assert denial(with_env(name=name, value=value)) == (403, why_env("containers[main]", name, value))


def test_a_second_preload_does_not_replace_the_time_quota():
    """A pod that preloads a library of its own computes without a time limit, without any sign of it."""
    entry = {"name": "LD_PRELOAD", "value": "/usr/lib/libjemalloc.so.2"}
    shared = {"sluice.dev/memory": "4Gi", "sluice.dev/sm-partition": "50", "sluice.dev/quota-request": "0.3"}
    assert denial(pod(container(env=[entry]), annotations=shared))[0] == 403
    assert answer(pod(container(env=[entry]), annotations={"sluice.dev/profile": "1g.5gb"})).allowed


def test_a_variable_that_is_read_from_elsewhere_is_as_bad():
    """A ConfigMap can say `all` after the pod was admitted."""
    config_map = {"configMapKeyRef": {"name": "gpus", "key": "all"}}
    other = {"fieldRef": {"fieldPath": "metadata.annotations['other.granted.sluice.dev/visible-devices']"}}
    devices, capabilities = "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"
    for name, source in ((devices, config_map), (capabilities, config_map), (devices, other)):
        message = why_env("containers[main]", name, "(from elsewhere)")
        assert denial(with_env(name=name, valueFrom=source)) == (403, message)


def test_every_entry_of_a_name_is_looked_at():
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value} for value in ("void", "all")]
    side = pod(container(resources=GPU), container("logs", env=env))
    init = pod(container(resources=GPU), init=[container("fetch", env=env)])
    for made, where in ((side, "containers[logs]"), (init, "initContainers[fetch]")):
        assert denial(made) == (403, why_env(where, "NVIDIA_VISIBLE_DEVICES", "all", VOID_ALLOWED))


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/run/sluice", "/run/sluice"),
        ("/run/sluice/", "/run/sluice"),
        ("/run//sluice/pods", "/run/sluice"),
        ("/run/./sluice/pods/x", "/run/sluice"),
        ("/var/run/sluice", "/run/sluice"),
        ("//var//run/./sluice", "/run/sluice"),
        ("/run/x/../sluice", "/run/sluice"),
        ("/run", "/run/sluice"),
        ("/var/run/", "/run/sluice"),
        ("/var", "/var/lib/sluice"),
        ("/", "/run/sluice"),
        ("", "/run/sluice"),
        ("/var/lib/sluice/journal", "/var/lib/sluice"),
        ("/var/lib", "/var/lib/sluice"),
        ("/var/lib/kubelet/pods/5/volumes", "/var/lib/kubelet/pods"),
        ("/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins_registry"),
        ("/proc/1/root/run/other", "/proc"),
        ("/proc/self/cwd", "/proc"),
        ("/proc", "/proc"),
        ("/proc/thread-self", "/proc"),
        ("/proc/7/environ", "/proc"),
        ("/etc/sluice/credentials", "/etc/sluice"),
        ("/etc", "/etc/sluice"),
        ("/proc/1/task/1/root", "/proc"),
    ],
)
def test_no_spelling_of_a_host_path_leads_to_the_slices_of_others(path, where):
    """A pod that mounts the directory of tickets has every tenant's pipes."""
    field = f"spec.volumes[h].hostPath.path = {path!r}"
    assert denial(host(path)) == (403, f"{field}: leads to {where} of the node, {HOST_ALLOWED}")


@pytest.mark.parametrize(
    "path",
    ["/data", "/run/other", "/run/sluicegate", "/var/log", "/var/runs", "/home/run/sluice", "/proc/driver/nvidia"],
)
def test_other_host_paths_stay_the_users_business(path):
    """A data set on the node's disk is what most host paths are."""
    assert answer(host(path)).allowed


def test_the_volume_of_tickets_is_not_mounted_by_hand():
    """Without a ticket's name a mount shows the whole volume, and lets a container start before its slice is there."""
    why = "Sluice mounts its volume itself, each container its own part of it (allowed: leave the mount out)"
    whole = pod(container(resources=GPU, volumeMounts=[{"name": "sluice-slice", "mountPath": "/all"}]))
    assert denial(whole) == (403, f"spec.containers[main].volumeMounts = 'sluice-slice at /all': {why}")
    logs = pod(container(resources=GPU), container("logs", volumeMounts=[MOUNT]))
    assert denial(logs) == (403, f"spec.containers[logs].volumeMounts = 'sluice-slice at /run/sluice/slice': {why}")
    for change in ({"readOnly": False}, {"subPathExpr": "x"}, {"mountPath": "/x"}, {"subPath": "x"}):
        assert denial(pod(container(resources=GPU, volumeMounts=[MOUNT | change])))[0] == 403
    other = {"name": "data", "mountPath": "/run/sluice//slice/x"}
    made = pod(container(resources=GPU, volumeMounts=[other]), volumes=[{"name": "data", "emptyDir": {}}])
    assert denial(made)[0] == 403, "something else lies where the ticket is"


def test_the_volume_of_tickets_is_not_made_by_hand():
    """A look-alike would let containers start without a slice."""
    ours = {"driver": "slice.sluice.dev"}
    for volume in (
        {"name": "sluice-slice", "emptyDir": {}},
        {"name": "sluice-slice", "csi": {**ours, "readOnly": False}},
        {"name": "mine", "csi": ours},
    ):
        assert denial(with_volume(**volume))[0] == 403


def test_privileged_pods_are_denied_unless_the_cluster_allows_them():
    """A privileged container sees every GPU of its node, in whichever container of the pod."""
    privileged = {"securityContext": {"privileged": True}}
    side = pod(container(resources=GPU), container("logs", **privileged))
    for made in (side, pod(container(resources=GPU), hostPID=True)):
        assert denial(made)[0] == 403
        assert answer(made, AdmissionConfig(allow_privileged=True)).allowed


def test_the_hosts_shared_memory_is_denied_to_pods_that_share_a_gpu():
    """The daemon of a shared GPU talks to its clients there. A MIG slice of one's own has no such neighbours."""
    shares = pod(annotations={"sluice.dev/memory": "4Gi", "sluice.dev/mode": "mps"}, hostIPC=True)
    assert denial(shares)[0] == 403
    assert answer(pod(annotations={"sluice.dev/profile": "1g.5gb"}, hostIPC=True)).allowed


WHOLE = "(allowed: a whole number from 0 to 8)"


@pytest.mark.parametrize(
    ("amount", "message"),
    [
        ("1.2", f"nvidia.com/gpu = '1.2': not a whole number {WHOLE}"),
        ("-1", f"nvidia.com/gpu = '-1': out of range {WHOLE}"),
        ("many", f"nvidia.com/gpu = 'many': not a quantity {WHOLE}"),
        ("9", f"nvidia.com/gpu = '9': out of range {WHOLE}"),
    ],
)
def test_amounts_that_the_api_server_would_refuse_are_refused(amount, message):
    """We take the resources out before it looks; else half a GPU would be a GPU for free."""
    assert denial(pod(container(resources={"limits": {"nvidia.com/gpu": amount}}))) == (422, message)


def test_a_flood_of_keys_is_refused_unread():
    """One pod would take the webhook's time from all others."""
    flood = {f"c{at}.sluice.dev/memory": "1Gi" for at in range(2001)}
    assert denial(pod(annotations=flood)) == (
        422,
        "metadata.annotations = '': 2001 annotations that request GPUs (allowed: at most 2000)",
    )


def test_what_the_watcher_could_not_place_is_refused_at_once():
    """A pod that is admitted and then refused would wait behind its gate."""
    field = {"key": "metadata.name", "operator": "NotIn", "values": ["gpu-1"]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    code, message = denial(pod(container(resources=GPU), affinity=affinity))
    assert code == 422
    assert message.endswith("this field cannot be matched (allowed: metadata.name In [one node])")


def test_all_problems_are_told_at_once():
    """Mending a manifest takes one `kubectl apply`, not one per line."""
    env = [{"name": f"NVIDIA_X{at}", "value": "1"} for at in range(12)]
    made = pod(container(resources=GPU, env=env), annotations={"sluice.dev/memory": "4Gi"}, nodeName="gpu-1")
    code, message = denial(made)
    assert code == 403
    assert message.startswith("nvidia.com/gpu = '1': contradicts sluice.dev/memory")
    assert "; spec.nodeName = 'gpu-1': " in message
    assert message.endswith("; and 9 more")
    assert len(message) < 1024


def debugging(ours=True, old=(), **fields):
    made = taken(pod(container(resources=GPU))) if ours else pod()
    before = {**made, "spec": {**made["spec"], "ephemeralContainers": list(old)}}
    after = {**made, "spec": {**made["spec"], "ephemeralContainers": [*old, {"name": "debugger", **fields}]}}
    return {"made": after, "operation": "UPDATE", "subResource": "ephemeralcontainers", "oldObject": before}


def test_a_debug_container_gets_no_device():
    """It is added to a running pod, and nothing else of Sluice sees it."""
    message = why_env("ephemeralContainers[debugger]", "NVIDIA_VISIBLE_DEVICES", "all", VOID_ALLOWED)
    assert denial(**debugging(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])) == (403, message)
    assert denial(**debugging(volumeMounts=[{"name": "sluice-slice", "mountPath": "/all"}]))[0] == 403
    assert denial(**debugging(securityContext={"privileged": True}))[0] == 403


def test_a_plain_debug_container_is_let_into_a_gpu_pod():
    assert answer(**debugging(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}])).allowed
    assert answer(**debugging(old=({"name": "earlier", "securityContext": {"privileged": True}},))).allowed
    assert answer(**debugging(ours=False, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])).allowed


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"max_gpus_per_node": 0}, "max_gpus_per_node = 0: must be from 1 to 64"),
        ({"default_mode": "fast"}, "default_mode = 'fast': must be one of exclusive, mps, fractional, auto, or empty"),
        ({"host_directories": ("run/sluice",)}, "host_directories holds 'run/sluice': use absolute paths"),
        ({"host_directories": ("//",)}, "host_directories holds '//': use absolute paths"),
        ({"env_allowed": frozenset({"CUDA_MPS_PIPE_DIRECTORY"})}, "env_allowed holds 'CUDA_MPS_PIPE_DIRECTORY'"),
        ({"env_allowed": frozenset({"NVIDIA_VISIBLE_DEVICES"})}, "env_allowed holds 'NVIDIA_VISIBLE_DEVICES'"),
        ({"driver_capabilities": ("compute", "utility", "x11")}, "driver_capabilities holds 'x11'"),
        ({"driver_capabilities": ("compute", "video")}, "driver_capabilities lacks 'utility'"),
    ],
)
def test_rules_that_would_open_a_door_or_deny_all_pods_are_refused(rules, message):
    """A slip in the settings must end the start, not the isolation."""
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        AdmissionConfig(**rules)

"""Rules that a cluster sets for its namespaces hold for pods with slices as for any other."""

import json
import secrets
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from cluster.harness.cluster import Cluster
from cluster.objects import (
    WHOLE_GPU,
    Json,
    apply,
    devices,
    has_status,
    is_gated,
    listed,
    pod,
    refusal,
    slices,
    wait_for,
    wait_for_no_slice,
)
from cluster.waiting import until

SHOW = "echo device=$NVIDIA_VISIBLE_DEVICES; grep -c /run/sluice/slice /proc/self/mountinfo; exec sleep 300"
RESTRICTED = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
BY_TICKET = {"sluice.dev/hand-over": "tickets"}
"""Containers print the device that a ticket names."""
Named = Callable[[str], str]


@pytest.fixture(scope="module")
def named(installed: Cluster) -> Iterator[Named]:
    """A namespace for each kind of rules, with its pods: all start at once. Gives a namespace's name by its kind."""
    prefix = f"rules-{secrets.token_hex(3)}"
    labels = {
        "quota": {},
        "default": {},
        "most": {},
        "processors": {},
        "restricted": {"pod-security.kubernetes.io/enforce": "restricted"},
        "baseline": {"pod-security.kubernetes.io/enforce": "baseline"},
        "ignored": {"sluice.dev/ignore": ""},
    }
    spaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"{prefix}-{kind}", "labels": BY_TICKET | each}}
        for kind, each in labels.items()
    ]
    apply(installed, "default", *spaces)
    try:
        _fill(installed, lambda kind: f"{prefix}-{kind}")
        yield lambda kind: f"{prefix}-{kind}"
    finally:
        names = [f"namespace/{prefix}-{kind}" for kind in labels]
        installed.kubectl("delete", *names, "--timeout=120s", timeout_s=130)
        wait_for_no_slice(installed)


def test_a_pod_with_a_slice_counts_in_a_quota_on_pods(installed: Cluster, named: Named) -> None:
    """A ResourceQuota on pods counts it from its creation; one on GPUs counts none, as operations.md says."""
    said = refusal(installed, named("quota"), "create", "--filename=-", stdin=pod("second"))
    assert "exceeded quota: rules, requested: pods=1, used: pods=1, limited: pods=1" in said
    assert _runs(installed, named("quota"), "first")
    quota = listed(installed, named("quota"), "resourcequotas")[0]["status"]["used"]
    assert quota["requests.nvidia.com/gpu"] == "0"


def test_a_default_of_gpus_is_the_request_of_a_pod_that_has_none(installed: Cluster, named: Named) -> None:
    """The LimitRange's default becomes a whole GPU through Sluice, and no scheduler waits for a device plugin."""
    assert _runs(installed, named("default"), "silent")
    until("a whole GPU with MIG is one instance", lambda: [each for each in slices(installed) if " 7g." in each])


def test_a_default_of_gpus_adds_nothing_to_a_request(installed: Cluster, named: Named) -> None:
    """A pod that asks for a slice gets that slice, and a warning about the default."""
    assert _runs(installed, named("default"), "asks")
    assert _device(installed, named("default"), "asks").startswith("MIG-")
    again = installed.kubectl(
        f"--namespace={named('default')}", "create", "--dry-run=server", "--filename=-", stdin=json.dumps(pod("warned"))
    )
    assert "Warning:" in again
    assert "LimitRange" in again


def test_a_maximum_of_gpus_refuses_pods_with_slices_as_the_page_says(installed: Cluster, named: Named) -> None:
    """The API server judges what is left of the request; operations.md names its sentence and the remedy."""
    said = refusal(installed, named("most"), "create", "--filename=-", stdin=pod("asks", limits=WHOLE_GPU))
    assert "maximum nvidia.com/gpu usage per Container is 2" in said
    assert "No limit is specified" in said


def test_limits_on_processors_apply_to_pods_with_slices(installed: Cluster, named: Named) -> None:
    """A default is filled in, and more than the maximum is refused."""
    assert _runs(installed, named("processors"), "asks")
    running = listed(installed, named("processors"))[0]["spec"]["containers"][0]["resources"]
    assert running["limits"]["cpu"] == "200m"
    assert running["requests"]["cpu"] == "10m"
    greedy = pod("greedy", annotations={"sluice.dev/profile": "1g.5gb"}, limits={"cpu": "2"})
    said = refusal(installed, named("processors"), "create", "--filename=-", stdin=greedy)
    assert "maximum cpu usage per Container is 500m, but limit is 2" in said


@pytest.mark.parametrize("kind", ["restricted", "baseline"])
def test_a_pod_gets_its_slice_under_pod_security(installed: Cluster, named: Named, kind: str) -> None:
    """The ticket is no hostPath: nothing of ours breaks the strictest standard, and the container sees its device."""
    assert _runs(installed, named(kind), "asks")
    device, mounts = installed.kubectl(f"--namespace={named(kind)}", "logs", "asks").split()
    assert device.startswith("device=MIG-")
    assert mounts == "1"


def test_pod_security_still_refuses_what_breaks_it(installed: Cluster, named: Named) -> None:
    """In words of its own, which name nothing of Sluice."""
    said = refusal(installed, named("restricted"), "create", "--filename=-", stdin=pod("loose"))
    assert 'violates PodSecurity "restricted:latest"' in said
    assert "sluice" not in said.split("violates PodSecurity")[1].replace("sluice-test", "")


def test_pods_of_an_ignored_namespace_are_left_alone(installed: Cluster, named: Named) -> None:
    """No gate, no slice, and their GPU resources stay for another system's device plugin."""
    ignored = {each["metadata"]["name"]: each for each in listed(installed, named("ignored"))}
    assert not any(is_gated(each) for each in ignored.values())
    assert not devices(installed, named("ignored"))
    assert _runs(installed, named("ignored"), "annotated")
    assert ignored["resource"]["spec"]["containers"][0]["resources"]["limits"] == WHOLE_GPU
    assert has_status(ignored["resource"], "PodScheduled", "False")
    handmade = pod("handmade", schedulingGates=[{"name": "sluice.dev/slice"}])
    said = refusal(installed, named("ignored"), "create", "--filename=-", stdin=handmade)
    assert "a pod of a namespace labelled sluice.dev/ignore has neither the gate" in said


def _fill(cluster: Cluster, name: Named) -> None:
    shown = partial(pod, script=SHOW)
    contained = shown("asks", securityContext=RESTRICTED)
    contained["spec"]["containers"][0]["securityContext"] = CONTAINED
    apply(cluster, name("quota"), _rules("ResourceQuota", hard={"pods": "1", "requests.nvidia.com/gpu": "0"}))
    apply(cluster, name("default"), _limits(default=WHOLE_GPU))
    apply(cluster, name("most"), _limits(max={"nvidia.com/gpu": "2"}))
    processors = {"default": {"cpu": "200m"}, "defaultRequest": {"cpu": "10m"}, "max": {"cpu": "500m"}}
    apply(cluster, name("processors"), _limits(**processors))
    until("the quota counts", lambda: "used" in listed(cluster, name("quota"), "resourcequotas")[0].get("status", {}))
    apply(cluster, name("quota"), shown("first"))
    apply(cluster, name("default"), shown("silent", annotations={}), shown("asks"))
    apply(cluster, name("processors"), shown("asks"))
    apply(cluster, name("restricted"), contained)
    apply(cluster, name("baseline"), shown("asks"))
    apply(cluster, name("ignored"), shown("annotated"), shown("resource", limits=WHOLE_GPU))


def _rules(kind: str, **spec: object) -> Json:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "rules"}, "spec": spec}


def _limits(**limits: dict[str, str]) -> Json:
    return _rules("LimitRange", limits=[{"type": "Container", **limits}])


def _runs(cluster: Cluster, namespace: str, name: str) -> bool:
    wait_for(cluster, namespace, "condition=Ready", f"pod/{name}")
    return True


def _device(cluster: Cluster, namespace: str, name: str) -> str:
    return devices(cluster, namespace)[name]

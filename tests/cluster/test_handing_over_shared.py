"""ResourceClaims of a user's own: one for several pods, and those of templates."""

import pytest
from cluster import gpu_pods, handed_over, judging, objects
from cluster.gpu_pods import IGNORES_TERM, Json, create, delete, is_granted, is_ready, pod, pods, until_ready
from cluster.handed_over import inside, instances, looking
from cluster.harness.cluster import Cluster
from cluster.waiting import Unmet, until

WORKER = "worker-1"
HERE = {"nodeSelector": gpu_pods.on(WORKER)}
ALL_OF_IT = {"profile": "7g.40gb"}
GRACE_S = 90
"""More than a minute: so often a kubelet ends the use of claims whose pods are gone from the API server."""
pytestmark = [pytest.mark.usefixtures("handed_back"), pytest.mark.parametrize("namespace", ["dra"], indirect=True)]


def claim_spec(count: int = 1, **keys: object) -> Json:
    """Devices of our class with these parameters."""
    parameters = {"apiVersion": "sluice.dev/v1", "kind": "SliceRequest", **keys}
    request = {"name": "gpu", "exactly": {"deviceClassName": "sluice.dev", "count": count}}
    return {
        "devices": {
            "requests": [request],
            "config": [{"opaque": {"driver": "gpu.sluice.dev", "parameters": parameters}}],
        }
    }


def claim(name: str, count: int = 1, **keys: object) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": claim_spec(count, **keys),
    }


def using(name: str, entry: Json, script: str = gpu_pods.SLEEPS, **spec: object) -> Json:
    """A pod that uses a claim or a template."""
    main = looking(then=script, resources={"claims": [{"name": "gpus"}]})
    return pod(name, {}, main, resourceClaims=[{"name": "gpus", **entry}], **spec)


def named(cluster: Cluster, namespace: str, name: str) -> Json:
    return next(each for each in handed_over.claims(cluster, namespace) if each["metadata"]["name"] == name)


def until_given_back(cluster: Cluster, namespace: str, name: str) -> None:
    """Until a claim that outlives its pods is allocated no more; it is removed then."""
    until(
        "the claim is free", lambda: Unmet(found) if (found := named(cluster, namespace, name).get("status")) else True
    )
    gpu_pods.until_returned(cluster, namespace)
    cluster.kubectl(f"--namespace={namespace}", "delete", "resourceclaim", name, "--timeout=60s")


def test_pods_of_one_claim_have_the_same_device_until_the_last_has_ended(installed: Cluster, namespace: str) -> None:
    """Three pods on one node, in one slice, which the first to end does not take away from the others."""
    names = [f"pod-{number}" for number in range(3)]
    shared = {"resourceClaimName": "ours"}
    objects.apply(installed, namespace, claim("ours", profile="1g.5gb"))
    create(installed, namespace, [using(name, shared) for name in names])
    found = until_ready(installed, namespace, names)
    assert len({each["spec"]["nodeName"] for each in found.values()}) == 1
    seen = {name: inside(installed, namespace, name).devices for name in names}
    assert len(set(seen.values())) == 1, seen
    assert {each["name"] for each in named(installed, namespace, "ours")["status"]["reservedFor"]} == set(names)
    (place,) = until("one slice is shown", lambda: gpu_pods.slices(installed, namespace))
    first = place["pod"]
    delete(installed, namespace, [first])
    gpu_pods.until_pods(installed, namespace, "the first is gone", lambda left: first not in left)
    create(installed, namespace, [using("later", shared)])
    until_ready(installed, namespace, ["later"])
    assert inside(installed, namespace, "later").devices == seen[first]
    still = pods(installed, namespace)
    for name in sorted({*names} - {first}):
        assert is_ready(still[name])
    delete(installed, namespace, still)
    gpu_pods.until_gone(installed, namespace)
    until_given_back(installed, namespace, "ours")


def test_pods_of_a_template_have_a_device_each(installed: Cluster, namespace: str) -> None:
    """The claim controller makes a claim for each pod, and removes it with the pod."""
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "each"},
        "spec": {"spec": claim_spec(profile="2g.10gb")},
    }
    objects.apply(installed, namespace, template)
    names = ["left", "right"]
    create(installed, namespace, [using(name, {"resourceClaimTemplateName": "each"}) for name in names])
    create(installed, namespace, [pod("plain", {}, looking())])
    found = until_ready(installed, namespace, [*names, "plain"])
    without = inside(installed, namespace, "plain")
    seen = [handed_over.check(installed, found[name], without, request="gpu") for name in names]
    own = [
        (found[name]["spec"]["nodeName"], frozenset(instances(each))) for name, each in zip(names, seen, strict=True)
    ]
    assert len({*own}) == len(names)
    assert {len(each) for _, each in own} == {2}
    sizes = [["2g.10gb"]] * len(names)
    until("each has its slice", lambda: sorted(gpu_pods.places(installed, namespace).values()) == sizes)
    judging.check(installed)


def test_all_pods_of_a_claim_go_for_a_pod_of_higher_priority(installed: Cluster, namespace: str) -> None:
    """One of them alone would keep the devices, and the other pod would wait for it."""
    objects.apply(installed, namespace, claim("ours", 2, **ALL_OF_IT, preemptible=True, priority=-10))
    low = ["low-1", "low-2"]
    create(installed, namespace, [using(name, {"resourceClaimName": "ours"}, **HERE) for name in low])
    until_ready(installed, namespace, low)
    create(installed, namespace, gpu_pods.fill(WORKER, ["high"]))
    until_ready(installed, namespace, ["high"])
    assert not {*low} & {name for name, each in pods(installed, namespace).items() if is_ready(each)}
    judging.check(installed)
    delete(installed, namespace, pods(installed, namespace))
    gpu_pods.until_gone(installed, namespace)
    until_given_back(installed, namespace, "ours")


def test_a_device_is_given_on_after_the_processes_of_every_pod_of_its_claim(installed: Cluster, namespace: str) -> None:
    """
    A pod that was deleted by force still runs, and may open the device late: its agent knows the pod that asked first.

    The kubelet ends the use of the claim meanwhile, as no pod with it is left in the API server.
    """
    process = f"mark-{namespace}"
    objects.apply(installed, namespace, claim("ours", 2, **ALL_OF_IT))
    entry = {"resourceClaimName": "ours"}
    create(installed, namespace, [using("first", entry, **HERE)])
    until_ready(installed, namespace, ["first"])
    stubborn = using("stubborn", entry, f": {process}; {IGNORES_TERM}", **HERE, terminationGracePeriodSeconds=GRACE_S)
    create(installed, namespace, [stubborn])
    until_ready(installed, namespace, ["stubborn"])
    create(installed, namespace, gpu_pods.fill(WORKER, ["next"]))
    gpu_pods.until_waiting(installed, namespace, ["next"])
    key = WORKER, named(installed, namespace, "ours")["metadata"]["uid"]
    delete(installed, namespace, ["first", "stubborn"])
    gpu_pods.until_pods(installed, namespace, "the first is gone", lambda found: "first" not in found)
    delete(installed, namespace, ["stubborn"], *gpu_pods.FORCED)
    outlived = {"its pod": False, "its CDI file": False}

    def next_runs() -> bool:
        found = pods(installed, namespace)
        has_slice, has_file = is_granted(found["next"]), key in handed_over.files(installed)
        # Read afterwards: what runs now ran then.
        if left := gpu_pods.processes(process):
            assert not has_slice, f"given on while {left} run"
            outlived["its pod"] |= "stubborn" not in found
            outlived["its CDI file"] |= not has_file
        return is_ready(found["next"])

    until("the next pod runs", next_runs, within_s=240)
    assert all(outlived.values()), outlived
    delete(installed, namespace, ["next"])
    gpu_pods.until_gone(installed, namespace)
    until_given_back(installed, namespace, "ours")

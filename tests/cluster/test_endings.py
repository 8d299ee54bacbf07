"""However a pod ends, its slice is free afterwards, and belongs to it until none of its processes is left."""

import json
import secrets

import pytest
from cluster import gpu_pods, product
from cluster.gpu_pods import create, delete, fill, pod, until_ready, until_waiting
from cluster.harness.cluster import Cluster
from cluster.waiting import Unmet, until

SMALL = {"sluice.dev/profile": "1g.5gb"}
WHOLE = {"sluice.dev/profile": "7g.40gb"}
pytestmark = [
    pytest.mark.usefixtures("given_back", "handed_back"),
    pytest.mark.parametrize("namespace", ["tickets", "dra"], indirect=True),
]


def mark() -> str:
    """By which the machine's processes are searched: nothing but the container's command has it."""
    return f"process-{secrets.token_hex(6)}"


def evict(cluster: Cluster, namespace: str, name: str) -> str:
    """What the API server answered to an eviction; a refused one begins with `Error`."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    return cluster.kubectl("create", "--raw", path, "--filename=-", stdin=json.dumps(body), check=False)


def test_a_slice_is_kept_while_a_deleted_pod_still_saves_its_work(installed: Cluster, namespace: str) -> None:
    """A checkpoint that is written after TERM meets no next tenant on the device."""
    process = mark()
    script = f": {process}; trap 'sleep 6; exit 0' TERM; while :; do sleep 1 & wait $!; done"
    create(installed, namespace, [pod("saves", SMALL, script=script, terminationGracePeriodSeconds=60)])
    until_ready(installed, namespace, ["saves"])
    gpu_pods.until_placed(installed, namespace, {"saves/main": ["1g.5gb"]})
    assert gpu_pods.processes(process)
    delete(installed, namespace, ["saves"])

    def given_back() -> bool:
        is_free = not gpu_pods.places(installed, namespace)
        # Read afterwards: what runs now ran then.
        assert not (is_free and (left := gpu_pods.processes(process))), f"given back while {left} run"
        return is_free

    until("its slice is given back", given_back)


def test_the_next_pod_waits_for_the_processes_of_one_that_was_deleted_by_force(
    installed: Cluster, namespace: str
) -> None:
    """
    Two tenants never meet on a device, although the first pod's object is gone.

    On one machine it ignores TERM for its whole grace period; on the other another program begins at TERM, which would
    open the device late.
    """
    first, second = (node.name for node in installed.workers)
    stubborn, half, other_half = mark(), mark(), mark()
    late = half + other_half
    ignores = f": {stubborn}; trap '' TERM; while :; do sleep 1; done"
    begins = (
        f"A={half}; B={other_half}; trap 'exec sh -c \": $A$B; while :; do sleep 1; done\"' TERM;"
        " while :; do sleep 1 & wait $!; done"
    )
    create(
        installed,
        namespace,
        [
            *fill(first, ["stubborn"], script=ignores, terminationGracePeriodSeconds=45),
            *fill(second, ["late"], script=begins, terminationGracePeriodSeconds=45),
        ],
    )
    until_ready(installed, namespace, ["stubborn", "late"])
    create(installed, namespace, [*fill(first, ["after-stubborn"]), *fill(second, ["after-late"])])
    until_waiting(installed, namespace, ["after-stubborn", "after-late"])
    # The kubelet keeps the grace period that it began with; the API server forgets the object at once.
    delete(installed, namespace, ["stubborn", "late"])
    until("the late process is there", lambda: gpu_pods.processes(late))
    delete(installed, namespace, ["stubborn", "late"], "--force", "--grace-period=0")
    assert gpu_pods.processes(stubborn)
    seen: set[str] = set()

    def both_started() -> bool:
        found = gpu_pods.pods(installed, namespace)
        assert not {"stubborn", "late"} & set(found)
        for process, successor in ((stubborn, "after-stubborn"), (late, "after-late")):
            has_slice = gpu_pods.is_granted(found[successor])
            # Read afterwards: what runs now ran then.
            if left := gpu_pods.processes(process):
                seen.add(successor)
                assert not has_slice, f"{successor} has the slice while {left} run"
        return all(gpu_pods.is_ready(found[each]) for each in ("after-stubborn", "after-late"))

    until("the next pods run", both_started)
    assert seen == {"after-stubborn", "after-late"}, "no process outlived its pod: nothing was tried"


def test_a_process_that_is_killed_at_once_is_gone_before_its_slice(installed: Cluster, namespace: str) -> None:
    """`kubectl delete --force` of a running pod, the usual remedy for one that hangs."""
    process = mark()
    create(installed, namespace, [pod("hangs", SMALL, script=f": {process}; trap '' TERM; while :; do sleep 1; done")])
    until_ready(installed, namespace, ["hangs"])
    gpu_pods.until_placed(installed, namespace, {"hangs/main": ["1g.5gb"]})
    delete(installed, namespace, ["hangs"], "--force", "--grace-period=0")

    def given_back() -> bool:
        is_free = not gpu_pods.places(installed, namespace)
        assert not (is_free and (left := gpu_pods.processes(process))), f"given back while {left} run"
        return is_free

    until("its slice is given back", given_back)


def test_what_ends_by_itself_gives_its_slice_back(installed: Cluster, namespace: str) -> None:
    """Pods that succeeded, failed or belong to a completed Job stay as objects; their slices do not."""
    template = pod("", SMALL, script="exit 0")
    del template["metadata"]["name"]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job"},
        "spec": {
            "completions": 3,
            "parallelism": 2,
            "template": {"metadata": template["metadata"], "spec": template["spec"]},
        },
    }
    create(
        installed,
        namespace,
        [pod("succeeds", SMALL, script="exit 0"), pod("fails", SMALL, script="sleep 2; exit 3"), job],
    )
    where = f"--namespace={namespace}"
    installed.kubectl(where, "wait", "--for=condition=Complete", "job/job", "--timeout=180s", timeout_s=190)
    until(
        "both have ended",
        lambda: (
            {
                name: found["status"]["phase"]
                for name, found in gpu_pods.pods(installed, namespace).items()
                if name in ("succeeds", "fails")
            }
            == {"succeeds": "Succeeded", "fails": "Failed"}
        ),
    )
    gpu_pods.until_returned(installed, namespace)
    assert len(gpu_pods.pods(installed, namespace)) == 5


def test_a_pod_deleted_while_it_waits_takes_nothing_later(installed: Cluster, namespace: str) -> None:
    """Its place in the queue goes with it: the one behind it is served, and nothing is made for a pod that is gone."""
    node = installed.workers[0].name
    create(installed, namespace, fill(node))
    until_ready(installed, namespace, ["filler"])
    create(installed, namespace, fill(node, ["gives-up"]))
    why = until_waiting(installed, namespace, ["gives-up"])["gives-up"]
    assert why.startswith("GpuLayoutFull: "), why
    create(installed, namespace, fill(node, ["behind"]))
    until_waiting(installed, namespace, ["behind"])
    installed.kubectl(f"--namespace={namespace}", "delete", "pod", "gives-up", "--timeout=60s", timeout_s=70)
    gpu_pods.until_held_by(installed, namespace, ["filler"])
    delete(installed, namespace, ["filler"])
    until_ready(installed, namespace, ["behind"])
    gpu_pods.until_held_by(installed, namespace, ["behind"])


def test_an_eviction_waits_for_the_budget_and_then_frees_the_slice(installed: Cluster, namespace: str) -> None:
    """What a cluster autoscaler or `kubectl drain` asks for: refused with 429 while one is the least, then granted."""
    both = {"metadata": {"name": "one-stays"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"tier": "a"}}}}
    serving = [pod(name, SMALL) for name in ("serves", "stands-in")]
    for each in serving:
        each["metadata"]["labels"] = {"tier": "a"}
    create(installed, namespace, [{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", **both}, serving[0]])
    until_ready(installed, namespace, ["serves"])
    until(
        "the budget holds the pod",
        lambda: "would violate the pod's disruption budget" in evict(installed, namespace, "serves"),
    )
    gpu_pods.until_held_by(installed, namespace, ["serves"])
    create(installed, namespace, [serving[1]])
    until_ready(installed, namespace, ["stands-in"])
    until("the eviction is granted", lambda: '"Success"' in evict(installed, namespace, "serves"))
    gpu_pods.until_held_by(installed, namespace, ["stands-in"])
    assert gpu_pods.is_ready(gpu_pods.pods(installed, namespace)["stands-in"])


def test_a_drained_machine_gives_all_slices_back_and_its_pods_go_elsewhere(installed: Cluster, namespace: str) -> None:
    """Maintenance by the usual way: `kubectl drain`, with Sluice's own services on that machine too."""
    broker = gpu_pods.pods(installed, "sluice-system")["sluice-nats-0"]
    # Not the broker's: its volume is on its machine's disk, so that it could not go.
    stays = broker["spec"]["nodeName"]
    (leaves,) = [node.name for node in installed.workers if node.name != stays]
    template = pod("replica", WHOLE)
    del template["metadata"]["name"]
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "replicas"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "replica"}},
            "template": {"metadata": template["metadata"], "spec": {**template["spec"], "restartPolicy": "Always"}},
        },
    }

    def nodes(*, ready: int) -> bool:
        found = [each for each in gpu_pods.pods(installed, namespace).values() if gpu_pods.is_ready(each)]
        return len(found) == ready and {each["spec"]["nodeName"] for each in found} == {wanted}

    installed.kubectl("cordon", stays)
    try:
        create(installed, namespace, [deployment])
        wanted = leaves
        until("both run on the machine that will leave", lambda: nodes(ready=2))
        create(installed, namespace, [pod("waits", WHOLE)])
        why = until_waiting(installed, namespace, ["waits"])["waits"]
        assert "cordoned" in why, why
    finally:
        installed.kubectl("uncordon", stays)
    until_ready(installed, namespace, ["waits"])
    try:
        options = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=240s"]
        installed.kubectl("drain", leaves, *options, timeout_s=250)
        until(
            f"no slice is left on {leaves}",
            lambda: not [each for gpu in gpu_pods.gpus(installed) if gpu["node"] == leaves for each in gpu["slices"]],
        )
        wanted = stays
        until(f"{stays} is full", lambda: nodes(ready=2))

        def waiting() -> list[str]:
            found = gpu_pods.pods(installed, namespace).values()
            return [why for each in found if not gpu_pods.is_ready(each) and (why := gpu_pods.waits_for(each))]

        third = until("one, the third, waits for room", lambda: waiting() if len(waiting()) == 1 else Unmet(waiting()))
        assert third[0].startswith("GpuLayoutFull: "), third
        assert "cordoned" in third[0], third
    finally:
        installed.kubectl("uncordon", leaves)
        product.wait(installed)
    until(
        "all three run",
        lambda: (
            sorted(
                each["spec"]["nodeName"]
                for each in gpu_pods.pods(installed, namespace).values()
                if gpu_pods.is_ready(each)
            )
            == sorted([leaves, stays, stays])
        ),
    )

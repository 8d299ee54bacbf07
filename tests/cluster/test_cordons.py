"""Nodes that are closed, broken, or full: pods wait with a reason that helps, and start when they can."""

import time
from collections.abc import Iterator

import pytest
from cluster import breaking, gpu_pods, judging
from cluster.gpu_pods import Json, create, devices, manifest, pods, waits_for
from cluster.harness.cluster import Cluster
from cluster.waiting import Unmet, until

FIRST, SECOND = "worker-1", "worker-2"
WHOLE = "7g.40gb"
SILENCE_S = 30
"""A pod that was not answered for so long is warned of."""
PINNED_AT_ONCE = 2
"""So many gates may open between a cordon and the scheduler's next look."""


@pytest.fixture(autouse=True)
def left_open(installed: Cluster, namespace: str) -> Iterator[None]:
    """Every machine takes pods again, and none is left."""
    yield
    breaking.uncordon(installed, FIRST, SECOND)
    gpu_pods.delete(installed, namespace, pods(installed, namespace))
    gpu_pods.until_gone(installed, namespace)
    gpu_pods.until_returned(installed, namespace)
    breaking.until_whole(installed)


def test_pods_created_while_their_node_is_cordoned_run_on_another(installed: Cluster, namespace: str) -> None:
    """
    A pod that was pinned in the moment of the cordon is refused there by the scheduler, and nothing unpins it: it says
    so, and runs when it is created again. More than such a moment's would wait for the uncordon on slices of their own.
    """
    names = []
    for number, closed in enumerate((FIRST, SECOND)):
        now = [f"pod-{number}-{each}" for each in range(4)]
        create(installed, namespace, [manifest(name) for name in now])
        breaking.cordon(installed, closed)
        names += now
        _create_again_what_was_pinned(installed, namespace, names)
        found = gpu_pods.until_ready(installed, namespace, names)
        judging.check(installed)
        create(installed, namespace, [manifest(f"late-{number}")])
        names.append(f"late-{number}")
        found = gpu_pods.until_ready(installed, namespace, names)
        assert found[f"late-{number}"]["spec"]["nodeName"] != closed
        breaking.uncordon(installed, closed)
    judging.check(installed)


def _create_again_what_was_pinned(installed: Cluster, namespace: str, names: list[str]) -> None:
    """As its condition advises; once all pods run or were not started."""

    def is_decided(found: Json) -> bool:
        return gpu_pods.is_ready(found) or waits_for(found).startswith("NotStarted")

    found = gpu_pods.until_pods(
        installed,
        namespace,
        "all run or were not started",
        lambda found: all(is_decided(found[name]) for name in names),
    )
    pinned = [name for name in names if not gpu_pods.is_ready(found[name])]
    assert len(pinned) <= PINNED_AT_ONCE, {name: gpu_pods.seen(found[name]) for name in pinned}
    assert all("create it again" in waits_for(found[name]) for name in pinned)
    gpu_pods.delete(installed, namespace, pinned)
    gpu_pods.until_pods(installed, namespace, f"{pinned} are gone", lambda found: not found.keys() & {*pinned})
    if pinned:
        create(installed, namespace, [manifest(name) for name in pinned])


def test_a_pod_waits_for_cordoned_nodes_and_says_so(installed: Cluster, namespace: str) -> None:
    """A user who is advised a toleration would put the pod on a node that is about to be switched off."""
    breaking.cordon(installed, FIRST, SECOND)
    create(installed, namespace, [manifest("waits")])
    why = until("it says why", lambda: waits_for(pods(installed, namespace)["waits"]))
    assert "cordon" in why
    assert "toleration" not in why
    breaking.uncordon(installed, FIRST, SECOND)
    gpu_pods.until_ready(installed, namespace, ["waits"])


def test_a_pod_waits_for_a_node_that_is_not_ready_and_says_so(installed: Cluster, namespace: str) -> None:
    """It may come back in a minute, and then the pod starts: so nothing final, and no toleration."""
    create(installed, namespace, [manifest("runs", nodeSelector=gpu_pods.on(FIRST))])
    before = gpu_pods.until_ready(installed, namespace, ["runs"])["runs"]
    breaking.kill_kubelet(installed, FIRST)
    try:
        until(f"{FIRST} is not ready", lambda: not breaking.is_node_ready(installed, FIRST))
        create(installed, namespace, [manifest("waits", nodeSelector=gpu_pods.on(FIRST)), manifest("elsewhere")])
        found = gpu_pods.until_ready(installed, namespace, ["elsewhere"])
        assert found["elsewhere"]["spec"]["nodeName"] == SECOND
        why = until("it says why", lambda: waits_for(pods(installed, namespace)["waits"]))
        assert "not ready" in why
        assert "toleration" not in why
    finally:
        breaking.start_kubelet(installed, FIRST)
    found = gpu_pods.until_ready(installed, namespace, ["waits", "runs", "elsewhere"])
    assert devices(found["runs"]) == devices(before), "a machine that was away for a minute kept its pods"
    judging.check(installed)


def test_a_pod_that_waited_long_starts_without_a_false_alarm(installed: Cluster, namespace: str) -> None:
    """A full fleet is no fault: a warning that a service may be down sends an administrator after nothing."""
    full = [f"full-{number}" for number in range(4)]
    create(installed, namespace, [manifest(name, WHOLE) for name in full])
    gpu_pods.until_ready(installed, namespace, full)
    create(installed, namespace, [manifest("waits", WHOLE)])
    asked = time.monotonic()

    def look() -> Unmet | bool:
        why = waits_for(pods(installed, namespace)["waits"])
        return (time.monotonic() > asked + SILENCE_S + 5 and bool(why)) or Unmet(why)

    until("it has waited long", look)
    gpu_pods.delete(installed, namespace, full[:1])
    gpu_pods.until_ready(installed, namespace, ["waits"])
    told = gpu_pods.described(installed, namespace, "waits")
    assert "may be down" not in told
    assert "has answered" not in told
    judging.check(installed)

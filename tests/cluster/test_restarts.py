"""Components killed at a bad moment: pods that were on their way still run, on one device each."""

from collections.abc import Iterator

import pytest
from cluster import breaking, gpu_pods, judging
from cluster.gpu_pods import Json, create, is_granted, manifest, pods
from cluster.harness.box import BoxError
from cluster.harness.cluster import Cluster
from cluster.waiting import until

WORKER = "worker-1"
HERE = {"nodeSelector": gpu_pods.on(WORKER)}
WHOLE = "7g.40gb"
pytestmark = pytest.mark.parametrize("namespace", ["tickets", "dra"], indirect=True)


@pytest.fixture(autouse=True)
def left_whole(installed: Cluster, handed_back: None, namespace: str) -> Iterator[None]:
    """Nothing that a test killed stays away."""
    yield
    gpu_pods.delete(installed, namespace, pods(installed, namespace))
    gpu_pods.until_gone(installed, namespace)
    gpu_pods.until_returned(installed, namespace)
    breaking.until_whole(installed)


def test_pods_start_and_end_though_the_kubelet_was_killed_meanwhile(installed: Cluster, namespace: str) -> None:
    """A kubelet is upgraded under running pods: it finds halfway mounts at its start, and volumes of ended pods."""
    names = [f"pod-{number}" for number in range(4)]
    create(installed, namespace, [manifest(name, **HERE) for name in names])
    gpu_pods.until_pods(installed, namespace, "one is granted", lambda found: any(map(is_granted, found.values())))
    breaking.kill_kubelet(installed, WORKER)
    breaking.start_kubelet(installed, WORKER)
    gpu_pods.until_ready(installed, namespace, names)
    judging.check(installed)
    gpu_pods.delete(installed, namespace, names)
    breaking.kill_kubelet(installed, WORKER)
    breaking.start_kubelet(installed, WORKER)
    gpu_pods.until_gone(installed, namespace)
    gpu_pods.until_returned(installed, namespace)


def test_a_slice_stays_with_a_force_deleted_pod_until_its_processes_end(installed: Cluster, namespace: str) -> None:
    """The object is gone at once; the app ignores TERM and runs on, and longer where the kubelet is away."""
    stubborn = {"command": gpu_pods.IGNORES_TERM, **HERE}
    create(installed, namespace, [manifest(name, WHOLE, **stubborn) for name in ("old-1", "old-2")])  # type: ignore[arg-type]
    old = gpu_pods.until_ready(installed, namespace, ["old-1", "old-2"])
    breaking.kill_kubelet(installed, WORKER)
    gpu_pods.delete(installed, namespace, ["old-1", "old-2"], *gpu_pods.FORCED)
    create(installed, namespace, [manifest("next", WHOLE, **HERE)])
    uids = {pod["metadata"]["uid"] for pod in old.values()}
    # Long enough for a service that forgot: the agent looks again every few seconds.
    until("the condition says what it waits for", lambda: gpu_pods.waits_for(pods(installed, namespace)["next"]))
    assert uids == {uid for each in judging.holders(installed).values() for uid in each}
    assert not is_granted(pods(installed, namespace)["next"])
    breaking.start_kubelet(installed, WORKER)
    gpu_pods.until_ready(installed, namespace, ["next"])
    judging.check(installed)


def test_pods_run_on_and_new_ones_start_though_containerd_was_killed(installed: Cluster, namespace: str) -> None:
    """An upgrade of the runtime ends no training."""
    create(installed, namespace, [manifest("stays", **HERE)])
    before = gpu_pods.until_ready(installed, namespace, ["stays"])["stays"]
    create(installed, namespace, [manifest("comes", **HERE)])
    gpu_pods.until_pods(installed, namespace, "it is granted", lambda found: is_granted(found["comes"]))
    breaking.restart_containerd(installed, WORKER)
    found = gpu_pods.until_ready(installed, namespace, ["stays", "comes"])
    assert _containers(found["stays"]) == _containers(before)
    judging.check(installed)


def test_waiting_pods_and_new_ones_are_served_though_the_api_server_was_killed(
    installed: Cluster, namespace: str
) -> None:
    """What was decided while it was away is written when it is back, and a pod that ended meanwhile is noticed."""
    fillers = [f"full-{number}" for number in range(3)]
    create(installed, namespace, [manifest(name, WHOLE) for name in fillers])
    create(installed, namespace, [manifest("ends", WHOLE, command="while ! [ -e /end ]; do sleep 0.2; done")])
    running = gpu_pods.until_ready(installed, namespace, [*fillers, "ends"])
    create(installed, namespace, [manifest("waits", WHOLE)])
    gpu_pods.until_pods(installed, namespace, "it waits", lambda found: bool(gpu_pods.waits_for(found["waits"])))
    breaking.kill_api_server(installed)
    assert breaking.kill_processes(running["ends"])
    breaking.start_api_server(installed)
    gpu_pods.until_ready(installed, namespace, ["waits"])
    judging.check(installed)
    gpu_pods.delete(installed, namespace, [*fillers, "waits"])
    names = [f"new-{number}" for number in range(6)]
    create(installed, namespace, [manifest(name) for name in names])
    breaking.kill_api_server(installed)
    breaking.start_api_server(installed)
    gpu_pods.until_ready(installed, namespace, names)
    judging.check(installed)


@pytest.mark.parametrize("component", breaking.COMPONENTS)
def test_a_pod_starts_though_a_part_of_sluice_is_killed_meanwhile(
    installed: Cluster, namespace: str, component: str
) -> None:
    """Once by `kubectl delete --force`, once by its process: no service is needed twice in a row for one pod."""
    for number, is_deleted in enumerate((True, False)):
        before = breaking.pods_of(installed, component)
        assert before
        made = [manifest(f"pod-{number}", **HERE)]
        # A Service needs a moment to lead to a webhook that is ready: controllers try again, too.
        until("its pod is made", lambda made=made: create(installed, namespace, made) is None)  # type: ignore[misc]
        for each in before:
            if is_deleted:
                breaking.force_delete(installed, each)
            else:
                assert breaking.kill_processes(each)
        gpu_pods.until_ready(installed, namespace, [f"pod-{number}"])
        breaking.until_new(installed, component, before)
    gpu_pods.until_ready(installed, namespace, ["pod-0", "pod-1"])
    gpu_pods.until_placed(installed, namespace, {f"pod-{number}/main": ["1g.5gb"] for number in range(2)})
    judging.check(installed)


def test_without_the_webhook_gpu_pods_are_refused_and_others_start(installed: Cluster, namespace: str) -> None:
    """A GPU pod that went by ungated would see a device of another's; nothing else may depend on Sluice."""
    _scale_webhook(installed, 0)
    try:
        until("the webhook is away", lambda: not breaking.pods_of(installed, "webhook"))
        create(installed, namespace, [manifest("plain", None)])
        # While its last connection ends it may still answer: that pod was accepted as any other.
        until("a GPU pod is refused", lambda: _why_refused(installed, namespace, "early"))
        refused = _why_refused(installed, namespace, "refused")
        assert "sluice" in refused
        assert "webhook" in refused
        gpu_pods.until_ready(installed, namespace, ["plain"])
    finally:
        _scale_webhook(installed, 1)
    until("GPU pods are accepted again", lambda: not _why_refused(installed, namespace, "served"))
    gpu_pods.until_ready(installed, namespace, ["served"])
    assert set(pods(installed, namespace)) - {"early"} == {"plain", "served"}


def _why_refused(cluster: Cluster, namespace: str, name: str) -> str:
    """Empty where it is accepted, now or before."""
    try:
        create(cluster, namespace, [manifest(name)])
    except BoxError as error:
        return "" if "already exists" in str(error) else str(error)
    return ""


def _scale_webhook(cluster: Cluster, replicas: int) -> None:
    cluster.kubectl("--namespace=sluice-system", "scale", "deployment/sluice-webhook", f"--replicas={replicas}")


def _containers(pod: Json) -> list[str]:
    return [each["containerID"] for each in pod["status"]["containerStatuses"]]

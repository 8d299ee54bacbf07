"""A worker that loses its power: what was bound there runs again on devices that exist, and nothing is given twice."""

import pytest
from cluster import breaking, gpu_pods, judging
from cluster.gpu_pods import Json, create, devices, manifest, pods
from cluster.harness.cluster import Cluster
from cluster.waiting import Unmet, until

UNMOUNT = "for at in $(mount | grep -o ' /run/sluice[^ ]*' | sort -r); do umount -l $at 2>/dev/null; done"
PERSIST = "for try in 1 2 3 4 5 6 7 8; do {unmount}; rm -rf {what} && exit 0; done; exit 1"
"""The agent restores a mount meanwhile."""
EMPTY = {
    "covered": "mount -t tmpfs tmpfs /run/sluice",
    "removed": PERSIST.format(unmount=UNMOUNT, what="/run/sluice/*"),
    "removed with its folder": PERSIST.format(unmount=UNMOUNT, what="/run/sluice"),
}
"""Mistakes of an administrator."""


BOTH = pytest.mark.parametrize("namespace", ["tickets", "dra"], indirect=True)
pytestmark = pytest.mark.usefixtures("handed_back")


@BOTH
@pytest.mark.parametrize("carries_broker", [False, True], ids=["of pods alone", "of the broker"])
def test_after_a_reboot_pods_run_again_on_devices_that_exist(
    installed: Cluster, namespace: str, carries_broker: bool
) -> None:
    """
    Instances and /run/sluice are gone with the power. A pod that is started again sees no device of before, and one
    that is not gives its slice back.
    """
    worker = _worker(installed, carries_broker=carries_broker)
    here = {"nodeSelector": gpu_pods.on(worker)}
    create(
        installed,
        namespace,
        [
            manifest("again", restart="Always", **here),
            manifest("again-larger", "3g.20gb", restart="Always", **here),
            manifest("once", restart="Never", **here),
        ],
    )
    before = gpu_pods.until_ready(installed, namespace, ["again", "again-larger", "once"])
    breaking.reboot(installed, worker)
    again = {name: before[name] for name in ("again", "again-larger")}
    until("pods run again, each on a device that is there", lambda: _all_run_again(installed, namespace, again))
    judging.check(installed)
    gpu_pods.until_pods(installed, namespace, "`once` has ended", lambda found: not gpu_pods.is_held(found["once"]))
    until(
        "its slice is returned", lambda: {each["pod"] for each in gpu_pods.slices(installed, namespace)} == set(again)
    )
    create(installed, namespace, [manifest("next", **here)])
    gpu_pods.until_ready(installed, namespace, ["next"])
    judging.check(installed)
    _leave(installed, namespace)


@pytest.mark.parametrize("how", EMPTY)
def test_pods_start_where_run_sluice_was_emptied_by_hand(installed: Cluster, namespace: str, how: str) -> None:
    """The agent learns of no boot: what runs goes on, what is started again and what is new starts."""
    worker = _worker(installed, carries_broker=False)
    here = {"nodeSelector": gpu_pods.on(worker)}
    create(installed, namespace, [manifest("stays", **here), manifest("again", restart="Always", **here)])
    before = gpu_pods.until_ready(installed, namespace, ["again", "stays"])
    installed.node(worker).box.run("sh", "-c", EMPTY[how])
    breaking.kill_processes(before["again"])
    create(installed, namespace, [manifest("next", **here)])
    until("`again` runs again", lambda: _all_run_again(installed, namespace, {"again": before["again"]}))
    found = gpu_pods.until_ready(installed, namespace, ["stays", "next"])
    assert found["stays"]["status"]["containerStatuses"] == before["stays"]["status"]["containerStatuses"]
    judging.check(installed)
    _leave(installed, namespace)


def _worker(cluster: Cluster, *, carries_broker: bool) -> str:
    broker = breaking.pods_of(cluster, "nats")[0]["spec"]["nodeName"]
    return next(each.name for each in cluster.workers if (each.name == broker) is carries_broker)


def _all_run_again(cluster: Cluster, namespace: str, before: dict[str, Json]) -> Unmet | bool:
    """Each in another container than before, whose processes see a device that `kubectl get gpus` shows as its own."""
    now, there, seen = pods(cluster, namespace), gpu_pods.slices(cluster, namespace), judging.holders(cluster)
    for name, old in before.items():
        if name not in now or not gpu_pods.is_ready(now[name]) or _container(now[name]) == _container(old):
            return Unmet({each: gpu_pods.seen(pod) for each, pod in now.items()})
        exist = sorted(each["uuid"] for each in there if each["pod"] == name and each["state"] == "Ready")
        runs_on = sorted(uuid for uuid, holders in seen.items() if now[name]["metadata"]["uid"] in holders)
        # Where ResourceClaims hand over, no annotation names a device.
        told = devices(now[name]) or exist
        if not told == exist == runs_on:
            return Unmet(f"{name}: granted {told}, there {exist}, seen by its processes {runs_on}")
    return True


def _container(pod: Json) -> str:
    return next((each.get("containerID", "") for each in pod["status"].get("containerStatuses") or []), "")


def _leave(cluster: Cluster, namespace: str) -> None:
    gpu_pods.delete(cluster, namespace, pods(cluster, namespace))
    gpu_pods.until_gone(cluster, namespace)
    gpu_pods.until_returned(cluster, namespace)
    breaking.until_whole(cluster)

"""A container that gets its devices by a ResourceClaim has what its CDI file says, and nothing else."""

from pathlib import Path

import pytest
from cluster import breaking, gpu_pods, handed_over, judging, pod_resources
from cluster.gpu_pods import SLEEPS, container, create, is_ready, pod, pods, until_pods, until_ready
from cluster.handed_over import Inside, inside, instances, looking
from cluster.harness.cluster import Cluster
from cluster.images.archive import Image, write_archive
from cluster.images.small import busybox_image
from cluster.prompt import CERTIFIED, home_on_the_control_plane, typed
from cluster.waiting import Unmet, until

from sluice.contracts.dra.names import DRIVER

SMALL = {"sluice.dev/profile": "1g.5gb"}
WHOLE = {"sluice.dev/profile": "7g.40gb"}
SHARE = {"sluice.dev/mode": "mps", "sluice.dev/memory": "2Gi"}
FRACTION = {"sluice.dev/sm-partition": "20", "sluice.dev/memory": "4Gi"}
LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
PODS = 300
HEALTH_SINCE = 36
"""The minor version of Kubernetes that shows the health of devices without a feature gate (ResourceHealthStatus)."""
pytestmark = [pytest.mark.usefixtures("handed_back"), pytest.mark.parametrize("namespace", ["dra"], indirect=True)]


def plain(cluster: Cluster, namespace: str) -> Inside:
    """What each container of this cluster has without devices."""
    create(cluster, namespace, [pod("plain", {}, looking())])
    until_ready(cluster, namespace, ["plain"])
    return inside(cluster, namespace, "plain")


def with_variable(cluster: Cluster, folder: Path, variable: str) -> str:
    """The name of the test image with one more variable in it, brought to every worker."""
    image = busybox_image(folder)
    other = Image(
        "localhost/sluice-cuda:1", {**image.settings, "Env": [*image.settings["Env"], variable]}, image.layers
    )
    write_archive([other], folder / "image.tar")
    cluster.import_images(folder / "image.tar")
    return other.name


def test_each_container_has_what_its_cdi_file_says(installed: Cluster, namespace: str) -> None:
    """MIG devices, whole GPUs and shares, two containers, an init container; a container without devices has none."""
    both = {"train.sluice.dev/profile": "2g.10gb", "serve.sluice.dev/profile": "1g.5gb"}
    steps = {"warm.sluice.dev/profile": "1g.5gb", "main.sluice.dev/profile": "1g.5gb"}
    warm = looking("warm", "exit 0")
    create(
        installed,
        namespace,
        [
            pod("one", SMALL, looking()),
            pod("several", {**SMALL, "sluice.dev/gpus": "2"}, looking()),
            pod("whole", {}, looking(resources={"limits": {"nvidia.com/gpu": "1"}})),
            pod("share", SHARE, looking()),
            pod("fraction", FRACTION, looking()),
            pod("pair", both, looking("train"), looking("serve"), looking("logs")),
            pod("steps", steps, looking(), initContainers=[warm]),
        ],
    )
    without = plain(installed, namespace)
    found = until_ready(installed, namespace, ("one", "several", "whole", "share", "fraction", "pair", "steps"))

    def check(name: str, of: str = "main", request: str = "") -> Inside:
        return handed_over.check(installed, found[name], without, of, request or of)

    seen = {name: check(name) for name in ("one", "several", "whole", "share", "fraction", "steps")}
    seen |= {of: check("pair", of) for of in ("train", "serve")}
    assert {name: len(instances(each)) for name, each in seen.items()} == {
        "one": 2,
        "several": 4,
        "whole": 2,  # a simulated A100 is in MIG mode
        "share": 2,
        "fraction": 2,
        "steps": 2,
        "train": 2,
        "serve": 2,
    }
    assert not instances(seen["train"]) & instances(seen["serve"])
    assert check("steps", "warm", "main").devices == seen["steps"].devices
    for name in ("share", "fraction"):
        assert seen[name].env["CUDA_MPS_PIPE_DIRECTORY"].startswith("/run/sluice/slice"), name
        assert set(seen[name].mounts) == {"/run/sluice/slice"}
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in seen["fraction"].env
    logs = inside(installed, namespace, "pair", "logs").beyond(without)
    assert not logs.devices
    assert not logs.mounts
    judging.check(installed)


def test_an_image_that_asks_for_all_gpus_sees_only_its_own(installed: Cluster, namespace: str, tmp_path: Path) -> None:
    """CUDA images carry `NVIDIA_VISIBLE_DEVICES=all`: what admission and the CDI file say comes after it."""
    greedy = with_variable(installed, tmp_path, "NVIDIA_VISIBLE_DEVICES=all")
    containers = (looking(image=greedy), looking("logs", image=greedy))
    create(installed, namespace, [pod("greedy", SMALL, *containers), pod("none", {}, looking(image=greedy))])
    without = plain(installed, namespace)
    found = until_ready(installed, namespace, ["greedy", "none"])["greedy"]
    seen = handed_over.check(installed, found, without, "main")
    assert seen.env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert len(instances(seen)) == 2
    logs, none = (inside(installed, namespace, *of).beyond(without) for of in (("greedy", "logs"), ("none", "main")))
    assert logs.env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert not logs.devices | none.devices


def test_the_claim_says_where_its_devices_are_and_who_has_them(installed: Cluster, namespace: str) -> None:
    """Allocated with its time, where servers keep that (1.36 and newer), and reserved for its pod in one."""
    create(installed, namespace, [pod("one", SMALL)])
    found = until_ready(installed, namespace, ["one"])["one"]
    claim = handed_over.claim_of(installed, found)
    uid = found["metadata"]["uid"]
    assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "one", "uid": uid}]
    allocation = claim["status"]["allocation"]
    assert ("allocationTimestamp" in allocation) == (installed.minor not in ("1.34", "1.35"))
    (result,) = allocation["devices"]["results"]
    assert (result["driver"], result["pool"], result["request"]) == (
        "gpu.sluice.dev",
        found["spec"]["nodeName"],
        "main",
    )
    assert not gpu_pods.granted(found)


def test_an_xid_is_in_the_status_of_the_pod_that_has_the_device(installed: Cluster, namespace: str) -> None:
    """Its owner sees why the program fails; and that the GPU is well again after a reset."""
    if int(installed.minor.partition(".")[2]) < HEALTH_SINCE:
        pytest.skip(f"Kubernetes {installed.minor} shows no health of devices")
    create(installed, namespace, [pod("one", SMALL)])
    node = until_ready(installed, namespace, ["one"])["one"]["spec"]["nodeName"]

    def shown() -> list[tuple[str, str]]:
        (status,) = pods(installed, namespace)["one"]["status"]["containerStatuses"]
        of_all = [one for each in status.get("allocatedResourcesStatus", []) for one in each["resources"]]
        return [(each["health"], each.get("message", "")) for each in of_all]

    until("its device is shown as healthy", lambda: shown() == [("Healthy", "")] or Unmet(shown()))
    (place,) = until("its slice is shown", lambda: gpu_pods.slices(installed, namespace))
    with breaking.xid(installed, node, place["gpu"], 79):
        found = until(
            "its device is shown as unhealthy",
            lambda: [why for health, why in shown() if health == "Unhealthy"] or Unmet(shown()),
        )
        assert "Xid 79" in found[0], found
    until("its device is shown as healthy again", lambda: shown() == [("Healthy", "")] or Unmet(shown()))


def test_a_gang_gets_its_devices_whole_or_none(installed: Cluster, namespace: str) -> None:
    """Four GPUs for four pods: with one taken, none of them has a claim that is allocated."""
    gang = {**WHOLE, "sluice.dev/group": "gang", "sluice.dev/group-size": "4"}
    members = [f"member-{number}" for number in range(4)]
    create(installed, namespace, [pod("first", WHOLE)])
    until_ready(installed, namespace, ["first"])
    create(installed, namespace, [pod(name, gang) for name in members])
    gpu_pods.until_waiting(installed, namespace, members)
    allocated = [each for each in handed_over.claims(installed, namespace) if each.get("status", {}).get("allocation")]
    assert len(allocated) == 1
    gpu_pods.delete(installed, namespace, ["first"])
    until_ready(installed, namespace, members)
    judging.check(installed)


def test_a_pod_of_higher_priority_gets_the_devices_of_a_preemptible_one(installed: Cluster, namespace: str) -> None:
    """The evicted pod's processes have ended, and its claim is gone, before the next sees the device."""
    node = installed.workers[0].name
    low = {**WHOLE, "sluice.dev/preemptible": "true", "sluice.dev/priority": "-10"}
    here = {"nodeSelector": gpu_pods.on(node)}
    create(installed, namespace, [pod(name, low, **here) for name in ("low-1", "low-2")])
    until_ready(installed, namespace, ["low-1", "low-2"])
    create(installed, namespace, [pod("high", WHOLE, **here)])
    until_ready(installed, namespace, ["high"])
    judging.check(installed)
    left = [name for name, each in pods(installed, namespace).items() if is_ready(each)]
    assert len(left) == 2, left


def test_a_resized_share_has_its_new_size_from_the_next_start(installed: Cluster, namespace: str) -> None:
    """`sluice adjust`: the CDI file changes under the running container, which finds it when it starts again. A smaller
    size counts as soon as no container runs with the old one."""
    create(installed, namespace, [pod("share", SHARE, looking(), restartPolicy="Always")])
    without = plain(installed, namespace)
    now = until_ready(installed, namespace, ["share"])["share"]
    assert handed_over.check(installed, now, without).env[LIMIT] == "0=2048M"
    claim = handed_over.claim_of(installed, now)
    key = now["spec"]["nodeName"], claim["metadata"]["uid"]
    with home_on_the_control_plane(installed) as home:

        def says(command: str) -> str:
            return typed(installed, home, *CERTIFIED, f"sluice {command}")

        for starts, memory, mib, is_smaller in ((1, "3Gi", 3072, False), (2, "1Gi", 1024, True)):
            says(f"adjust {namespace}/share --memory {memory}")
            until(
                "the CDI file has the new size",
                lambda limit=f"0={mib}M": (
                    handed_over.described(claim, handed_over.files(installed)[key]).env[LIMIT] == limit
                ),
            )
            assert ("are shrinking" in says(f"explain {namespace}/share")) is is_smaller
            assert breaking.kill_processes(now)
            until_pods(installed, namespace, "it runs again", lambda found, n=starts: _restarts(found["share"]) == n)
            now = until_ready(installed, namespace, ["share"])["share"]
            assert handed_over.check(installed, now, without).env[LIMIT] == f"0={mib}M"
            gpu_pods.until_placed(installed, namespace, {"share/main": [f"{mib} MiB"]})
        # Its container is another one, so its old size is free at once.
        until("it is small", lambda: "are shrinking" not in says(f"explain {namespace}/share"))


def test_monitoring_reads_from_the_kubelet_which_devices_a_pod_has(installed: Cluster, namespace: str) -> None:
    """The pod-resources API, which DCGM's exporter asks, names claims and CDI devices, those of shares as well."""
    names = {"slice": SMALL, "share": SHARE}
    create(installed, namespace, [pod(name, ask, container("main", SLEEPS)) for name, ask in names.items()])
    for name, found in until_ready(installed, namespace, list(names)).items():
        claim = handed_over.claim_of(installed, found)
        machine = found["spec"]["nodeName"]
        file = handed_over.files(installed)[machine, claim["metadata"]["uid"]]
        (told,) = pod_resources.by_container(installed, machine)[namespace, name, "main"]
        assert told.claim_name == claim["metadata"]["name"]
        assert {each.driver_name for each in told.claim_resources} == {DRIVER}
        devices = {device.name for each in told.claim_resources for device in each.cdi_devices}
        assert devices == {f"{handed_over.KIND}={each['name']}" for each in file["devices"]}


def test_a_burst_of_small_pods_runs_in_waves(installed: Cluster, namespace: str) -> None:
    """More than there is room for, all at once: each runs once, with a device of its own, and no claim is left."""
    names = [f"pod-{number}" for number in range(PODS)]
    create(installed, namespace, [pod(name, SMALL, container("main", "sleep 1")) for name in names])

    def all_ended(found: dict[str, gpu_pods.Json]) -> bool:
        assert not (bad := [name for name, each in found.items() if each["status"].get("phase") == "Failed"]), bad
        return all(found[name]["status"].get("phase") == "Succeeded" for name in names)

    until_pods(installed, namespace, "all have run", all_ended, within_s=480)
    # The pods are still there: their claims are not.
    until("no claim is left", lambda: Unmet(found) if (found := handed_over.left(installed)) else True)
    gpu_pods.until_returned(installed, namespace)


def _restarts(found: gpu_pods.Json) -> int:
    return sum(each["restartCount"] for each in found["status"].get("containerStatuses") or [])

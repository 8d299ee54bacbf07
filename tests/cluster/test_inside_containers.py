"""What a container finds inside is what it was granted, and nothing of another's: read by pods that really run."""

import json
import re

import pytest
from cluster import gpu_pods
from cluster.gpu_pods import container, create, pod, printed, until_ready, variables
from cluster.harness.cluster import Cluster
from cluster.waiting import Unmet, until

LOOKS = (
    "exec 2>&1; env; echo ---; grep /run/sluice /proc/self/mountinfo; echo ---; ls -A /run/sluice /run/sluice/slice;"
    " echo ---; cat /run/sluice/slice/slice.json; echo; echo ---; cd /run/sluice/slice; touch mine; mkdir d;"
    " rm -f slice.json; echo ---; "
)
"""Environment, mounts, files, the ticket, and what trying to write there said; errors in their part, by one stream."""
pytestmark = pytest.mark.usefixtures("given_back")


class Inside:
    """What a container with LOOKS printed."""

    def __init__(self, text: str) -> None:
        env, mounts, self.files, ticket, self.writing, *_ = text.split("---\n")
        self.env = variables(env)
        self.mounts = mounts.splitlines()
        self.ticket = json.loads(ticket) if ticket.strip().startswith("{") else None

    @property
    def devices(self) -> list[str]:
        """Those that an NVIDIA runtime would bring in."""
        return self.env["NVIDIA_VISIBLE_DEVICES"].split(",")


def inside(cluster: Cluster, namespace: str, name: str, of: str = "main") -> Inside:
    def look() -> str:
        text = printed(cluster, namespace, name, of)
        return text if text.count("---\n") == 5 else ""

    return Inside(until(f"{of} of {name} has looked around", look))


def looking(name: str = "main", **more: object) -> dict[str, object]:
    """A container that looks around and stays."""
    return container(name, LOOKS + gpu_pods.SLEEPS, **more)


def check_ticket(seen: Inside) -> None:
    """Mounted once, read-only, with nothing but its own slice in it."""
    (mount,) = seen.mounts
    assert mount.split()[4] == "/run/sluice/slice", mount
    assert "ro" in mount.split()[5].split(","), mount
    assert seen.files.split() == ["/run/sluice:", "slice", "/run/sluice/slice:", "slice.json"]
    assert len(re.findall("Read-only file system", seen.writing)) == 3, seen.writing


def check_event(cluster: Cluster, namespace: str, name: str, of: str, devices: list[str]) -> None:
    """`kubectl describe` names the devices that the container has."""
    described = cluster.kubectl(f"--namespace={namespace}", "describe", "pod", name)
    assert f"{of}: {','.join(devices)}" in described, described


def test_every_container_finds_its_own_devices_and_only_its_own_ticket(installed: Cluster, namespace: str) -> None:
    """Two containers with slices, and one without, whose image's `NVIDIA_VISIBLE_DEVICES=all` shows it no GPUs."""
    small, large = {"sluice.dev/profile": "1g.5gb"}, {"sluice.dev/profile": "2g.10gb", "sluice.dev/gpus": "2"}
    both = {"train.sluice.dev/profile": "3g.20gb", "serve.sluice.dev/profile": "1g.5gb"}
    create(
        installed,
        namespace,
        [
            pod("one", small, looking()),
            pod("several", large, looking()),
            pod("pair", both, looking("train"), looking("serve"), looking("logs")),
            pod("plain", {}, looking()),
        ],
    )
    until_ready(installed, namespace, ["one", "several", "pair", "plain"])
    found = gpu_pods.pods(installed, namespace)
    seen = {
        (name, of): inside(installed, namespace, name, of)
        for name, of in (("one", "main"), ("several", "main"), ("pair", "train"), ("pair", "serve"))
    }
    for (name, of), each in seen.items():
        assert each.devices == gpu_pods.granted(found[name])[of]
        assert each.env["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
        check_ticket(each)
        check_event(installed, namespace, name, of, each.devices)
        assert each.ticket is not None
    assert {key: len(each.devices) for key, each in seen.items()} == {
        ("one", "main"): 1,
        ("several", "main"): 2,
        ("pair", "train"): 1,
        ("pair", "serve"): 1,
    }
    every = [device for each in seen.values() for device in each.devices]
    assert len(set(every)) == len(every) == 5
    owners = {device: name for (name, _), each in seen.items() for device in each.devices}

    def shown() -> dict[str, str]:
        return {each["uuid"]: each["pod"] for each in gpu_pods.slices(installed, namespace)}

    until("kubectl get gpus shows the same", lambda: shown() == owners or Unmet(shown()))
    logs, plain = inside(installed, namespace, "pair", "logs"), inside(installed, namespace, "plain")
    assert logs.devices == ["void"]
    assert "NVIDIA_VISIBLE_DEVICES" not in plain.env
    for each in (logs, plain):
        assert not each.mounts
        assert not [key for key in each.env if key.startswith("SLUICE_")]


def test_an_init_container_prepares_on_the_device_that_its_container_gets(installed: Cluster, namespace: str) -> None:
    """A warm-up on another device is lost work; a sidecar has a device of its own all along."""
    asked = {
        "warm.sluice.dev/profile": "1g.5gb",
        "main.sluice.dev/profile": "1g.5gb",
        "side.sluice.dev/profile": "2g.10gb",
    }
    create(
        installed,
        namespace,
        [
            pod(
                "steps",
                asked,
                looking(),
                initContainers=[looking("side", restartPolicy="Always"), container("warm", LOOKS)],
            )
        ],
    )
    until_ready(installed, namespace, ["steps"])
    side, warm, main = (inside(installed, namespace, "steps", of) for of in ("side", "warm", "main"))
    assert warm.devices == main.devices != side.devices
    gpu_pods.until_placed(installed, namespace, {"steps/main": ["1g.5gb"], "steps/side": ["2g.10gb"]})
    for each in (side, warm, main):
        check_ticket(each)


def test_shares_of_one_user_meet_at_one_daemon_and_others_do_not(installed: Cluster, namespace: str) -> None:
    """Clients of one MPS server can end each other: only pods of one namespace and user may have one pipe directory."""
    share = {"sluice.dev/mode": "mps", "sluice.dev/memory": "2Gi"}
    fraction = {"sluice.dev/sm-partition": "20", "sluice.dev/memory": "4Gi"}
    mine, theirs = {"runAsUser": 1000}, {"runAsUser": 2000}
    create(
        installed,
        namespace,
        [
            pod("first", share, looking(), securityContext=mine),
            pod("second", share, looking(), securityContext=mine),
            pod("other", share, looking(), securityContext=theirs),
            pod("fraction", fraction, looking(), securityContext=mine),
        ],
    )
    names = ("first", "second", "other", "fraction")
    until_ready(installed, namespace, names)
    seen = {name: inside(installed, namespace, name) for name in names}
    home = {name: each.devices for name, each in seen.items()}
    assert home["first"] == home["second"]
    assert len({tuple(each) for each in home.values()}) == 3
    for name, each in seen.items():
        check_event(installed, namespace, name, "main", each.devices)
        assert each.env["CUDA_MPS_PIPE_DIRECTORY"].startswith("/run/sluice/slice"), each.env
        assert {mount.split()[4] for mount in each.mounts} == {"/run/sluice/slice"}, each.mounts
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in seen["fraction"].env


def test_a_pod_that_only_names_a_gpu_runtime_gets_no_gpu(installed: Cluster, namespace: str) -> None:
    """NVIDIA's runtime would show it every GPU of the machine, as CUDA images say `all`."""
    name = f"nvidia-{namespace}"
    create(
        installed,
        namespace,
        [{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": "runc"}],
    )
    try:
        create(installed, namespace, [pod("names-it", {}, looking(), runtimeClassName=name)])
        until_ready(installed, namespace, ["names-it"])
        seen = inside(installed, namespace, "names-it")
    finally:
        installed.kubectl("delete", "runtimeclass", name)
    assert seen.devices == ["void"]
    assert not seen.mounts
    assert not gpu_pods.places(installed, namespace)

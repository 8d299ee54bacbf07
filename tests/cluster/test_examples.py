"""Every manifest of examples/ does on a cluster what its comment promises, and kubectl shows it."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
import yaml
from cluster import gpu_pods
from cluster.gpu_pods import until_ready, until_waiting
from cluster.harness.box import BoxError
from cluster.harness.cluster import Cluster

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = json.dumps(["sh", "-c", f"env; {gpu_pods.SLEEPS}"])
NAMESPACE = "default"
pytestmark = pytest.mark.usefixtures("given_back")


@pytest.fixture(autouse=True)
def _removed(given_back: None, installed: Cluster) -> Iterator[None]:
    """The examples name the namespace `default`: no pod is left in it."""
    yield
    installed.kubectl(f"--namespace={NAMESPACE}", "delete", "pods", "--all", "--timeout=120s", timeout_s=130)


def manifest(name: str) -> str:
    """A file as it is, but for image and command: what it would run is not in a test's image."""
    (path,) = EXAMPLES.glob(f"{name}*.yaml")
    text = re.sub(r"(?m)^ +command: .*\n", "", path.read_text())
    return re.sub(r"(?m)^( +)image: .*$", rf"\1image: {gpu_pods.IMAGE}\n\1command: {RUNS}", text)


def apply(cluster: Cluster, *names: str) -> list[str]:
    """`kubectl apply -f` of files; the pods' names."""
    text = "\n---\n".join(manifest(name) for name in names)
    cluster.kubectl("apply", "--filename=-", stdin=text)
    return [each["metadata"]["name"] for each in yaml.safe_load_all(text)]


def check_described(cluster: Cluster, *names: str) -> None:
    """The event of each pod names the devices of each container. The kubelet hands them over: no variable does."""
    slices = gpu_pods.slices(cluster, NAMESPACE)
    for name in names:
        described = cluster.kubectl(f"--namespace={NAMESPACE}", "describe", "pod", name)
        assert "SliceBound" in described, described
        granted = {each["container"]: each["uuid"] for each in slices if each["pod"] == name}
        assert granted, name
        for container, device in granted.items():
            assert re.search(rf"\b{container}: [^;]*{device}", described), described
            env = gpu_pods.variables(gpu_pods.printed(cluster, NAMESPACE, name, container))
            assert env["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_the_first_pods_of_the_documentation_end_well_as_they_are(installed: Cluster) -> None:
    """With their own image and command: `void` or an error would be what a new user sees of the first slice."""
    for path in sorted(EXAMPLES.glob("*.yaml")):
        text = path.read_text()
        if "sleep" in text or "mistake" in path.name:
            continue
        installed.kubectl("apply", "--filename=-", stdin=text)
        (made,) = yaml.safe_load_all(text)
        name = made["metadata"]["name"]
        found = gpu_pods.until_pods(installed, NAMESPACE, f"{name} ends", partial(has_ended, name))
        containers = [each["name"] for each in made["spec"]["containers"]]
        printed = [gpu_pods.printed(installed, NAMESPACE, name, each) for each in containers]
        assert found[name]["status"]["phase"] == "Succeeded", printed
        assert all(re.search("^(/dev/nvidia|MIG-|GPU-)", each, re.MULTILINE) for each in printed), printed


def has_ended(name: str, found: Mapping[str, gpu_pods.Json]) -> bool:
    """Whether a pod has ended, well or not."""
    return found[name]["status"].get("phase") in {"Succeeded", "Failed"}


def test_each_way_to_name_a_size_gives_what_its_comment_says(installed: Cluster) -> None:
    """The whole GPU, a profile, memory, SMs and a percentage: the first five files a new user tries."""
    names = apply(installed, "01", "02", "03", "04", "05")
    until_ready(installed, NAMESPACE, names)
    gpu_pods.until_placed(
        installed,
        NAMESPACE,
        {
            "whole-gpu/main": ["7g.40gb"],
            "by-profile/main": ["4g.20gb"],
            "by-memory/main": ["3g.20gb"],
            "by-sm-count/main": ["3g.20gb"],
            "by-percentage/main": ["3g.20gb"],
        },
    )
    check_described(installed, *names)


def test_one_gpu_carries_seven_and_several_devices_come_together(installed: Cluster) -> None:
    """Seven small pods fill one GPU; two containers, two devices and HAMi's two get theirs on one machine each."""
    names = apply(installed, "06")
    until_ready(installed, NAMESPACE, names)
    small = {f"small-{number}/main": ["1g.5gb"] for number in range(1, 8)}
    gpu_pods.until_placed(installed, NAMESPACE, small)
    table = installed.kubectl("get", "gpus")
    (full,) = [line for line in table.splitlines() if "1g.5gb@0,1,2,3,4,5,6" in line]
    assert "7/7" in full, table
    more = apply(installed, "09", "10", "11")
    until_ready(installed, NAMESPACE, more)
    gpu_pods.until_placed(
        installed,
        NAMESPACE,
        {
            **small,
            "two-containers/trainer": ["3g.20gb"],
            "two-containers/server": ["1g.5gb"],
            "two-gpus/main": ["2g.10gb", "2g.10gb"],
            "hami/main": ["2g.10gb", "2g.10gb"],
        },
    )
    check_described(installed, *names, *more)


def test_the_words_of_other_projects_and_shares_are_understood(installed: Cluster) -> None:
    """NVIDIA's resource, FaST-GShare's annotations, shares of an instance, and a pod that may be moved."""
    names = apply(installed, "12", "13", "14", "15", "18")
    until_ready(installed, NAMESPACE, names)
    gpu_pods.until_placed(
        installed,
        NAMESPACE,
        {
            "mig-resource/main": ["3g.20gb"],
            "fastgshare/main": ["2g.10gb"],
            "share-1/main": ["4096 MiB"],
            "share-2/main": ["4096 MiB"],
            "mps/main": ["4096 MiB"],
            "movable/main": ["1g.5gb"],
        },
    )
    check_described(installed, *names)
    home = {each["pod"]: each["uuid"] for each in gpu_pods.slices(installed, NAMESPACE)}
    assert home["share-1"] == home["share-2"]


def test_one_of_a_job_waits_until_both_are_there(installed: Cluster) -> None:
    """Half a distributed job on a slice is a wasted slice."""
    first, second = yaml.safe_load_all(manifest("17"))
    installed.kubectl("apply", "--filename=-", stdin=yaml.safe_dump(first))
    why = until_waiting(installed, NAMESPACE, ["rank-0"])["rank-0"]
    assert why.startswith("GroupIncomplete: "), why
    assert not gpu_pods.places(installed, NAMESPACE)
    assert apply(installed, "17") == ["rank-0", "rank-1"]
    until_ready(installed, NAMESPACE, ["rank-0", "rank-1"])
    gpu_pods.until_placed(installed, NAMESPACE, {"rank-0/main": ["3g.20gb"], "rank-1/main": ["3g.20gb"]})
    check_described(installed, "rank-0", "rank-1")
    assert second["metadata"]["name"] == "rank-1"


def test_the_last_pod_on_a_full_fleet_waits_and_says_what_for(installed: Cluster) -> None:
    """The reason is in the condition and in the events; the pod starts by itself when a slice is free."""
    first, second = (node.name for node in installed.workers)
    gpu_pods.create(installed, NAMESPACE, [*gpu_pods.fill(first, ["leaves"]), *gpu_pods.fill(second, ["stays"])])
    until_ready(installed, NAMESPACE, ["leaves", "stays"])
    apply(installed, "07")
    why = until_waiting(installed, NAMESPACE, ["has-to-wait"])["has-to-wait"]
    assert why.startswith("GpuLayoutFull: "), why
    assert "no free place of that size" in why
    described = installed.kubectl(f"--namespace={NAMESPACE}", "describe", "pod", "has-to-wait")
    assert re.search(r"Normal +WaitsForSlice .* sluice.dev/pod-watcher +.*: no free place of that size", described)
    assert "[GpuLayoutFull, elsewhere CardMigTopologyInfeasible]" in described
    gpu_pods.delete(installed, NAMESPACE, ["leaves"])
    until_ready(installed, NAMESPACE, ["has-to-wait"])
    gpu_pods.until_placed(installed, NAMESPACE, {"stays/main": ["7g.40gb", "7g.40gb"], "has-to-wait/main": ["2g.10gb"]})
    check_described(installed, "has-to-wait")


def test_a_preemptible_pod_leaves_for_one_of_higher_priority(installed: Cluster) -> None:
    """And only for that: it runs while there is room, and its going is explained."""
    first, second = (node.name for node in installed.workers)
    gpu_pods.create(installed, NAMESPACE, gpu_pods.fill(first, ["stays"]))
    apply(installed, "16")
    until_ready(installed, NAMESPACE, ["stays", "preemptible"])
    whole = ["7g.40gb", "7g.40gb"]
    gpu_pods.until_placed(installed, NAMESPACE, {"stays/main": whole, "preemptible/main": ["7g.40gb"]})
    gpu_pods.create(installed, NAMESPACE, gpu_pods.fill(second, ["urgent"]))
    until_ready(installed, NAMESPACE, ["urgent"])
    assert "preemptible" not in gpu_pods.pods(installed, NAMESPACE)
    events = installed.kubectl(
        f"--namespace={NAMESPACE}", "get", "events", "--field-selector=involvedObject.name=preemptible"
    )
    assert "Evicting" in events, events


def test_a_mistake_is_refused_at_once_in_words(installed: Cluster) -> None:
    """The answer names the annotation, its value and what would be right."""
    with pytest.raises(BoxError, match=r"sluice\.dev/sm-percentage.*120.*1 to 100") as refused:
        apply(installed, "08")
    assert "denied the request" in str(refused.value)
    assert "mistake" not in gpu_pods.pods(installed, NAMESPACE)


def test_no_example_is_left_out() -> None:
    """A new file needs a promise that is kept."""
    text = Path(__file__).read_text()
    numbers = [path.name[:2] for path in sorted(EXAMPLES.glob("*.yaml"))]
    assert [number for number in numbers if f'"{number}"' not in text] == []

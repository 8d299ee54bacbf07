"""What a person sees of the fleet in kubectl: `get gpus`, `get gpus -o wide`, `describe gpu`."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import yaml
from factories.cluster.described_pods import RULES, DescribeStage, kubectl_is_there, staged
from factories.scheduling.allocator import gpu_report, snapshot
from factories.words import booking_of

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName

DEFINITION = Path(__file__).parents[2] / "deploy" / "kubernetes" / "base" / "crd-gpus.yaml"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NODE = NodeName("gpu-1")


def booked(name: str, state: str, *devices: msg.DeviceGrant) -> msg.SliceReport:
    booking = booking_of(f"{name}_r_1", NODE, devices, request=name, namespace="research", source="cluster")
    return msg.SliceReport(booking=booking, revision=1, state=state, revoked=state == "quarantined")


def instance(number: int, profile: str, start: int, size: int, owner: str = "") -> msg.InstanceReport:
    """A MIG instance; without an owner it is not one of ours."""
    allocation = AllocationId(f"{owner}_r_1") if owner else None
    return msg.InstanceReport(
        gi_id=number, profile=profile, start=start, size=size, uuid=f"MIG-{number}", allocation=allocation
    )


def device(
    gpu: msg.GpuReport, profile: str | None, start: int, size: int, share: msg.Share | None = None
) -> msg.DeviceGrant:
    return msg.DeviceGrant(container="main", gpu=gpu.uuid, profile=profile, start=start, size=size, share=share)


def fleet(observed: datetime) -> msg.NodeInventory:
    """One of each: with slices, full of sevenths, sick, given whole, shared."""
    plain = gpu_report(NODE, 0)
    mine = (instance(1, "3g.20gb", 4, 4, "train"), instance(2, "1g.5gb", 0, 1), instance(3, "1g.5gb", 1, 1, "old"))
    held = (msg.PlacementReport(start=1, size=1),)
    sliced = gpu_report(NODE, 0, instances=mine, quarantined=held, creatable={"1g.5gb": 2})
    sevenths = gpu_report(NODE, 1, instances=tuple(instance(10 + at, "1g.5gb", at, 1, f"job-{at}") for at in range(7)))
    sick = gpu_report(NODE, 2, healthy=False, health_message="Xid 79: the GPU has fallen off the bus", lost=True)
    whole, shared = gpu_report(NODE, 3, mig=False), gpu_report(NODE, 4, mig=False)
    slices = (
        booked("train", "ready", device(plain, "3g.20gb", 4, 4)),
        booked("old", "quarantined", device(plain, "1g.5gb", 1, 1)),
        *(booked(f"job-{at}", "ready", device(sevenths, "1g.5gb", at, 1)) for at in range(7)),
        booked("large", "ready", device(whole, None, 0, 8)),
        booked("note", "ready", device(shared, None, 0, 8, msg.Share(mode="mps", uid=0, memory_mib=10240))),
    )
    found = snapshot(NODE, (sliced, sevenths, sick, whole, shared), slices=slices)
    return msg.NodeInventory(snapshot=found, stale=False, observed_at=observed.strftime("%Y-%m-%dT%H:%M:%SZ"))


async def shown(stage: DescribeStage) -> None:
    await stage.cluster.create(DEFINITIONS, yaml.safe_load(DEFINITION.read_text()))


async def say(stage: DescribeStage, word: msg.NodeInventory, good) -> None:
    await stage.say(subjects.inventory(NODE), word)
    await stage.until(lambda: good({each["metadata"]["name"]: each for each in gpus(stage)}), "the GPUs are shown")


def gpus(stage: DescribeStage) -> list:
    return [each for each in stage.kube.all("gpus.sluice.dev") if "status" in each]


GET = """\
NAME      NODE    MODEL                   LAYOUT                       CREATABLE   USED   HEALTH    SEEN
gpu-1-0   gpu-1   NVIDIA A100-SXM4-40GB   1g.5gb@0,1 3g.20gb@4         2           4/7    Healthy   AGE
gpu-1-1   gpu-1   NVIDIA A100-SXM4-40GB   1g.5gb@0,1,2,3,4,5,6         0           7/7    Healthy   AGE
gpu-1-2   gpu-1   NVIDIA A100-SXM4-40GB                                0           0/7    Lost      AGE
gpu-1-3   gpu-1   NVIDIA A100-SXM4-40GB                                0           100%   Healthy   AGE
gpu-1-4   gpu-1   NVIDIA A100-SXM4-40GB                                0           25%    Healthy   AGE
"""
WIDE = {
    "gpu-1-0": "GPU-gpu-1-0   memory slice 1 quarantined",
    "gpu-1-1": "GPU-gpu-1-1",
    "gpu-1-2": "GPU-gpu-1-2   Xid 79: the GPU has fallen off the bus",
    "gpu-1-3": "GPU-gpu-1-3",
    "gpu-1-4": "GPU-gpu-1-4",
}
DESCRIBED = """\
Status:
  Creatable:
    1g.5gb:         2
  Creatable Total:  2
  Health:           Healthy
  Index:            0
  Layout:           1g.5gb@0,1 3g.20gb@4
  Message:          memory slice 1 quarantined
  Model:            NVIDIA A100-SXM4-40GB
  Node:             gpu-1
  Observed At:      THEN
  Slices:
    Container:  main
    Namespace:  research
    Place:      3g.20gb@4
    Pod:        train
    State:      Ready
    Uuid:       MIG-1
    Container:  main
    Namespace:  research
    Place:      1g.5gb@1
    Pod:        old
    State:      Quarantined
    Uuid:       MIG-3
    Place:      1g.5gb@0
    State:      Foreign
    Uuid:       MIG-2
  Used:         4/7
  Uuid:         GPU-gpu-1-0
Events:         <none>
"""


async def test_people_who_live_in_kubectl_see_the_fleet(tmp_path):
    """They would have to learn another tool to see what is free, what is sick, and whose it is."""
    if not kubectl_is_there():
        pytest.skip("kubectl is not installed; the objects' fields are compared in tests/unit/pod_watcher/cluster")
    async with staged(tmp_path) as stage:
        await shown(stage)
        observed = datetime.now(UTC) - timedelta(minutes=5)
        await say(stage, fleet(observed), lambda there: len(there) == 5)
        listed = await stage.kubectl("get", "gpus")
        assert len(re.findall(r"\d+m(?:\d+s)?$", listed, flags=re.MULTILINE)) == 5, listed
        columns = [
            re.split(r"\s{2,}|(?<=\d%) +", re.sub(r"\d+m(?:\d+s)?$", "AGE", line)) for line in listed.splitlines()
        ]
        assert columns == [re.split(r"\s{2,}", line) for line in GET.splitlines()]
        wide = (await stage.kubectl("get", "gpus", "-o", "wide")).splitlines()
        assert re.search(r"SEEN +UUID +MESSAGE$", wide[0])
        for line in wide[1:]:
            assert line.rstrip().endswith(WIDE[line.split()[0]]), line
        described = await stage.kubectl("describe", "gpu", "gpu-1-0")
        told = described[described.index("Status:") :].replace(observed.strftime("%Y-%m-%dT%H:%M:%SZ"), "THEN")
        assert [line.rstrip() for line in told.splitlines()] == DESCRIBED.splitlines()


async def test_a_node_that_does_not_answer_shows_as_stale_and_one_that_is_gone_not_at_all(tmp_path):
    """An old picture would be taken for the present."""
    async with staged(tmp_path) as stage:
        await shown(stage)
        word = fleet(datetime.now(UTC))
        await say(stage, word, lambda there: len(there) == 5)
        stale = msgspec.structs.replace(word, stale=True, stale_message="no answer for 40 s")
        await say(stage, stale, lambda there: {each["status"]["health"] for each in there.values()} == {"Stale"})
        told = {each["status"]["message"] for each in gpus(stage)}
        assert "no answer for 40 s; memory slice 1 quarantined" in told
        assert (await stage.cluster.delete(f"/api/v1/nodes/{NODE}")).code == 200
        await stage.until(lambda: gpus(stage) == [], "they are gone")


async def test_one_switch_leaves_the_cluster_without_them(tmp_path):
    """Some operators keep the fleet out of etcd."""
    async with staged(tmp_path, replace(RULES, mirror_gpus=False)) as stage:
        await shown(stage)
        await stage.say(subjects.inventory(NODE), fleet(datetime.now(UTC)))
        await stage.bind((await stage.create("train"))["train"])
        await stage.until_told("train", "SliceBound")
        assert gpus(stage) == []
        assert stage.kube.count(path="gpus") == stage.kube.count(path="gpus/status") == 0

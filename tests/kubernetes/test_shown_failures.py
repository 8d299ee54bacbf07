"""What a person sees of a pod whose ask is refused, and of one that had its slice and is in trouble later."""

import asyncio
from dataclasses import replace
from typing import NamedTuple

import pytest
from factories.cluster.described_pods import NODE, RULES, Described, DescribeStage, Said, staged
from factories.scheduling.allocator import gpu_report, snapshot
from factories.scheduling.placement import claim
from factories.text_rows import alike, text_rows
from factories.words import booking_of

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice_allocator.core.placement import PlacementConfig, PlaceRequest, refuse
from sluice_allocator.core.request.bind import advice

MIG = "MIG-5c2a"
GPU = gpu_report(NODE, 0).uuid

# -- refusals, as the allocator words them --------------------------------------------------------------------------


def refused(*claims: msg.Claim, rules: PlacementConfig | None = None, **asking: str) -> Refusal:
    found = refuse(rules or PlacementConfig(), PlaceRequest(claims, **asking), max_gpus_per_node=8)
    assert found is not None
    return found


class Refusing(NamedTuple):
    """A refusal, and how its sentence begins and ends."""

    refusal: Refusal
    sentence: str


REFUSALS = {
    RefusalReason.TOO_LARGE: Refusing(
        refused(claim(profile="1g.5gb", gpus=57)),
        "gpus = '57': more devices than any node may give to one pod (allowed: 1 to 8 whole GPUs, or 1 to 56 "
        "instances or shares on them, over all containers)",
    ),
    RefusalReason.INVALID_VALUE: Refusing(
        refused(claim(profile="1g.5gb"), node_policy="best"), "node-policy = 'best': "
    ),
    RefusalReason.CONTRADICTION: Refusing(
        refused(claim(modes=("mps",), memory_mib=1), rules=PlacementConfig(assumed_uid=None)),
        "securityContext.runAsUser = '': a share of a GPU needs the user id of its processes, "
        "and this cluster assumes none (allowed: a user id)",
    ),
}
AT_ADMISSION = {
    RefusalReason.OUT_OF_RANGE,
    RefusalReason.UNKNOWN_KEY,
    RefusalReason.UNSUPPORTED_KEY,
    RefusalReason.UNKNOWN_CONTAINER,
    RefusalReason.UNKNOWN_PROFILE,
}
"""Refused before there is a pod: what `kubectl apply` prints is in test_seen_denied."""
IN_A_FOLDER = {RefusalReason.NOT_YAML, RefusalReason.NOT_A_POD, RefusalReason.DUPLICATE_POD}
"""Of files; the API server itself refuses such an object."""
UNUSED = {RefusalReason.UNSUPPORTED_MODE}
"""No current version publishes it; older messages on a bus may."""


# -- trouble, as services word it -----------------------------------------------------------------------------------


def booking(uid: RequestId, *devices: msg.DeviceGrant) -> msg.Booking:
    return booking_of(f"{uid}_r_1", NODE, devices, request=uid, name="p", namespace="ns", source="cluster")


def sick(uids: dict[str, RequestId]) -> msg.NodeInventory:
    """A GPU with an Xid, and one whose MPS daemon has died; each with a pod."""
    where = {"profile": None, "start": 0, "size": 8, "device": "GPU-1", "namespace": "ns", "uid": 0}
    down = msg.MpsDaemonReport(**where, state="down", message="its MPS daemon died, and is being started again")
    gpus = (
        gpu_report(NODE, 0, healthy=False, health_message="Xid 79: the GPU has fallen off the bus"),
        gpu_report(NODE, 1, mig=False, daemons=(down,)),
    )
    instance = msg.DeviceGrant(container="main", gpu=gpus[0].uuid, profile="1g.5gb", start=0, size=1)
    share = msg.Share(mode="mps", uid=0, memory_mib=1000)
    shared = msg.DeviceGrant(container="main", gpu=gpus[1].uuid, profile=None, start=0, size=8, share=share)
    slices = tuple(
        msg.SliceReport(booking=booking(uids[name], device), revision=1, state="degraded", revoked=False)
        for name, device in (("gpu-sick", instance), ("daemon-died", shared))
    )
    return msg.NodeInventory(snapshot=snapshot(NODE, gpus, slices=slices), stale=False)


def of_two(uid: RequestId) -> tuple[str, ...]:
    """What the allocator says of a container with two MIG devices, and of one with a quota."""
    containers = (msg.ContainerDevices(container="main", visible_devices="MIG-1,MIG-2"),)
    slice_ = msg.SliceReady(
        allocation=AllocationId("a"), request=uid, revision=1, ticket="t", devices=(), containers=containers
    )
    quota = msg.Share(mode="fractional", uid=0, memory_mib=1, quota_request_permille=300, quota_limit_permille=800)
    shared = msg.DeviceGrant(container="other", gpu=GPU, profile=None, start=0, size=8, share=quota)
    return advice(slice_, booking(uid, shared), time_quota=False)


ONCE_MORE = "If it cannot wait, delete the pod and create it again: it gets another slice."
CAN_NEVER = "This pod can never start: delete it, and create it again with that fixed."
REMOVED = "slice lost: gpu-1 was removed: its Node object was deleted"
LOST = (
    "its slice was lost (gpu-1 was removed: its Node object was deleted), and it gets no other: "
    "delete the pod, and create it again."
)
BOUND = f"Normal SliceBound bound to its slice on gpu-1: main: {MIG}"
TOLD = f"""
good
  no condition
  {BOUND}
waited
  True
  Normal WaitsForSlice all is full
  {BOUND}
other-gates
  False
  Normal OtherGates it waits for other scheduling gates before it requests a slice: kueue.x-k8s.io/admission
bad-ticket
  False
  Warning SliceNotUsable the pod cannot be given its slice: the ticket of 'main' cannot be mounted: only a-z, 0-9 and
    '-' are valid
lost
  False
  {BOUND}
  Warning SliceLost {LOST}
gpu-sick
  False
  {BOUND}
  Warning SliceDegraded its slice on gpu-1 is unhealthy: its GPU 0 is unhealthy (Xid 79: the GPU has fallen off the
    bus). The pod keeps it. {ONCE_MORE}
daemon-died
  False
  {BOUND}
  Warning SliceDegraded its slice on gpu-1 is unhealthy: its MPS daemon died, and is being started again.
    The pod keeps it. {ONCE_MORE}
warned
  no condition
  Warning SliceWarning container 'main' has several MIG devices; one CUDA process uses only the first;
    QuotaNotEnforced: container 'other' asks for 30 % to 80 % of the time, and nothing on its node enforces that: it may
    use its SMs all the time, and they are reserved for it
  Normal SliceBound bound to its slice on gpu-1: main: MIG-1,MIG-2
rebooted
  no condition
  {BOUND}
  Normal SliceMadeAnew its slice on gpu-1 was created again: main: MIG-77
unreadable
  False
  Warning InvalidValue sluice.dev/request = '{{}}': * {CAN_NEVER}
"""
SEEN: dict[str, tuple[str | None, tuple[Said, ...]]] = {
    name: (None if condition == "no condition" else condition, tuple(Said(*each.split(" ", 2)) for each in events))
    for name, condition, *events in text_rows(TOLD)
} | {
    f"refused-{reason.lower()}": ("False", (Said("Warning", str(reason), f"{found.sentence}* {CAN_NEVER}"),))
    for reason, found in REFUSALS.items()
}
"""The condition of each pod, and its events in their order; a `*` stands for anything."""


async def play(stage: DescribeStage) -> dict[str, Described]:
    special = {"other-gates", "unreadable"}
    uids = await stage.create(*(name for name in SEEN if name not in special))
    uids |= await stage.create("other-gates", gates=("sluice.dev/slice", "kueue.x-k8s.io/admission"))
    uids |= await stage.create("unreadable", stored="{}")
    word = msg.Pending(request=uids["waited"], request_revision=1, message="all is full", reasons=())
    await stage.say(subjects.waiting(uids["waited"]), word)
    await stage.until_told("waited", "WaitsForSlice")
    for name in ("good", "waited", "lost", "gpu-sick", "daemon-died", "rebooted"):
        await stage.bind(uids[name])
    await stage.bind(uids["bad-ticket"], ticket=".")
    devices = (msg.ContainerDevices(container="main", visible_devices="MIG-1,MIG-2"),)
    await stage.bind(uids["warned"], containers=devices, warnings=of_two(uids["warned"]))
    for reason, found in REFUSALS.items():
        uid = uids[f"refused-{reason.lower()}"]
        await stage.say(subjects.binding(uid), msg.Refused(request=uid, request_revision=1, refusal=found.refusal))
    for name in ("lost", "gpu-sick", "daemon-died", "rebooted"):
        await stage.until_told(name, "SliceBound")
    await stage.say(subjects.binding(uids["lost"]), msg.Released(request=uids["lost"], cause=REMOVED))
    remade = (msg.ContainerDevices(container="main", visible_devices="MIG-77"),)
    await stage.bind(uids["rebooted"], revision=2, ticket="t2", containers=remade)
    await stage.say(subjects.inventory(NodeName(NODE)), sick(uids))
    for name, (_, said) in SEEN.items():
        await stage.until_told(name, said[-1].reason)
    await stage.until(lambda: conditions(stage) == {name: status for name, (status, _) in SEEN.items()}, "conditions")
    return await stage.described()


def conditions(stage: DescribeStage) -> dict[str, str | None]:
    found = {}
    for each in stage.kube.all("pods", stage.namespace):
        listed = {one["type"]: one["status"] for one in each["status"].get("conditions", [])}
        found[each["metadata"]["name"]] = listed.get("sluice.dev/SliceReady")
    return found


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Described]:
    async def tell_all() -> dict[str, Described]:
        async with staged(tmp_path_factory.mktemp("seen")) as stage:
            return await play(stage)

    return asyncio.run(tell_all())


def test_every_refusal_is_seen_somewhere():
    """A new code must get its sentence, and a test of what a person reads."""
    assert {*REFUSALS, *AT_ADMISSION, *IN_A_FOLDER, *UNUSED} == set(RefusalReason)


@pytest.mark.parametrize("name", list(SEEN))
def test_a_person_sees_what_became_of_a_pod(described, name):
    """The program fails or never starts, without a reason that its owner could read."""
    status, wanted = SEEN[name]
    seen = described[name]
    assert seen.conditions.get("sluice.dev/SliceReady") == status
    assert sorted((each.level, each.reason) for each in seen.events) == sorted((w.level, w.reason) for w in wanted)
    for each in wanted:
        (note,) = seen.notes(each.reason)
        assert alike(note, each.note), note


# -- evictions: the pod is gone, its events are not -----------------------------------------------------------------


async def test_a_person_sees_why_a_pod_was_evicted(tmp_path):
    """A training that vanishes without a reason costs a day."""
    async with staged(tmp_path) as stage:
        uids = await stage.create("preempted", "kept")
        uids |= await stage.create("lost", owner="Job")
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}
        path = f"/apis/policy/v1/namespaces/{stage.namespace}/poddisruptionbudgets"
        await stage.cluster.create(path, {"metadata": {"name": "pdb"}, "spec": spec})
        for uid in uids.values():
            await stage.bind(uid)
        await stage.until(lambda: len(stage.kube.nodes.running) == 3, "all run")
        why = "preempted by ns/urgent, which has a higher priority"
        for name in ("preempted", "kept"):
            order = msg.EvictionOrdered(request=uids[name], cause=why)
            await stage.say(subjects.eviction(uids[name]), order)
        await stage.say(subjects.binding(uids["lost"]), msg.Released(request=uids["lost"], cause=REMOVED))
        await stage.until_told("preempted", "Evicting")
        await stage.until_told("kept", "EvictionBlocked")
        await stage.until_told("lost", "Evicting")
        assert Said("Warning", "Evicting", f"evicting the pod: {why}") in stage.told("preempted")
        blocked = (
            "cannot evict the pod now, retrying: Cannot evict pod as it would violate the pod's disruption budget."
        )
        assert Said("Warning", "EvictionBlocked", blocked) in stage.told("kept")
        lost = "its slice was lost: gpu-1 was removed: its Node object was deleted"
        assert Said("Warning", "Evicting", f"evicting the pod: {lost}") in stage.told("lost")


async def test_a_person_sees_that_the_api_server_refuses_what_tells_the_pod_its_slice(tmp_path):
    """A policy of another team would keep a pod gated for ever, in silence."""
    async with staged(tmp_path) as stage:
        uids = await stage.create("train")
        stage.kube.faults.fail(1000, code=422, verb="patch", path="pods")
        await stage.bind(uids["train"])
        await stage.until_told("train", "SliceNotUsable")
        (note,) = [each.note for each in stage.told("train") if each.reason == "SliceNotUsable"]
        assert note.startswith("the pod cannot be bound to its slice: the API server refuses the patch (422: ")
        assert note.endswith("); retrying")


async def test_a_person_sees_why_a_pod_does_not_start(tmp_path):
    """It has its slice, and stands there with it."""
    rules = replace(RULES, unscheduled_after_s=1.0, start_after_s=2.0)
    async with staged(tmp_path, rules) as stage:
        stage.kube.nodes.tickets(lambda _uid, _ticket: False)
        uids = await stage.create("nowhere", "no-ticket")
        await stage.bind(uids["nowhere"], node=NodeName("gpu-9"))
        await stage.bind(uids["no-ticket"])
        for name in uids:
            await stage.until_told(name, "NotStarted")
        described = await stage.described()
        why = "0/1 nodes are available: 1 node(s) didn't satisfy plugin(s) [NodeAffinity]."
        late = f"the scheduler did not place it on gpu-9 within 1 s: {why} {ONCE_MORE}"
        assert described["nowhere"].notes("NotStarted") == [late]
        assert described["no-ticket"].notes("NotStarted") == [f"no container started on gpu-1 within 2 s. {ONCE_MORE}"]


# -- what lasts -----------------------------------------------------------------------------------------------------


async def test_a_pod_that_waits_for_hours_still_shows_why(tmp_path):
    """The API server forgets events after an hour, and `kubectl describe` shows nothing else of the reason."""
    often = replace(RULES, event_again_s=0.5)
    async with staged(tmp_path, often) as stage:
        uids = await stage.create("train")
        word = msg.Pending(request=uids["train"], request_revision=1, message="all is full", reasons=())
        await stage.say(subjects.waiting(uids["train"]), word)
        await stage.until_told("train", "WaitsForSlice")

        def series() -> int:
            listed = stage.kube.all("events.events.k8s.io", stage.namespace)
            return max((each.get("series", {}).get("count", 1) for each in listed), default=0)

        await stage.until(lambda: series() >= 3, "the Event is repeated")
        (event,) = stage.kube.all("events.events.k8s.io", stage.namespace)
        path = f"/apis/events.k8s.io/v1/namespaces/{stage.namespace}/events/{event['metadata']['name']}"
        assert (await stage.cluster.delete(path)).code == 200
        await stage.until_told("train", "WaitsForSlice")

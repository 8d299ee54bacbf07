"""From a manifest to containers on their slice and back to an empty fleet: all parts real but GPUs and cluster."""

import pytest
from factories.cluster.admission import gpu
from factories.cluster.kubernetes import Json, remove, test
from factories.cluster.scenes import IMAGE, Scene, distinct, user_pod

from sluice.contracts.kube.names import ENV_DRIVER_CAPABILITIES, ENV_MPS_PIPE_DIRECTORY, ENV_VISIBLE_DEVICES
from sluice.contracts.messages import Grant

pytestmark = pytest.mark.slow
NODES = ("gpu-1.example.internal", "gpu-2.example.internal")
SYSTEM = {"watcher": {"UNSCHEDULED_AFTER_S": "4"}}
SEVENTH, WHOLE = {"sluice.dev/profile": "1g.5gb"}, {"sluice.dev/profile": "7g.40gb"}
NO_SLICE = "void"
"""What a container that asked for nothing sees (NVIDIA container toolkit: no GPU at all)."""


def fast(**keys: str) -> Json:
    return user_pod("train", annotations={f"fastgshare/{key}": text for key, text in keys.items()})


ASKS = {
    "a profile of ours": (user_pod("train", annotations=SEVENTH), 1),
    "HAMi": (user_pod("train", resources=gpu(gpu="2", gpumem="8000")), 2),
    "NVIDIA's device plugin": (user_pod("train", resources={"limits": {"nvidia.com/mig-1g.5gb": "1"}}), 1),
    "FaST-GShare, of one's own": (fast(allocation_type="EXCLUSIVE", gpu_sm_value="28", gpu_mem="8000000000"), 1),
    "FaST-GShare, shared": (fast(gpu_mem="1073741824", gpu_sm_partition="20"), 1),
}


@pytest.mark.parametrize("asked", ASKS)
async def test_an_unmodified_pod_gets_its_slice_and_gives_it_back(scene: Scene, asked: str) -> None:
    """This is what Sluice is for."""
    body, count = ASKS[asked]
    written = scene.cluster.fake and scene.patches()
    stored = await scene.apply(body)
    assert [gate["name"] for gate in stored["spec"]["schedulingGates"]] == ["sluice.dev/slice"]
    pod = (await scene.started(1))["train"]
    told = await scene.is_on_its_slice(pod)
    assert distinct(scene.devices(pod)) == count
    shared = bool(told.containers[0].mps_pipe_directory)
    assert shared is (asked == "FaST-GShare, shared")
    assert bool(scene.environment(pod, "main").get(ENV_MPS_PIPE_DIRECTORY)) is shared
    if scene.cluster.fake is not None:
        assert scene.patches() == written + 1, "a pod is written once"
    await scene.delete("train")
    await scene.given_back()


async def test_a_chart_that_sets_the_variables_of_the_nvidia_runtime_works_unchanged(scene: Scene) -> None:
    """Charts for video and graphics all set them; and a +me instance is for video whatever is set."""
    variables = {"NVIDIA_VISIBLE_DEVICES": "all", ENV_DRIVER_CAPABILITIES: "compute,utility,graphics"}
    chart = user_pod("chart", resources={"limits": {"nvidia.com/mig-1g.5gb": 1}})
    chart["spec"]["containers"][0]["env"] = [{"name": name, "value": text} for name, text in variables.items()]
    said = {"sluice.dev/profile": "2g.10gb", "sluice.dev/driver-capabilities": "all"}
    await scene.apply(chart)
    await scene.apply(user_pod("codec", resources={"limits": {"nvidia.com/mig-1g.5gb.me": 1}}))
    await scene.apply(user_pod("says", annotations=said))
    pods = await scene.started(3)
    found = {name: scene.environment(pod, "main")[ENV_DRIVER_CAPABILITIES] for name, pod in pods.items()}
    assert found == {"chart": "compute,utility,graphics", "codec": "compute,utility,video", "says": "all"}
    told = await scene.is_on_its_slice(pods["chart"])
    assert told.containers[0].driver_capabilities == "compute,utility,graphics"
    assert scene.devices(pods["chart"]) == told.containers[0].visible_devices.split(",")


async def test_every_replica_of_a_deployment_has_a_slice_of_its_own(scene: Scene) -> None:
    """Two replicas on one slice would run into each other's memory; one without would wait forever."""
    scene.needs_webhook("the controllers of the cluster")
    fake = scene.cluster.fake
    written = scene.patches() if fake is not None else 0
    path = await scene.deploy("train", 20, SEVENTH)
    pods = await scene.started(20)
    assert distinct(uuid for each in pods.values() for uuid in scene.devices(each)) == 20
    if fake is not None:
        assert scene.patches() == written + 20
    for each in pods.values():
        await scene.is_on_its_slice(each)
    lost = next(iter(pods))
    await scene.delete(lost)
    await scene.until(lambda: scene.is_gone(lost), "the replica to go")
    again = await scene.started(20)
    assert distinct(uuid for each in again.values() for uuid in scene.devices(each)) == 20
    assert (await scene.cluster.delete(path)).code == 200
    await scene.until(scene.is_gone, "the pods to go with their deployment")


async def test_init_containers_and_sidecars_do_not_take_what_main_asked_for(scene: Scene) -> None:
    """A sidecar that sees the GPU could fill its memory; one that hangs would keep the pod from starting."""
    body = user_pod("train", annotations={"main.sluice.dev/profile": "1g.5gb"})
    body["spec"]["containers"].append({"name": "logs", "image": IMAGE, "command": ["sleep", "3600"]})
    body["spec"]["initContainers"] = [
        {"name": "prepare", "image": IMAGE, "command": ["true"]},
        {"name": "proxy", "image": IMAGE, "command": ["sleep", "3600"], "restartPolicy": "Always"},
    ]
    await scene.apply(body)
    pod = (await scene.started(1))["train"]
    told = await scene.is_on_its_slice(pod)
    assert [given.container for given in told.containers] == ["main"]
    for name in ("logs", "prepare", "proxy"):
        assert scene.environment(pod, name)[ENV_VISIBLE_DEVICES] == NO_SLICE, name


async def test_a_job_that_completes_gives_its_slice_back_while_its_pod_is_still_there(scene: Scene) -> None:
    """Finished pods stay for days; so would their slices."""
    fake = scene.fake("containers that end on command")
    await scene.apply(user_pod("job", annotations=SEVENTH, restartPolicy="Never"))
    await scene.is_on_its_slice((await scene.started(1))["job"])
    fake.nodes.finish(scene.namespace, "job")
    await scene.given_back()
    assert (await scene.pods())["job"]["status"]["phase"] == "Succeeded"


async def test_a_name_that_is_used_again_gets_another_slice_after_a_deletion_by_force(scene: Scene) -> None:
    """StatefulSets use names again; the new pod would be given the old one's annotations, or nothing."""
    body = user_pod("worker-0", annotations=SEVENTH)
    await scene.apply(body)
    first = (await scene.started(1))["worker-0"]
    await scene.is_on_its_slice(first)
    await scene.delete("worker-0", grace_s=0)
    await scene.until(scene.is_gone, "the object to go")
    await scene.apply(body)
    second = (await scene.started(1))["worker-0"]
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    await scene.is_on_its_slice(second)
    assert scene.devices(second) != scene.devices(first)


async def test_a_pod_that_will_not_end_keeps_its_slice_until_it_has(scene: Scene) -> None:
    """It saves its last checkpoint from the GPU; the next tenant would find its memory, or crash it."""
    fake = scene.fake("containers that ignore TERM")
    whole_node = {"sluice.dev/profile": "7g.40gb", "sluice.dev/gpus": "2"}
    for name in ("first", "second"):
        await scene.apply(user_pod(name, annotations=whole_node))
    slow = (await scene.started(2))["first"]
    fake.nodes.linger(scene.namespace, "first")
    await scene.delete("first", "second", grace_s=30)
    await scene.apply(user_pod("next", annotations=whole_node))
    await scene.apply(user_pod("last", annotations=whole_node))
    await scene.until(lambda: _is_bound_or_waits(scene, ("next", "last")), "one to start where the other ended")
    granted = [booking.name for word, booking in scene.live.fleet_state.bookings() if isinstance(word, Grant)]
    assert "first" in granted
    assert await scene.is_on_its_slice(slow)
    fake.nodes.let_go(scene.namespace, "first")
    await scene.started(2)


async def _is_bound_or_waits(scene: Scene, names: tuple[str, ...]) -> bool:
    pods = await scene.pods()
    told = [scene.told(pods[name]) for name in names]
    return sorted(each.state for each in told if each is not None) == ["bound", "waiting"]


async def test_a_lost_node_gives_nothing_away_until_its_agent_is_back(scene: Scene) -> None:
    """Its containers may run on: another pod on their device would meet them there."""
    fake = scene.fake("a node that can be lost on command")
    await scene.apply(user_pod("old", annotations=WHOLE))
    told = await scene.is_on_its_slice((await scene.started(1))["old"])
    agent = scene.system.agent_of(told.node)
    fake.nodes.down(told.node)
    agent.kill()
    try:
        await scene.delete("old", grace_s=0)
        await scene.until(scene.is_gone, "the object to go")
        for number in range(4):
            await scene.apply(user_pod(f"new-{number}", annotations=WHOLE))
        await scene.until(lambda: _waits(scene, 2), "the new pods to wait or to run elsewhere")
        booked = [booking for _, booking in scene.live.fleet_state.bookings()]
        places = [(device.gpu, device.start) for booking in booked for device in booking.devices]
        assert len(set(places)) == len(places), "a place was given while its last tenant may be there"
        assert any(booking.name == "old" for booking in booked)
    finally:
        agent.start()
        fake.nodes.down(told.node, on=False)
    await scene.until(lambda: _is_free_of(scene, "old"), "the place to be given back by the agent")
    assert distinct(uuid for each in (await scene.started(4)).values() for uuid in scene.devices(each)) == 4


async def _waits(scene: Scene, most: int) -> bool:
    pods = await scene.pods()
    started = sum(bool(each["spec"].get("nodeName")) for each in pods.values())
    told = [scene.told(each) for each in pods.values()]
    settled = [each for each in told if each is not None and each.state in {"bound", "waiting", "making"}]
    return len(pods) == 4 and len(settled) == 4 and started >= most


def _is_free_of(scene: Scene, name: str) -> bool:
    return all(booking.name != name for _, booking in scene.live.fleet_state.bookings())


async def test_a_pod_that_fits_nowhere_says_so_and_leaves_nothing(scene: Scene) -> None:
    """The owner would see a pending pod without a reason, and its request would be counted forever."""
    asks = {"sluice.dev/profile": "7g.40gb", "sluice.dev/gpus": "8"}
    await scene.apply(user_pod("large", annotations=asks))
    said = await scene.until(lambda: scene.condition("large"), "a condition")
    assert (said["status"], bool(said["message"])) == ("False", True)
    pod = (await scene.pods())["large"]
    assert [gate["name"] for gate in pod["spec"]["schedulingGates"]] == ["sluice.dev/slice"]
    await scene.delete("large")
    await scene.given_back()


async def test_pods_that_are_never_scheduled_are_recreated_or_say_why(scene: Scene) -> None:
    """A pin cannot be changed: only a new pod can go elsewhere, and no controller recreates a bare one."""
    fake = scene.fake("a scheduler that can be stopped")
    fake.call(lambda: setattr(fake.nodes, "scheduling", False))
    try:
        await scene.apply(user_pod("bare", annotations=SEVENTH))
        await scene.deploy("train", 1, SEVENTH)
        first = await scene.until(lambda: _replica(scene), "the replica")
        said = await scene.until(lambda: scene.condition("bare", "NotStarted"), "the condition to say so")
        assert "the scheduler did not place it" in said["message"]
        await scene.until(lambda: scene.is_gone(first), "the replica to be evicted and recreated")
        told = scene.told((await scene.pods())["bare"])
        assert (told.state, told.ticket in scene.system.tickets()[told.node]) == ("bound", True)
    finally:
        fake.call(lambda: setattr(fake.nodes, "scheduling", True))
    fake.nodes.poke()
    pods = await scene.started(2)
    assert distinct(uuid for each in pods.values() for uuid in scene.devices(each)) == 2
    for each in pods.values():
        await scene.is_on_its_slice(each)


async def test_a_foreign_gate_is_its_owners_to_open(scene: Scene) -> None:
    """Kueue holds pods until their quota is free; a pod pinned before that could not be moved any more."""
    theirs = "kueue.x-k8s.io/admission"
    body = user_pod("queued", annotations=SEVENTH, schedulingGates=[{"name": theirs}])
    await scene.apply(body)
    said = await scene.until(lambda: scene.condition("queued", "OtherGates"), "the condition to name the gate")
    assert theirs in said["message"]
    pod = (await scene.pods())["queued"]
    assert {gate["name"] for gate in pod["spec"]["schedulingGates"]} == {theirs, "sluice.dev/slice"}
    assert "affinity" not in pod["spec"]
    opened = [test("/spec/schedulingGates/0/name", theirs), remove("/spec/schedulingGates/0")]
    assert (await scene.cluster.patch(f"{scene.path}/queued", opened)).code == 200
    await scene.is_on_its_slice((await scene.started(1))["queued"])


async def _replica(scene: Scene) -> str:
    return next((name for name in await scene.pods() if name.startswith("train-")), "")


async def test_after_a_reboot_a_pod_starts_again_on_the_devices_that_were_made_anew(scene: Scene) -> None:
    """MIG instances do not outlive a reboot: with the old UUIDs its containers would never start again."""
    fake = scene.fake("a node that reboots on command")
    await scene.apply(user_pod("train", annotations={"sluice.dev/profile": "2g.10gb"}))
    pod = (await scene.started(1))["train"]
    told = await scene.is_on_its_slice(pod)
    before, written = scene.devices(pod), scene.patches()
    fake.nodes.down(told.node)
    scene.system.reboot(told.node)
    await scene.until(lambda: _has_new_devices(scene, before), "the pod's new devices in its annotations")
    fake.nodes.finish(scene.namespace, "train", 255)
    fake.nodes.down(told.node, on=False)
    pod = (await scene.started(1))["train"]
    assert await scene.is_on_its_slice(pod)
    assert scene.devices(pod) != before
    assert scene.patches() == written + 1


async def _has_new_devices(scene: Scene, before: list[str]) -> bool:
    pod = (await scene.pods())["train"]
    return pod["metadata"]["annotations"]["main.granted.sluice.dev/visible-devices"].split(",") != before

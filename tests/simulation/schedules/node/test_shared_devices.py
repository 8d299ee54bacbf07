"""What a node does about shares, one story each: homes, daemons, limits, and instances that are kept warm."""

from contextlib import nullcontext

import pytest
from msgspec.structs import replace
from simulation.judges.judge import Judge, ViolationError
from simulation.plans.pods import fractional, mps, two_containers
from simulation.planted.bug import planted
from simulation.planted.node.shared_devices import HOME_BUGS
from simulation.schedules.scene import MIG_NODE, WHOLE, WHOLE_NODE, Scene, sliced
from simulation.world.hardware import OPERATOR, DeviceRefusedError, Machine, Process
from simulation.world.mps_daemons import Daemon
from simulation.world.weather import Fate

from sluice.contracts.bus.events import Stream, Write
from sluice.contracts.bus.subjects import slice_
from sluice.contracts.ids import AllocationId, OperationId
from sluice.contracts.messages import Revoke, SliceFailed, SliceGone, SliceReady
from sluice_node_agent.core.instructions import CreateGpuInstance, StartMps
from sluice_node_agent.core.journal_records import SliceRecord


def machine_of(scene: Scene) -> Machine:
    """The only node."""
    return scene.world.machines["node-0"]


def daemons_of(scene: Scene) -> list[Daemon]:
    return [daemon for daemon in machine_of(scene).mps.listed.values() if daemon.alive]


def runs(scene: Scene, *names: str) -> bool:
    return all(scene.runs(name) for name in names)


def kill_at(scene: Scene, instruction: type) -> None:
    """The agent dies right after this was carried out, and before it hears of it."""
    agent = scene.world.agents["node-0"]
    happened: list[object] = []

    def hear(_host: object, sent: object) -> None:
        if isinstance(sent, instruction) and not happened:
            happened.append(sent)

    agent.on_instruction.append(hear)
    scene.until(lambda: bool(happened))
    scene.until(lambda: bool(daemons_of(scene)))
    agent.kill()


@pytest.mark.parametrize("node", [MIG_NODE, WHOLE_NODE], ids=["instance", "whole"])
def test_the_last_of_a_home_takes_it_along_and_nobody_else_does(node: object) -> None:
    """Two tenants share one daemon; the first to leave disturbs nothing, with the second all of it goes."""
    scene = Scene(node)  # type: ignore[arg-type]
    scene.pod("a", mps(1500))
    scene.pod("b", mps(1500))
    scene.until(lambda: runs(scene, "a", "b"))
    (daemon,) = daemons_of(scene)
    scene.remove("a")
    scene.wait(10)
    assert daemons_of(scene) == [daemon]
    assert scene.runs("b")
    scene.remove("b")
    scene.until(lambda: not machine_of(scene).mps.listed)
    scene.until(lambda: not any(gpu.instances or gpu.exclusive for gpu in machine_of(scene).gpus.values()))
    scene.finish()


@pytest.mark.parametrize("node", [MIG_NODE, WHOLE_NODE], ids=["instance", "whole"])
def test_two_containers_of_one_pod_share_a_home_and_leave_it_together(node: object) -> None:
    """Each has a share of its own there: both go, and the home goes with the second."""
    scene = Scene(node)  # type: ignore[arg-type]
    scene.pod("a", two_containers(mps(1500)))
    scene.until(lambda: scene.runs("a"))
    assert len(daemons_of(scene)) == 1
    scene.remove("a")
    scene.until(lambda: not machine_of(scene).mps.listed)
    scene.finish()


def test_another_user_gets_another_home() -> None:
    """Two users of one namespace are never served by one daemon."""
    scene = Scene()
    scene.pod("a", mps(1500))
    scene.pod("b", mps(1500), user=1000)
    scene.pod("c", mps(1500), namespace="den")
    scene.until(lambda: runs(scene, "a", "b", "c"))
    domains = {(daemon.directory.namespace, daemon.directory.uid) for daemon in daemons_of(scene)}
    assert domains == {("lab", 0), ("lab", 1000), ("den", 0)}
    scene.finish()


def test_strangers_wait_for_a_whole_gpu_that_is_shared() -> None:
    """There is one shared device, with a tenant: the stranger gets the reason of its wait, and comes next."""
    scene = Scene(WHOLE_NODE)
    scene.pod("a", fractional(10))
    scene.until(lambda: scene.runs("a"))
    scene.pod("b", fractional(10), namespace="den")
    scene.wait(10)
    assert scene.bound("b") is None
    scene.remove("a")
    scene.until(lambda: scene.runs("b"))
    scene.finish()


def test_a_restarted_agent_disturbs_no_daemon() -> None:
    """Updating the agent ends no training: the same process serves the same clients."""
    scene = Scene()
    scene.pod("a", mps(1500))
    scene.pod("b", fractional(10), namespace="den")
    scene.until(lambda: runs(scene, "a", "b"))
    before = [(daemon.pid, daemon.started_at) for daemon in daemons_of(scene)]
    for _ in range(3):
        scene.host("agent-node-0").kill()
        scene.host("agent-node-0").start()
        scene.wait(5)
    assert [(daemon.pid, daemon.started_at) for daemon in daemons_of(scene)] == before
    scene.finish()


def test_a_daemon_that_died_comes_back_and_its_tenants_are_told() -> None:
    """Its clients end with it; their pods run again by themselves, and their bindings say what happened."""
    scene = Scene()
    landed = scene.landed()
    scene.pod("a", mps(1500))
    scene.pod("b", mps(900))
    scene.until(lambda: runs(scene, "a", "b"))
    scene.strike("daemon dies", "node-0")
    assert not scene.runs("a")
    scene.until(lambda: runs(scene, "a", "b"))
    scene.until(lambda: any(isinstance(write.message, SliceReady) and write.message.warnings for write in landed))
    scene.until(lambda: (bound := scene.bound("a")) is not None and bool(bound.warnings))
    scene.finish()


def test_a_tenant_comes_to_a_home_whose_daemon_has_just_died() -> None:
    """It was not noticed yet: the pod waits for the new daemon, and then runs."""
    scene = Scene()
    scene.pod("a", mps(900))
    scene.until(lambda: scene.runs("a"))
    scene.strike("daemon dies", "node-0")
    scene.pod("b", mps(2400))
    scene.until(lambda: runs(scene, "a", "b"))
    scene.finish()


def test_a_larger_tenant_raises_the_limits_first() -> None:
    """A daemon's limits are those of its largest tenant, before that one's containers start."""
    scene = Scene(WHOLE_NODE)
    scene.pod("a", fractional(10, 900))
    scene.until(lambda: scene.runs("a"))
    assert [(daemon.percent, daemon.memory_mib) for daemon in daemons_of(scene)] == [(10, 900)]
    scene.pod("b", fractional(40, 9000))
    scene.until(lambda: scene.runs("b"))
    assert [(daemon.percent, daemon.memory_mib) for daemon in daemons_of(scene)] == [(40, 9000)]
    scene.finish()


@pytest.mark.parametrize("number", [0, 1], ids=["lost", "kept"])
def test_after_a_reboot_shares_are_made_again(number: int) -> None:
    """Daemons, instances and compute modes are gone, directories of the earlier boot serve no pod."""
    scene = Scene(MIG_NODE, WHOLE_NODE)
    for pod in range(4):
        scene.pod(f"pod-{pod}", fractional(40))
    names = [f"pod-{pod}" for pod in range(4)]
    scene.until(lambda: runs(scene, *names))
    scene.strike("reboot", "node-0", number=number)
    scene.strike("reboot", "node-1", number=number)
    scene.until(lambda: runs(scene, *names))
    scene.finish()


def test_a_share_is_not_gone_while_its_process_runs() -> None:
    """A force-deleted pod's process is let go by the server, and the share is gone when it has ended."""
    scene = Scene()
    landed = scene.landed()
    scene.pod("a", mps(1500), lingers_s=8.0)
    scene.pod("b", mps(1500))
    scene.until(lambda: runs(scene, "a", "b"))
    scene.remove("a")
    scene.wait(6)
    assert not any(isinstance(write.message, SliceGone) for write in landed)
    assert scene.runs("b")
    scene.until(lambda: any(isinstance(write.message, SliceGone) for write in landed))
    scene.finish()


@pytest.mark.parametrize("of_this_boot", [False, True])
def test_the_judge_knows_whose_client_may_be_let_go(of_this_boot: bool) -> None:
    """A forgotten share that the pod had there before a reboot has no client now."""
    scene = Scene()
    scene.pod("a", mps(1500), lingers_s=8.0)
    scene.until(lambda: runs(scene, "a"))
    judge, bound = scene.world.judge, scene.bound("a")
    assert bound is not None
    earlier = AllocationId("earlier")
    judge.bookings[earlier] = replace(judge.bookings[bound.allocation], allocation=earlier)
    judge.ready[earlier] = replace(judge.ready[bound.allocation], allocation=earlier)
    judge.ready_in[earlier] = judge.ready_in[bound.allocation] - (not of_this_boot)
    (daemon,) = scene.world.machines["node-0"].mps.listed.values()
    judge.revoked[bound.allocation] = None
    if of_this_boot:
        with pytest.raises(ViolationError, match="its share is not revoked"):
            judge.terminated(scene.world.machines["node-0"], daemon, judge.bookings[earlier].owner)
    else:
        judge.terminated(scene.world.machines["node-0"], daemon, judge.bookings[earlier].owner)


@pytest.mark.parametrize("had_it", [False, True])
def test_the_judge_knows_on_whose_device_a_process_runs(had_it: bool) -> None:
    """Of two slices of one pod that overlap, a promise and what it was exchanged for, one alone had the device."""
    scene = Scene(MIG_NODE)
    scene.pod("a", sliced("1g.10gb"), lingers_s=8.0)
    scene.until(lambda: runs(scene, "a"))
    judge, bound = scene.world.judge, scene.bound("a")
    assert bound is not None
    booking, promised = judge.bookings[bound.allocation], AllocationId("promised")
    judge.bookings[promised] = replace(booking, allocation=promised)
    judge.after[promised] = (bound.allocation,)
    if had_it:
        judge.told_devices[judge.ready[bound.allocation].devices[0].uuid][promised] = None
        with pytest.raises(ViolationError, match="promised is said to be gone and Process"):
            judge.check_gone(machine_of(scene), promised)
    else:
        judge.check_gone(machine_of(scene), promised)


def test_that_a_slice_is_gone_is_said_when_its_pod_has_the_gpu_again() -> None:
    """A slice failed, its words wait unanswered, the broker is wiped, and its pod gets the GPU."""
    scene = Scene(WHOLE_NODE)
    landed = scene.landed()
    (gpu,) = machine_of(scene).gpus.values()
    tool = Process(77, OPERATOR, gpu.uuid)
    gpu.processes.append(tool)
    unanswered: list[Write] = []

    def fate_of(_host: str, write: Write) -> Fate | None:
        if not isinstance(write.message, SliceFailed):
            return None
        unanswered.append(write)
        return "ack lost" if len(unanswered) == 1 else "request lost"

    scene.world.broker.fate_of = fate_of
    scene.pod("a", WHOLE)
    scene.until(lambda: any(isinstance(write.message, Revoke) for write in landed))
    gpu.processes.remove(tool)
    scene.wait(1.0)
    scene.strike("broker wipe")
    scene.until(lambda: scene.runs("a"))
    assert not any(isinstance(write.message, SliceGone) for write in landed)
    scene.world.broker.fate_of = lambda _host, _write: None
    scene.until(lambda: any(isinstance(write.message, SliceGone) for write in landed))
    scene.finish()


def test_that_a_slice_is_gone_is_said_while_another_is_made_there_of_which_no_ledger_tells() -> None:
    """Its words wait unanswered over two wipes, while its place is granted and another slice made there."""
    scene = Scene(MIG_NODE)
    lost = scene.lose(lambda _host, write: isinstance(write.message, SliceReady))
    scene.pod("a", sliced("7g.40gb"))
    scene.until(lambda: bool(lost))
    ready = lost[0].message
    assert isinstance(ready, SliceReady)
    scene.remove("a")
    (gpu,) = machine_of(scene).gpus.values()
    scene.until(lambda: not gpu.instances)
    scene.wait(0.3)
    scene.strike("broker wipe")
    scene.pod("b", sliced("7g.40gb"))
    scene.until(lambda: bool(gpu.instances), longest_s=60.0)
    scene.strike("gpu slow", "node-0", lasts_s=15.0)
    scene.strike("broker wipe")
    assert ready.allocation not in scene.world.judge.said_gone
    scene.world.broker.fate_of = lambda _host, _write: None
    scene.until(lambda: ready.allocation in scene.world.judge.said_gone)
    assert [instance.uuid for instance in gpu.instances.values()] == [""], "it is made by then: the story tells nothing"
    scene.until(lambda: scene.runs("b"), longest_s=60.0)
    scene.finish()


def test_an_agent_that_dies_over_a_starting_daemon_leaves_none() -> None:
    """The daemon runs and the journal only says that it may; its pod is removed meanwhile."""
    scene = Scene()
    scene.pod("a", mps(1500))
    kill_at(scene, StartMps)
    scene.remove("a")
    scene.wait(2)
    scene.host("agent-node-0").start()
    scene.until(lambda: not machine_of(scene).mps.listed, longest_s=60.0)
    scene.finish()


@pytest.mark.parametrize("number", [0, 1])
def test_an_agent_that_lost_its_journal_disturbs_no_tenant(number: int) -> None:
    """Ledger and directories are enough: the same daemon serves on, for those who stay."""
    scene = Scene()
    scene.pod("a", mps(1500))
    scene.pod("b", mps(1500))
    scene.until(lambda: runs(scene, "a", "b"))
    before = [daemon.pid for daemon in daemons_of(scene)]
    scene.strike("journal lost", "node-0", number=number)
    scene.remove("a")
    scene.wait(20)
    assert [daemon.pid for daemon in daemons_of(scene)] == before
    assert scene.runs("b")
    scene.finish()


def test_a_warm_instance_is_taken_without_its_former_name() -> None:
    """The same GPU instance serves the next pod of that shape, as another MIG device."""
    scene = Scene(keep_warm_s=30.0)
    gpu = machine_of(scene).gpus["GPU-node-0-0"]
    scene.pod("a", sliced("4g.20gb"))
    scene.until(lambda: scene.runs("a"))
    ((gi_id, first),) = gpu.instances.items()
    uuid = first.uuid
    scene.remove("a")
    scene.until(lambda: not first.uuid)
    scene.pod("b", sliced("4g.20gb"))
    scene.until(lambda: scene.runs("b"))
    assert list(gpu.instances) == [gi_id]
    assert gpu.instances[gi_id].uuid not in {"", uuid}
    scene.finish()


def test_a_warm_instance_is_in_nobodys_way() -> None:
    """Another shape there, or one that needs its engines, is made at once; idle ones go when their time is up."""
    scene = Scene(keep_warm_s=30.0)
    gpu = machine_of(scene).gpus["GPU-node-0-0"]
    for name in ("1g.5gb+me", "1g.5gb", "7g.40gb"):
        scene.pod(name.replace("+", "-"), sliced(name))
        scene.until(lambda name=name: scene.runs(name.replace("+", "-")))  # type: ignore[misc]
        scene.remove(name.replace("+", "-"))
        scene.until(lambda: not any(instance.uuid for instance in gpu.instances.values()))
    scene.wait(40)
    assert not gpu.instances
    scene.finish()


@pytest.mark.parametrize("was_refused", [False, True])
def test_the_judge_knows_for_whom_an_idle_instance_was_in_the_way(was_refused: bool) -> None:
    """The former tenant left before the retry: the next one fails for a reason of its own."""
    scene = Scene(keep_warm_s=30.0)
    machine, judge = machine_of(scene), scene.world.judge
    (gpu,) = machine.gpus.values()
    scene.pod("a", sliced("1g.5gb+me"))
    scene.until(lambda: scene.runs("a"))
    scene.remove("a")
    scene.until(lambda: not judge.held("node-0"))
    (idle,) = gpu.instances.values()
    start = next(span[0] for span in idle.profile.placements if span != idle.span)
    bound = judge.bound[scene.request("a")]
    (device,) = judge.bookings[bound.allocation].devices
    booked = replace(judge.bookings[bound.allocation], devices=(replace(device, start=start),))
    before, after = AllocationId("before"), AllocationId("after")
    judge.bookings[before] = replace(booked, allocation=before)
    create = CreateGpuInstance(1, device.gpu, idle.profile.profile_id, start, device.size)
    judge.refused(machine, gpu, create, DeviceRefusedError("InsufficientResources", "its engines are taken"))
    judge.said_gone[before] = None
    judge.bookings[after] = replace(booked, allocation=after)
    fails(judge, before if was_refused else after, caught=was_refused)


@pytest.mark.parametrize("is_taken_up_again", [False, True])
def test_the_judge_leaves_a_daemon_to_who_is_given_back_again_after_a_lost_journal(is_taken_up_again: bool) -> None:
    """`a` was said to be gone, its agent read the order to revoke it once more, and the home ends with that."""
    scene = Scene()
    machine, judge = machine_of(scene), scene.world.judge
    scene.pod("b", mps(1500))
    scene.until(lambda: scene.runs("b"))
    gone, before = judge.bound[scene.request("b")].allocation, AllocationId("before")
    judge.bookings[before] = replace(judge.bookings[gone], allocation=before, owner="a")
    judge.said_gone[before] = None
    scene.strike("journal lost", "node-0", lasts_s=60.0)
    if is_taken_up_again:
        machine.journal.append(SliceRecord(booking=judge.bookings[before], revision=2, phase="unmaking", devices=()))
    (gpu,) = machine.gpus.values()
    machine.tickets.clear()
    gpu.processes.clear()
    assert daemons_of(scene), "there is no daemon that could be left"
    with nullcontext() if is_taken_up_again else pytest.raises(ViolationError, match="the last of its home"):
        judge.check_gone(machine, gone)


def fails(judge: Judge, allocation: AllocationId, *, caught: bool) -> None:
    """An agent says that a slice has failed, which the judge blames on an idle instance or does not."""
    booking = judge.bookings[allocation]
    address = slice_(booking.node, allocation)
    failed = SliceFailed(
        allocation=allocation, request=booking.request, revision=1, error="Unknown", message="create_ci failed by plan"
    )
    write = Write(
        operation=OperationId("fails"),
        attempt=1,
        stream=Stream.STATE,
        subject=address.subject,
        guard=address.guard,
        expected=0,
        message=failed,
        request=booking.request,
    )
    with pytest.raises(ViolationError, match="warm in the way") if caught else nullcontext():
        judge.landed(write, 1)


def test_a_whole_gpu_is_not_left_in_a_mode_for_one_process() -> None:
    """After its shares it is given whole again, to a pod that may have several processes."""
    scene = Scene(WHOLE_NODE)
    scene.pod("a", mps(1500))
    scene.until(lambda: scene.runs("a"))
    assert machine_of(scene).gpus["GPU-node-0-0"].exclusive
    scene.remove("a")
    scene.pod("b", WHOLE)
    scene.until(lambda: scene.runs("b"))
    assert not machine_of(scene).gpus["GPU-node-0-0"].exclusive
    scene.finish()


@pytest.mark.parametrize(
    ("name", "story"),
    [
        ("last share gone before its home", test_a_whole_gpu_is_not_left_in_a_mode_for_one_process),
        ("limits not raised", test_a_larger_tenant_raises_the_limits_first),
        ("daemons ended at every start", test_a_restarted_agent_disturbs_no_daemon),
    ],
)
def test_a_story_catches_what_it_is_about(name: str, story: object) -> None:
    """Without chance: the story that passes as it is breaks the bug's own invariant once the bug is planted."""
    bug = next(bug for bug in HOME_BUGS if bug.name == name)
    with planted(bug), pytest.raises(ViolationError) as found:
        story()  # type: ignore[operator]
    assert found.value.rule in bug.caught_by

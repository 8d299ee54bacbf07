"""What a node does about shares, one schedule each: homes, daemons, limits, and instances that are kept warm."""

from contextlib import nullcontext

import pytest
from factories.words import write_of
from msgspec.structs import replace
from simulation.judges.judge import Judge, ViolationError
from simulation.plans.pods import mps
from simulation.schedules.scene import MIG_NODE, WHOLE, WHOLE_NODE, Scene, sliced
from simulation.world.hardware import OPERATOR, DeviceRefusedError, Machine, Process
from simulation.world.mps_daemons import Daemon
from simulation.world.weather import Fate

from sluice.contracts.bus.events import Write
from sluice.contracts.bus.subjects import slice_
from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import Revoke, SliceFailed, SliceGone, SliceReady
from sluice_node_agent.core.instructions import CreateGpuInstance
from sluice_node_agent.core.journal_records import SliceRecord


def machine_of(scene: Scene) -> Machine:
    """The only node."""
    return scene.world.machines["node-0"]


def daemons_of(scene: Scene) -> list[Daemon]:
    return [daemon for daemon in machine_of(scene).mps.listed.values() if daemon.alive]


@pytest.mark.parametrize("of_this_boot", [False, True])
def test_the_judge_knows_whose_client_may_be_let_go(of_this_boot: bool) -> None:
    """A forgotten share that the pod had there before a reboot has no client now."""
    scene = Scene()
    scene.serve("a", mps(1500), lingers_s=8.0)
    judge, bound = scene.world.judge, scene.bound("a")
    earlier = AllocationId("earlier")
    judge.bookings[earlier] = replace(judge.bookings[bound.allocation], allocation=earlier)
    judge.ready[earlier] = replace(judge.ready[bound.allocation], allocation=earlier)
    judge.ready_in[earlier] = judge.ready_in[bound.allocation] - (not of_this_boot)
    (daemon,) = scene.world.machines["node-0"].mps.listed.values()
    judge.revoked[bound.allocation] = None
    with pytest.raises(ViolationError, match="its share is not revoked") if of_this_boot else nullcontext():
        judge.terminated(scene.world.machines["node-0"], daemon, judge.bookings[earlier].owner)


@pytest.mark.parametrize("had_it", [False, True])
def test_the_judge_knows_on_whose_device_a_process_runs(had_it: bool) -> None:
    """Of two slices of one pod that overlap, a promise and what it was exchanged for, one alone had the device."""
    scene = Scene(MIG_NODE)
    scene.serve("a", sliced("1g.10gb"), lingers_s=8.0)
    judge, bound = scene.world.judge, scene.bound("a")
    booking, promised = judge.bookings[bound.allocation], AllocationId("promised")
    judge.bookings[promised] = replace(booking, allocation=promised)
    judge.after[promised] = (bound.allocation,)
    if had_it:
        judge.told_devices[judge.ready[bound.allocation].devices[0].uuid][promised] = None
    with pytest.raises(ViolationError, match="promised is said to be gone and Process") if had_it else nullcontext():
        judge.check_gone(machine_of(scene), promised)


@pytest.mark.parametrize("who", ["b", "elsewhere", "b, once its share is gone"])
def test_the_judge_knows_who_shares_a_device_of_which_another_was_told_first(who: str) -> None:
    """A tenant may start by its claim before its own `SliceReady` is stored; a pod without a share there may not."""
    scene = Scene(MIG_NODE)
    for name, ask in (("a", mps(1500)), ("b", mps(1500)), ("elsewhere", mps(10000))):
        scene.pod(name, ask)
    scene.until(lambda: all(scene.runs(name) for name in ("a", "b", "elsewhere")))
    judge, claims, theirs = scene.world.judge, scene.world.claims, scene.bound(who.partition(",")[0]).allocation
    (device,) = {each.uuid for name in ("a", "b") for each in judge.ready[scene.bound(name).allocation].devices}
    judge.told_devices[device] = {scene.bound("a").allocation: None}
    claims.by_claim = lambda: {judge.bookings[theirs].owner}
    process = Process(77, judge.bookings[theirs].owner, device)
    if who.endswith("gone"):
        judge.gone[theirs] = None
    with nullcontext() if who == "b" else pytest.raises(ViolationError, match="has opened a device of"):
        claims.started(machine_of(scene), process)


def test_that_a_slice_is_gone_is_said_when_its_pod_has_the_gpu_again() -> None:
    """A slice failed, its messages wait unanswered, the broker is wiped, and its pod gets the GPU."""
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
    scene.finish(once=lambda: any(isinstance(write.message, SliceGone) for write in landed))


def test_that_a_slice_is_gone_is_said_while_another_is_made_there_of_which_no_ledger_tells() -> None:
    """Its messages wait unanswered over two wipes, while its place is granted and another slice made there."""
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
    scene.finish(once=lambda: scene.runs("b"), longest_s=60.0)


@pytest.mark.parametrize("was_refused", [False, True])
def test_the_judge_knows_for_whom_an_idle_instance_was_in_the_way(was_refused: bool) -> None:
    """The former tenant left before the retry: the next one fails for a reason of its own."""
    scene = Scene(keep_warm_s=30.0)
    machine, judge = machine_of(scene), scene.world.judge
    (gpu,) = machine.gpus.values()
    scene.serve("a", sliced("1g.5gb+me"))
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
    scene.serve("b", mps(1500))
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
    said = {"allocation": allocation, "request": booking.request, "revision": 1}
    failed = SliceFailed(**said, error="Unknown", message="create_ci failed by plan")
    write = write_of(address, failed, None, "fails", request=booking.request)
    with pytest.raises(ViolationError, match="warm in the way") if caught else nullcontext():
        judge.landed(write, 1)

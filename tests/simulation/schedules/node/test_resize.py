"""Shares that are made larger and smaller while they are used: the interleavings that could let a neighbour in."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from simulation.harness.search import catches
from simulation.judges.gpu_tables import A100_WITHOUT_MIG
from simulation.judges.judge import ViolationError
from simulation.plans.pods import Ask, Device, fractional, mps
from simulation.planted.bug import PlantedBug, planted
from simulation.planted.node.sizes import SIZE_BUGS
from simulation.schedules.scene import MIG_NODE, WHOLE_NODE, Scene
from simulation.world import manifest_folder
from simulation.world.weather import Weather

from sluice.contracts.bus.events import Stream, Write
from sluice.contracts.messages import Grant, RequestWithdrawn, Revoke, SliceDegraded, SliceReady
from sluice_allocator.core.resize.pending import Adjusted, AdjustReason, AdjustRefused
from sluice_node_agent.core.instructions import MakeTicket, RemoveTicket, SetMpsLimits
from sluice_node_agent.core.slices import resize

UNLUCKY = Weather(until=30.0, ack_lost=0.15, request_lost=0.1, late=0.05, twice=0.2, redelivered=0.3)


def told(scene: Scene, name: str) -> int:
    bound = scene.bound(name)
    return bound.containers[0].memory_mib if bound is not None else 0


def counts(scene: Scene, name: str) -> int:
    bound = scene.bound(name)
    devices = scene.world.judge.sizes.most(scene.world.judge.bookings[bound.allocation])
    return max(device.share.memory_mib for device in devices if device.share is not None)


def resize_by(scene: Scene, allocator: str, name: str, memory_mib: int) -> None:
    """An operator asks this allocator to resize the share of a pod."""
    others = [host for host in scene.world.allocators if host.name != allocator]
    for host in others:
        host.alive = False  # for a process that chooses one of them
    scene.resize(name, memory_mib)
    for host in others:
        host.alive = True


def sharing(node: object, memory_mib: int, **more: object) -> Scene:
    scene = Scene(node, **more)  # type: ignore[arg-type]
    scene.serve("a", mps(memory_mib))
    return scene


# -- schedules ----------------------------------------------------------------------------------------------------


def a_smaller_share_lets_the_neighbour_in_when_its_processes_have_ended() -> None:
    """The neighbour waits while the first process runs, however long; its restart makes room."""
    scene = sharing(WHOLE_NODE, 30000)
    scene.resize("a", 10000)
    scene.pod("b", mps(25000))
    scene.until(lambda: told(scene, "a") == 10000)
    scene.wait(10)
    assert scene.bound("b") is None
    assert counts(scene, "a") == 30000
    scene.world.kubelets.restart(scene.request("a"), after_s=0.0)
    scene.until(lambda: scene.runs("a") and scene.runs("b"))
    assert counts(scene, "a") == 10000
    scene.finish()


def a_container_may_not_start_again_with_what_it_was_told_before() -> None:
    """Its pod has not read of the new size, its container restarts, and a larger neighbour keeps the limits high."""
    scene = sharing(WHOLE_NODE, 20000)
    scene.serve("big", mps(20000))
    scene.host("pod-watcher").pause()
    scene.resize("a", 5000)
    scene.until(lambda: told(scene, "a") == 5000)
    scene.world.kubelets.restart(scene.request("a"), after_s=0.0)
    scene.pod("late", mps(15000))
    scene.wait(6)
    scene.host("pod-watcher").resume()
    scene.finish(once=lambda: scene.runs("a") and scene.runs("late"))


def a_larger_share_stays_booked_while_it_is_written() -> None:
    """The neighbour asks in the moment between the decision and the ledger's answer."""
    scene = sharing(WHOLE_NODE, 10000)
    scene.resize("a", 30000)
    scene.pod("b", mps(20000))
    scene.until(lambda: told(scene, "a") == 30000)
    scene.wait(5)
    assert scene.bound("b") is None
    scene.remove("a")
    scene.finish(once=lambda: scene.runs("b"))


def a_larger_share_is_told_when_its_server_lets_it() -> None:
    """A container that restarts in between would see more than its server gives."""
    scene = Scene(WHOLE_NODE)
    scene.serve("a", fractional(10, 900))
    scene.resize("a", 9000, 40)
    scene.until(lambda: told(scene, "a") == 9000)
    (daemon,) = scene.world.machines["node-0"].mps.listed.values()
    assert (daemon.percent, daemon.memory_mib) == (40, 9000)
    scene.finish()


def a_share_that_ails_stays_as_small_as_it_has_become() -> None:
    """The neighbour has its place by then; the order to take it back would book that place a second time."""
    scene = sharing(WHOLE_NODE, 30000)
    scene.resize("a", 10000, restart_s=0.0)
    scene.pod("b", mps(25000))
    scene.until(lambda: scene.runs("a") and scene.runs("b"))
    its = scene.world.judge.bound[scene.request("a")].allocation
    scene.strike("xid", "node-0", lasts_s=6.0)
    scene.until(lambda: isinstance(scene.value(f"sluice.slice.node-0.{its}"), SliceDegraded))
    scene.remove("a")
    scene.until_lands(Revoke)
    scene.resize("b", 20000)
    scene.finish()


def a_process_that_connects_after_the_change_has_what_its_container_began_with() -> None:
    """A container opens its device late, or its kernel restarts: it is no client when its share is made smaller."""
    scene = Scene(WHOLE_NODE, kubelets=True)
    scene.serve("big", mps(20000))
    scene.serve("a", mps(20000), opens_after_s=6.0)
    scene.resize("a", 5000)
    scene.until(lambda: told(scene, "a") == 5000)
    scene.pod("late", mps(15000))
    scene.wait(10)
    assert scene.bound("late") is None
    scene.world.kubelets.restart(scene.request("a"), after_s=0.0)
    scene.until(lambda: scene.runs("late"))
    assert counts(scene, "a") == 5000
    scene.finish()


STORIES = (
    a_smaller_share_lets_the_neighbour_in_when_its_processes_have_ended,
    a_container_may_not_start_again_with_what_it_was_told_before,
    a_larger_share_stays_booked_while_it_is_written,
    a_larger_share_is_told_when_its_server_lets_it,
    a_share_that_ails_stays_as_small_as_it_has_become,
    a_process_that_connects_after_the_change_has_what_its_container_began_with,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_share_changes_its_size(story: Callable[[], None]) -> None:
    """What may be used is never more than there is, and all that was given back is had by others in the end."""
    story()


@pytest.mark.parametrize("bug", SIZE_BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_story_catches_what_it_is_about(bug: PlantedBug) -> None:
    """Without chance: the schedules that pass as they are break the bug's own invariant once the bug is planted."""
    found = []
    with planted(bug):
        for story in STORIES:
            try:
                story()
            except ViolationError as violation:
                found.append(violation.rule)
            except AssertionError:
                found.append("asserted")
    assert set(found) & set(bug.caught_by), f"{bug.name}: {found}"


# -- whatever dies in between -------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", [MIG_NODE, WHOLE_NODE], ids=["instance", "whole"])
@pytest.mark.parametrize("instruction", [SetMpsLimits, RemoveTicket, MakeTicket])
def test_the_agent_dies_over_a_step(node: object, instruction: type) -> None:
    """Whichever step it dies over, the next one finishes the change, and the pod has what was booked."""
    scene = sharing(node, 4000)
    agent = scene.world.agents["node-0"]
    happened: list[object] = []
    agent.on_instruction.append(lambda _host, sent: happened.append(sent) if isinstance(sent, instruction) else None)
    scene.resize("a", 900, restart_s=4.0)
    scene.until(lambda: bool(happened))
    agent.kill()
    scene.wait(2)
    agent.start()
    scene.finish(once=lambda: told(scene, "a") == counts(scene, "a") == 900)


@pytest.mark.parametrize("size", [900, 9000], ids=["smaller", "larger"])
def test_the_allocator_dies_after_the_order(size: int) -> None:
    """The answer is lost; the ledger's entry is carried out, and asking again finds it done."""
    scene = sharing(WHOLE_NODE, 4000)
    scene.resize("a", size)
    assert scene.until_lands(Grant).revision == 2
    scene.host("allocator-a").kill()
    scene.wait(2)
    scene.host("allocator-a").start()
    scene.until(lambda: told(scene, "a") == size)
    scene.resize("a", size)
    scene.wait(1)
    last = scene.world.resizer.outcomes[-1]
    assert isinstance(last, AdjustRefused)
    assert last.reason is AdjustReason.UNCHANGED
    scene.finish()


def test_two_changes_at_once_by_two_allocators() -> None:
    """Both are answered, the later one in the ledger holds, and nothing unused is counted."""
    scene = sharing(WHOLE_NODE, 4000, allocators=2, weather=UNLUCKY)
    for size in (900, 9000, 2400, 15000, 300):
        scene.resize("a", size, restart_s=1.0)
        scene.resize("a", size + 100)
        scene.wait(1.5)
    scene.wait(20)
    done = [outcome for outcome in scene.world.resizer.outcomes if isinstance(outcome, Adjusted)]
    assert len({outcome.revision for outcome in done}) == len(done) > 1
    scene.world.kubelets.restart(scene.request("a"), after_s=0.0)
    last = max(done, key=lambda outcome: outcome.revision)
    share = last.booking.devices[0].share
    scene.finish(once=lambda: told(scene, "a") == counts(scene, "a") == share.memory_mib)


def let_in_unheard(scene: Scene) -> Callable[[], None]:
    """A share shrunk from 30,000 to 10,000 MiB with 25,000 beside it, unread by allocator-a until the call."""
    scene.serve("a", mps(30000), lingers_s=8.0)
    resize_by(scene, "allocator-b", "a", 10000)
    scene.until(lambda: told(scene, "a") == 10000)
    scene.wait(1)
    go_on = scene.stall("allocator-a", Stream.STATE)
    scene.world.kubelets.restart(scene.request("a"), after_s=0.0)
    scene.serve("b", mps(25000))
    return go_on


def size_taken_back(landed: list[Write]) -> int:
    """In MiB, of the one share that a Revoke was written for."""
    (revoke,) = (write.message for write in landed if isinstance(write.message, Revoke))
    (device,) = revoke.booking.devices
    return device.share.memory_mib


def test_who_reads_late_says_that_more_counts_than_is_used() -> None:
    """One allocator shrinks a share further that it reads late, while its neighbour has the released part."""
    scene = Scene(WHOLE_NODE, allocators=2)
    landed = scene.landed()
    go_on = let_in_unheard(scene)
    resize_by(scene, "allocator-a", "a", 9000)
    scene.wait(1)
    go_on()
    scene.wait(1)
    scene.remove("a")
    scene.until(lambda: any(isinstance(write.message, Revoke) for write in landed))
    assert size_taken_back(landed) == 30000
    resize_by(scene, "allocator-b", "b", 20000)
    scene.finish(once=lambda: told(scene, "b") == 20000)


def test_who_takes_a_share_back_may_not_have_heard_that_it_is_smaller() -> None:
    """That a share is smaller is overwritten unread, a neighbour has the rest, and the first is taken back."""
    scene = Scene(WHOLE_NODE, allocators=2)
    landed = scene.landed()
    go_on = let_in_unheard(scene)
    scene.host("allocator-b").pause()
    scene.remove("a")
    address = f"sluice.request.{scene.request('a')}"
    scene.until(lambda: isinstance(scene.value(address), RequestWithdrawn))
    scene.let_hear("allocator-a", address)
    scene.until(lambda: any(isinstance(write.message, Revoke) for write in landed))
    assert size_taken_back(landed) == 30000
    go_on()
    scene.host("allocator-b").resume()
    resize_by(scene, "allocator-b", "b", 20000)
    scene.finish(once=lambda: told(scene, "b") == 20000)


def _without_the_wait(original: Any, work: Any, result: Any, state: Any, config: Any, now: float) -> None:
    """What has no process is not there."""
    original(work, result, state, replace(config, container_start_s=0.0), now)


ON_ITS_WAY = PlantedBug(
    "containers on their way forgotten",
    "memory that a container uses which was created before the change, and began after it",
    ("I2",),
    ((resize, "take_look", _without_the_wait),),
)


@catches(ON_ITS_WAY)
def test_a_container_has_read_its_claims_file_before_the_change_and_begins_after_it() -> None:
    """Nothing shows it meanwhile: no process, and no file that it needs."""
    scene = Scene(WHOLE_NODE, kubelets=True, hands_over=True)
    scene.serve("big", mps(20000), by_claim=True)
    scene.pod("a", mps(20000), by_claim=True)
    kubelets, machine = scene.world.kubelets, scene.world.machines["node-0"]
    slowly = patch.multiple(manifest_folder, STARTS_S=0.9, RESTART_S=2.0)
    with slowly, patch.object(kubelets.dice, "random", lambda: 1.0):
        scene.until(lambda: scene.bound("a") is not None and bool(machine.of_pod(kubelets.owners[scene.request("a")])))
    scene.resize("a", 5000)
    scene.pod("late", mps(15000), by_claim=True)
    scene.wait(6.0)
    assert scene.bound("late") is None
    kubelets.restart(scene.request("a"), after_s=0.0)
    scene.finish(once=lambda: scene.runs("a") and scene.runs("late"))


def test_the_pod_ends_while_its_share_is_changed() -> None:
    """The revoke counts all that may be used until the slice is gone, and then nothing of it is left."""
    scene = Scene(WHOLE_NODE)
    scene.serve("a", mps(30000), lingers_s=6.0)
    scene.resize("a", 10000)
    scene.until_lands(Grant)
    scene.remove("a")
    scene.pod("b", mps(25000))
    scene.until_lands(Revoke)
    assert scene.bound("b") is None
    scene.finish(once=lambda: scene.runs("b"))


def test_what_an_agent_never_heard_of_does_not_count_after_a_wipe_while_its_slice_is_unmade() -> None:
    """The pod is gone before its agent reads that its share is larger: a neighbour may get the unused part."""
    scene = Scene(WHOLE_NODE)
    scene.serve("a", mps(15000), lingers_s=20.0)
    landed = scene.landed()
    go_on = scene.stall("agent-node-0", Stream.BOOK)
    scene.resize("a", 30000)
    scene.until(lambda: any(isinstance(write.message, Grant) for write in landed))
    scene.remove("a")
    scene.until(lambda: any(isinstance(write.message, Revoke) for write in landed))
    assert size_taken_back(landed) == 30000
    go_on()
    scene.wait(2)
    landed.clear()
    scene.strike("broker wipe")
    scene.until(lambda: any(isinstance(write.message, Revoke) for write in landed))
    (revoke,) = (write.message for write in landed if isinstance(write.message, Revoke))
    assert scene.world.judge.sizes.most(revoke.booking) == revoke.booking.devices
    assert size_taken_back(landed) == 15000
    scene.finish()


@pytest.mark.parametrize("size", [900, 9000], ids=["smaller", "larger"])
def test_the_daemon_dies_while_its_limits_change(size: int) -> None:
    """The next daemon has the new limits; the pod that lost its device runs again with what it has now."""
    scene = sharing(WHOLE_NODE, 4000)
    scene.resize("a", size)
    scene.strike("daemon dies", "node-0")
    scene.finish(once=lambda: told(scene, "a") == counts(scene, "a") == size and scene.runs("a"))


@pytest.mark.parametrize("size", [900, 9000], ids=["smaller", "larger"])
def test_the_new_size_survives_a_wiped_broker(size: int) -> None:
    """The agents' journals have it; the request still has the old one, and it is not corrected back."""
    scene = sharing(WHOLE_NODE, 4000)
    scene.resize("a", size, restart_s=1.0)
    scene.until(lambda: told(scene, "a") == counts(scene, "a") == size)
    scene.strike("broker wipe")
    scene.wait(30)
    scene.until(lambda: told(scene, "a") == size and scene.runs("a"))
    assert counts(scene, "a") == size
    ready = scene.value(f"sluice.slice.node-0.{scene.bound('a').allocation}")  # type: ignore[union-attr]
    assert isinstance(ready, SliceReady)
    assert ready.revision == 2
    scene.finish()


def test_a_reboot_in_the_middle_ends_what_was_used() -> None:
    """All processes are gone with it: the share is made again as it was ordered last."""
    scene = sharing(MIG_NODE, 4000)
    scene.resize("a", 900)
    scene.wait(0.05)
    scene.strike("reboot", "node-0")
    scene.finish(once=lambda: told(scene, "a") == counts(scene, "a") == 900 and scene.runs("a"), longest_s=60.0)


def test_a_process_that_began_with_the_new_size_is_not_counted_although_another_home_answers_late() -> None:
    """A pod has shares on two GPUs, and one daemon does not start for long: the other GPU was looked at before."""
    scene = Scene(((A100_WITHOUT_MIG, False),) * 2)
    devices = (Device("memory", amount=9000, modes=("mps",)),) * 2
    keys = (("sluice.dev/mode", "mps"), ("sluice.dev/memory", "9000Mi"), ("sluice.dev/gpus", "2"))
    scene.serve("a", Ask(keys, ("main",), devices))
    machine, bound = scene.world.machines["node-0"], scene.bound("a")
    first, _, _ = bound.containers[0].visible_devices.partition(",")  # that one its process uses
    (other,) = (daemon for daemon in machine.mps.listed.values() if daemon.device != first)
    scene.resize("a", 5000)
    scene.until_lands(SliceReady)
    machine.mps.refusals.extend(["before"] * 6)
    machine.mps.die(other.home, machine.gpus)
    scene.wait(9.0)
    assert len(machine.mps.refusals) < 6
    assert not machine.mps.alive(other.home)
    scene.world.kubelets.restart(scene.request("a"), after_s=0.0)
    scene.until(lambda: [process.memory_mib for _, process in machine.processes()] == [5000])
    scene.until(lambda: machine.mps.alive(other.home) is not None)
    scene.wait(3.0)
    assert counts(scene, "a") == 5000
    assert scene.runs("a")
    scene.finish()

"""The interleavings that the protocol names, each played once on purpose."""

import pytest
from simulation.schedules.scene import MIG_NODE, WHOLE, WHOLE_NODE, Scene, sliced
from simulation.schedules.unanswered import another_grants_the_place_meanwhile, its_pod_is_removed_meanwhile
from simulation.world.hardware import OPERATOR
from simulation.world.weather import Weather

from sluice.contracts.messages import (
    AllocationRequested,
    Bound,
    Closed,
    Grant,
    NodeOpened,
    Pending,
    Released,
    RequestWithdrawn,
    Revoke,
    SliceFailed,
    SliceGone,
    SliceReady,
)


def test_a_pod_runs_and_gives_its_slice_back() -> None:
    """The whole journey with nothing in its way, in the order that the protocol gives."""
    scene = Scene()
    landed = scene.landed()
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: scene.runs("a"))
    scene.remove("a")
    scene.wait(10)
    kinds = [type(write.message) for write in landed]
    journey = (AllocationRequested, Grant, SliceReady, Bound, RequestWithdrawn, Revoke, SliceGone, Closed, Released)
    assert [kind for kind in dict.fromkeys(kinds) if kind in journey] == list(journey)
    scene.finish()


def test_a_withdrawn_pod_stays_withdrawn_when_an_old_publish_arrives() -> None:
    """W1: what a dead pod-watcher had sent lands after its successor withdrew the request."""
    scene = Scene()
    scene.pod("a", sliced("1g.5gb"))
    scene.until(lambda: scene.runs("a"))
    asked = scene.landed()
    scene.strike("broker restart", lasts_s=0.1)
    scene.remove("a")
    scene.wait(10)
    withdrawn = next(write for write in asked if isinstance(write.message, RequestWithdrawn))
    scene.world.broker.write("a dead pod-watcher", withdrawn, lambda _answer: None)
    scene.finish()


def test_two_allocators_give_a_pod_one_slice() -> None:
    """Both grant it, on two nodes: both node guards hold, the binding's guard lets one win, the other is revoked."""
    scene = Scene(MIG_NODE, MIG_NODE, allocators=2)
    landed = scene.landed()
    for number in range(6):
        scene.pod(f"pod-{number}", sliced("1g.5gb"))
    scene.until(lambda: all(scene.runs(f"pod-{number}") for number in range(6)))
    bound = [write.subject for write in landed if isinstance(write.message, Bound)]
    assert len(bound) == len(set(bound)) == 6
    scene.finish()


@pytest.mark.parametrize("kind", ["ack_lost", "request_lost", "late", "twice"])
def test_a_write_without_an_answer_books_nothing_twice(kind: str) -> None:
    """W3: it landed, it did not, it lands after the retry, it lands again: one slice each time."""
    scene = Scene(weather=Weather(until=20.0, **{kind: 0.7}), allocators=2)
    scene.pod("a", sliced("3g.20gb"))
    scene.pod("b", sliced("4g.20gb"))
    scene.until(lambda: scene.runs("a") and scene.runs("b"), longest_s=60.0)
    scene.finish()


def test_a_lost_grant_does_not_take_what_was_granted_to_another_meanwhile() -> None:
    """W3: it goes out again with the same guard, which refuses it."""
    another_grants_the_place_meanwhile()


def test_a_pod_is_not_released_while_its_grant_may_still_land() -> None:
    """W3: a Grant without an answer is settled first, then revoked; `Released` is said when its slice is gone."""
    its_pod_is_removed_meanwhile()


def test_a_late_grant_does_not_bring_a_slice_back() -> None:
    """Section 5: a duplicate of the Grant arrives after the Revoke was carried out."""
    scene = Scene()
    landed = scene.landed()
    scene.pod("a", sliced("2g.10gb"))
    scene.until(lambda: scene.runs("a"))
    grant = next(write for write in landed if isinstance(write.message, Grant))
    scene.remove("a")
    scene.until(lambda: any(isinstance(write.message, Revoke) for write in landed))
    scene.wait(10)
    scene.tell("agent-node-0", grant.subject, grant.message, sequence=1)
    scene.wait(5)
    scene.host("agent-node-0").kill()
    scene.host("agent-node-0").start()
    scene.tell("agent-node-0", grant.subject, grant.message, sequence=1)
    scene.wait(5)
    assert not scene.world.machines["node-0"].gpus["GPU-node-0-0"].instances
    scene.finish()


def test_a_whole_gpu_in_use_is_not_given_away_after_the_broker_was_wiped() -> None:
    """Section 6: an empty ledger looks like an empty node, and nothing in a whole GPU would stop the second pod."""
    scene = Scene(WHOLE_NODE)
    scene.pod("a", WHOLE)
    scene.until(lambda: scene.runs("a"))
    before = scene.bound("a")
    scene.strike("broker wipe")
    scene.pod("b", WHOLE)
    scene.wait(20)
    assert isinstance(scene.value(f"sluice.waiting.{scene.request('b')}"), Pending)
    assert before is not None
    assert (again := scene.bound("a")) is not None
    assert (again.allocation, again.ticket) == (before.allocation, before.ticket)
    scene.finish()


def test_training_lives_on_while_the_pod_watcher_is_down_after_a_wipe() -> None:
    """Section 6: agents report before the source has listed; nothing is revoked however long that takes."""
    scene = Scene(MIG_NODE, MIG_NODE)
    scene.pod("a", sliced("7g.40gb"))
    scene.until(lambda: scene.runs("a"))
    landed = scene.landed()
    scene.host("pod-watcher").kill()
    scene.strike("broker wipe")
    scene.wait(60)
    assert not any(isinstance(write.message, Revoke) for write in landed)
    scene.host("pod-watcher").start()
    scene.until(lambda: scene.bound("a") is not None)
    scene.finish()


def test_a_slice_nobody_asks_for_is_given_back_once_its_source_has_spoken() -> None:
    """Section 6: the pod went while everything was down; its grant is an orphan and does not stay for ever."""
    scene = Scene()
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: scene.runs("a"))
    watcher = scene.world.watcher
    watcher.kill()
    watcher.identities = ()
    scene.remove("a")
    scene.strike("broker wipe")
    watcher.start()
    scene.until(lambda: not scene.world.machines["node-0"].gpus["GPU-node-0-0"].instances, longest_s=60.0)
    scene.finish()


def test_the_next_pod_waits_until_the_processes_of_a_force_deleted_one_are_gone() -> None:
    """Section 5: nothing has to be destroyed on a whole GPU, and yet it is not free."""
    scene = Scene(WHOLE_NODE)
    scene.pod("a", WHOLE, lingers_s=12.0)
    scene.until(lambda: scene.runs("a"))
    scene.remove("a")
    gone_at = scene.world.clockwork.now + 12.0
    scene.pod("b", WHOLE)
    scene.until(lambda: scene.bound("b") is not None)
    assert scene.world.clockwork.now > gone_at
    scene.finish()


@pytest.mark.parametrize("tickets_survive", [0, 1])
def test_after_a_reboot_a_pod_gets_its_place_again_under_a_new_ticket(tickets_survive: int) -> None:
    """Section 5: MIG instances vanish and grants stand; the old UUID and ticket start nothing."""
    scene = Scene()
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: scene.runs("a"))
    before = scene.bound("a")
    scene.strike("reboot", "node-0", number=tickets_survive)
    assert not scene.world.machines["node-0"].processes()
    scene.until(lambda: scene.runs("a"))
    after = scene.bound("a")
    assert before is not None
    assert after is not None
    assert (after.allocation, after.revision) == (before.allocation, before.revision + 1)
    assert after.ticket != before.ticket
    assert after.containers != before.containers
    scene.finish()


def test_a_failed_compute_instance_leaves_no_gpu_instance_behind() -> None:
    """The GPU instance exists, the compute instance cannot be made: all of it is undone, and the pod served later."""
    scene = Scene()
    landed = scene.landed()
    gpu = scene.world.machines["node-0"].gpus["GPU-node-0-0"]
    gpu.refusals.append(("create_ci", "Unknown"))
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: any(isinstance(write.message, SliceFailed) for write in landed))
    assert not gpu.instances
    scene.until(lambda: scene.runs("a"))
    scene.finish()


def test_an_agent_that_stood_still_acts_on_nothing_old() -> None:
    """I6: a paused agent wakes up after its pod was withdrawn and another one waits for the place."""
    scene = Scene()
    scene.pod("a", sliced("7g.40gb"))
    scene.until(lambda: scene.runs("a"))
    scene.host("agent-node-0").pause()
    scene.remove("a")
    scene.pod("b", sliced("7g.40gb"))
    scene.wait(20)
    assert scene.bound("b") is None
    scene.host("agent-node-0").resume()
    scene.until(lambda: scene.runs("b"))
    scene.finish()


def test_somebody_elses_instance_is_left_alone_and_its_place_not_given() -> None:
    """I13: an instance made by hand is reported, counted out and never touched."""
    scene = Scene()
    gpu = scene.world.machines["node-0"].gpus["GPU-node-0-0"]
    gi_id = gpu.create_gi(9, (4, 4), OPERATOR)
    scene.wait(20)
    scene.pod("a", sliced("3g.20gb"))
    scene.pod("b", sliced("3g.20gb"))
    scene.until(lambda: scene.runs("a") or scene.runs("b"))
    scene.wait(20)
    assert (scene.bound("a") is None) != (scene.bound("b") is None)
    assert gpu.instances[gi_id].maker == OPERATOR
    scene.finish()


def test_what_a_restarted_broker_forgot_is_said_again() -> None:
    """STATE may lose what it acknowledged: requests, slices and inventories come back by themselves."""
    scene = Scene(MIG_NODE, MIG_NODE)
    for number in range(4):
        scene.pod(f"pod-{number}", sliced("2g.10gb"))
    scene.wait(2.0)
    scene.strike("broker restart", lasts_s=1.0, number=50)
    scene.until(lambda: all(scene.runs(f"pod-{number}") for number in range(4)))
    scene.finish()


def test_the_bus_forgets_a_pod_that_is_gone() -> None:
    """Section 8: after the closing words have run out nothing of the pod is left, so start-up does not grow."""
    scene = Scene(closing_ttl_s=20)
    scene.pod("a", sliced("1g.5gb"))
    scene.until(lambda: scene.runs("a"))
    scene.finish()
    left = [subject for subject in scene.subjects() if ".node-0." not in f"{subject}." or subject.count(".") > 2]
    assert [subject for subject in left if not isinstance(scene.value(subject), NodeOpened)] == ["sluice.source.folder"]


def test_an_agent_that_lost_its_journal_finds_its_slices_again() -> None:
    """I14: hardware and ledger are enough; the running pod is not disturbed."""
    scene = Scene()
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: scene.runs("a"))
    before = scene.bound("a")
    scene.strike("journal lost", "node-0", number=1)
    scene.wait(20)
    after = scene.bound("a")
    assert before is not None
    assert after is not None
    assert (after.allocation, after.ticket, after.containers) == (before.allocation, before.ticket, before.containers)
    assert scene.runs("a")
    scene.finish()

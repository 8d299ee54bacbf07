"""Journal and ledger lost at once: a pod's slice is recognized by its ticket, and its place is not given away."""

from collections.abc import Callable

import pytest
from simulation.harness.search import assert_found, assert_played, dose
from simulation.plans.plan import Plan, draw_plan
from simulation.plans.pods import Ask, mps
from simulation.planted.bug import PlantedBug
from simulation.schedules.forgotten import (
    LEFT_BEHIND,
    LINGERS_UNSEEN,
    NOT_KNOWN_TO_HAVE_LIVED,
    a_new_disk_and_a_gpu_that_refuses,
    a_ticket_says_nothing_that_can_be_believed,
    foreign_is_ours,
    forget,
    journal_and_ledger_are_lost,
    tickets_unread,
    what_was_under_way_is_lost,
    who_lingers_on_a_whole_gpu_is_seen,
)
from simulation.schedules.scene import MIG_NODE, WHOLE, WHOLE_NODE, Scene, sliced
from simulation.world.hardware import Instance
from simulation.world.weather import Weather

from sluice.contracts.bus.events import Write
from sluice.contracts.messages import Grant, NodeOpened, Revoke, SliceGone, SliceReady
from sluice_allocator.core.resize.pending import Adjusted
from sluice_node_agent.core.events import MpsLimitsSet

UNLUCKY = Weather(until=60.0, ack_lost=0.1, request_lost=0.05, late=0.05, twice=0.2, redelivered=0.3)
DOSE = 60


@pytest.mark.parametrize("crash", ["", "agent-node-0", "agent-node-1", "allocator-a", "inventory"])
def test_pods_keep_their_slices_although_journals_and_ledger_are_lost_at_once(crash: str) -> None:
    """Each would get a second slice, and its first be lost for good."""
    journal_and_ledger_are_lost(crash)


def test_a_network_that_loses_and_repeats_words_changes_nothing_of_that() -> None:
    """Messages of before the wipe arrive after it."""
    journal_and_ledger_are_lost(weather=UNLUCKY)


@pytest.mark.parametrize("after_s", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0])
def test_what_was_being_made_or_unmade_in_that_moment_is_cleared_away(after_s: float) -> None:
    """Its place would be lost until an operator removes what is there by hand."""
    what_was_under_way_is_lost(after_s)


def test_a_pod_whose_ticket_cannot_be_believed_runs_on_and_gets_no_second_slice() -> None:
    """Nothing shows any more whose its instance is: it is left alone, and so is the pod."""
    a_ticket_says_nothing_that_can_be_believed()


@pytest.mark.parametrize(
    ("bug", "story"),
    [
        (tickets_unread, journal_and_ledger_are_lost),
        (NOT_KNOWN_TO_HAVE_LIVED, a_new_disk_and_a_gpu_that_refuses),
        (LEFT_BEHIND, what_was_under_way_is_lost),
        (LINGERS_UNSEEN, who_lingers_on_a_whole_gpu_is_seen),
    ],
    ids=lambda it: getattr(it, "name", ""),
)
def test_an_agent_that_forgets_takes_nothing_from_a_pod(bug: PlantedBug, story: Callable[[], None]) -> None:
    """A place of its own, or one that is free, would be lost; with the rule broken the judge sees that."""
    assert_played(story, bug)


def kinds(plan: Plan) -> set[str]:
    return {fault.kind for fault in plan.faults}


def test_ordinary_seeds_lose_journals_beside_what_is_hard_to_tell_apart() -> None:
    """What is not drawn is never found: neither in CI nor by who plays many seeds."""
    lost = [plan for plan in map(draw_plan, range(DOSE)) if "journal lost" in kinds(plan)]
    assert sum("foreign" in kinds(plan) for plan in lost) >= 5
    assert sum("broker wipe" in kinds(plan) for plan in lost) >= 5
    assert sum(plan.keep_warm_s > 0 for plan in lost) >= 5


def test_seeds_catch_an_agent_that_takes_what_was_made_by_hand_for_its_own() -> None:
    """An administrator would lose an instance with a node's journal."""
    drawn = map(draw_plan, dose(DOSE, found_at=18))
    assert_found(foreign_is_ours, (plan for plan in drawn if {"journal lost", "foreign"} <= kinds(plan)))


@pytest.mark.parametrize("size", [900, 38000], ids=["smaller", "larger"])
def test_beside_a_process_of_which_nothing_tells_any_more_a_share_becomes_smaller_and_not_larger(size: int) -> None:
    """The usage of that process is not counted; its neighbour takes nothing of it by having less."""
    scene = Scene(WHOLE_NODE)
    scene.pod("stays", mps(1500))
    scene.pod("goes", mps(4000), lingers_s=25.0)
    scene.until(lambda: scene.runs("stays") and scene.runs("goes"))
    machine = scene.world.machines["node-0"]
    scene.strike("gpu slow", "node-0", lasts_s=5.0)
    scene.remove("goes")
    scene.until(lambda: len(machine.tickets) == 1)
    forget(scene, "node-0", number=0)
    scene.until_lands(NodeOpened)
    scene.until(lambda: scene.bound("stays") is not None)
    scene.wait(2.0)
    scene.resize("stays", size, restart_s=0.5)
    scene.wait(4.0)
    assert len(machine.processes()) == 2
    assert [isinstance(outcome, Adjusted) for outcome in scene.world.resizer.outcomes] == [size == 900]
    scene.wait(20.0)
    scene.resize("stays", size, restart_s=0.5)
    scene.finish(once=lambda: [process.memory_mib for _, process in machine.processes()] == [size])


def test_an_instance_of_a_fixed_layout_is_not_granted_while_a_client_of_a_forgotten_home_is_on_it() -> None:
    """Its node is opened before its agent could look who is there, for its GPUs are slow: so it is granted."""
    scene = Scene(MIG_NODE, layouts={"GPU-node-0-0": (("7g.40gb", (0, 8)),)})
    scene.serve("goes", mps(4000), lingers_s=25.0)
    machine = scene.world.machines["node-0"]
    scene.strike("gpu slow", "node-0", lasts_s=20.0)
    scene.remove("goes")
    scene.until(lambda: not machine.tickets)
    forget(scene, "node-0", number=0)
    scene.pod("comes", sliced("7g.40gb"))
    scene.until_lands(Grant)
    assert len(machine.processes()) == 1
    scene.until(lambda: scene.runs("comes"), longest_s=90.0)
    assert len(machine.processes()) == 1
    scene.finish()


@pytest.mark.parametrize("ask", [WHOLE, mps(4000)], ids=["alone", "shared"])
def test_a_gpu_is_had_again_only_when_a_process_that_its_daemon_has_let_go_of_has_ended(ask: Ask) -> None:
    """It computes no more, but has its memory still; and its owner is unknown."""
    scene = Scene(WHOLE_NODE)
    scene.serve("goes", mps(4000), lingers_s=25.0)
    (gpu,) = scene.world.machines["node-0"].gpus.values()
    scene.remove("goes")
    scene.until(lambda: any(process.terminated for process in gpu.processes))
    forget(scene, "node-0", number=0)
    scene.serve("comes", ask, longest_s=90.0)
    assert [process.terminated for process in gpu.processes] == [False]
    scene.finish()


def dies_between_two_tickets(scene: Scene) -> Instance:
    """The agent of a pod with a share, which is resized: it has no ticket at that moment. Returns its instance."""
    agent = scene.world.agents["node-0"]
    (first,) = agent.machine.gpus["GPU-node-0-0"].instances.values()
    agent.on_ticket.append(lambda _what, _machine, _ticket: scene.world.clockwork.after(0.0, agent.kill))
    scene.resize("a", 5000)
    scene.until(lambda: not agent.alive)
    agent.on_ticket.pop()
    assert not agent.machine.tickets
    return first


def test_what_is_left_of_a_share_that_lost_its_ticket_goes_when_it_is_unused() -> None:
    """It was to get another one at once, being resized: no record is left of it, and its pod asks again."""
    scene = Scene(MIG_NODE)
    scene.serve("a", mps(9000))
    first = dies_between_two_tickets(scene)
    forget(scene, "node-0", number=0)
    scene.finish(once=lambda: scene.runs("a") and not first.uuid, longest_s=60.0)


def test_a_ticket_may_say_more_than_the_server_allows_when_a_later_order_is_lost() -> None:
    """The server's limits were lowered for that order. They are raised when the node is open; until then it is said."""
    scene = Scene(WHOLE_NODE)
    scene.serve("a", mps(9000))
    agent = scene.world.agents["node-0"]
    (daemon,) = agent.machine.mps.listed.values()
    agent.on_event.append(
        lambda event: scene.world.clockwork.after(0.0, agent.kill) if isinstance(event, MpsLimitsSet) else None
    )
    scene.resize("a", 5000)
    scene.until(lambda: not agent.alive)
    agent.on_event.pop()
    assert daemon.memory_mib == 5000
    forget(scene, "node-0", number=0)
    heads = scene.lose(lambda _host, write: isinstance(write.message, NodeOpened), times=1)
    scene.until(lambda: bool(heads))
    scene.strike("broker wipe")
    scene.finish(once=lambda: daemon.memory_mib == 9000)


def forget_but_for(scene: Scene, late: Write) -> None:
    """Journal and ledger are lost in one moment, and a message of before lands when the bus is there again."""
    landed = scene.landed()
    scene.strike("journal lost", "node-0", lasts_s=0.5, number=1)
    scene.wipe()
    scene.land(late)
    scene.wait(0.01)
    assert [write for write in landed if write.operation == late.operation]
    for host in scene.world.hosts.values():
        host.read_anew()


def test_a_late_word_of_a_share_of_which_nothing_tells_has_it_revoked_by_its_name() -> None:
    """It was without a ticket for a moment. That it is ready is published again, without a record of what it was."""
    scene = Scene(MIG_NODE)
    landed = scene.landed()
    scene.serve("a", mps(9000))
    ready = next(write for write in landed if isinstance(write.message, SliceReady))
    first = dies_between_two_tickets(scene)
    forget_but_for(scene, ready)
    scene.until(lambda: scene.runs("a") and not first.uuid, longest_s=90.0)
    assert [write for write in landed if isinstance(write.message, Revoke) and not write.message.booking.devices]
    scene.finish()


def test_a_late_word_of_what_was_being_taken_back_does_not_tell_who_is_there() -> None:
    """It is revoked by its name and said to be gone; its process lingers on the GPU, which is granted to another."""
    scene = Scene(WHOLE_NODE)
    landed = scene.landed()
    scene.serve("leaving", WHOLE, lingers_s=30.0)
    ready = next(write for write in landed if isinstance(write.message, SliceReady))
    leaving = scene.request("leaving")
    scene.remove("leaving")
    scene.until(lambda: not scene.world.machines["node-0"].tickets)
    forget_but_for(scene, ready)
    scene.until(lambda: any(isinstance(write.message, SliceGone) for write in landed))
    assert scene.world.judge.processes_of(leaving)
    scene.serve("next", WHOLE, longest_s=90.0)
    assert not scene.world.judge.processes_of(leaving)
    scene.finish()

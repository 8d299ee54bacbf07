"""What a system is rebuilt from (PROTOCOL §6): the broker, an agent's journal, and the source of requests are lost for
minutes, each alone and in pairs, while pods run, come and go; with a crash and bad weather. The judge sees the rest."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from simulation.harness.search import assert_played, catches
from simulation.planted.bug import PlantedBug, planted
from simulation.planted.lost_truth import NEVER_ENTERED
from simulation.planted.stale_beliefs import BELIEVED_BUGS
from simulation.schedules.scene import MIG_NODE, Scene, sliced
from simulation.schedules.unanswered import (
    ASKED_IN_ANY_LIFE,
    EVICTED_IN_ANY_LIFE,
    OUTDATED_NAMES_NOTHING,
    a_pod_was_bound_before_a_wipe_and_is_gone,
    a_slice_is_waived_and_a_binding_to_it_lands_after_a_wipe,
    a_source_asked_before_a_wipe,
    a_source_told_all_before_a_wipe,
    a_waiver_of_before_a_wipe_lands_when_all_is_over,
    an_eviction_was_ordered_before_a_wipe,
    an_order_lands_in_a_bus_made_by_a_slow_clock,
    numbers_outlive_their_stream,
    told_in_any_life,
)
from simulation.world.weather import Weather

from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import Incarnation
from sluice.contracts.messages import Bound, NodeChanged
from sluice_allocator.core.request import bind

WIPED, FORGOTTEN, UNREACHABLE = "broker wiped", "journal lost", "source unreachable"
CASES = [(WIPED,), (FORGOTTEN,), (UNREACHABLE,), (FORGOTTEN, WIPED), (WIPED, UNREACHABLE), (FORGOTTEN, UNREACHABLE)]
MINUTES_S = 150.0
"""How long the source is away: all that wait for it have given up waiting several times."""
AT_ONCE_S = 20.0
"""The node is adopted and the slices are created by then; a third of the time after which anything is repeated
anyway."""
FORGOTTEN_WORDS = 200
"""More of STATE than is said before the slices are there again."""
KEPT = ("kept-0", "kept-1", "kept-2")
UNLUCKY = Weather(until=40.0, ack_lost=0.1, request_lost=0.05, late=0.05, twice=0.2, redelivered=0.3)


def believed(name: str) -> PlantedBug:
    return next(bug for bug in BELIEVED_BUGS if bug.name == name)


def standing(scene: Scene) -> dict[str, Bound]:
    """What the pods that stay are bound to, in whichever incarnation of the bus that was said."""
    bound = {}
    for name in KEPT:
        each = scene.bound(name)
        assert each is not None, f"{name} is not bound"
        bound[name] = replace(each, incarnation=Incarnation(""))
    return bound


def lose(scene: Scene, what: str) -> None:
    """A disk, or the way to the source of a request."""
    if what == WIPED:
        scene.strike("broker wipe")
    elif what == FORGOTTEN:
        scene.strike("journal lost", "node-0", lasts_s=1.0, number=1)
        scene.wait(6.0)  # ledger and journal are each other's copy: the agent has read the ledger
    else:
        scene.host("pod-watcher").kill()


def begin(weather: Weather | None = None) -> Scene:
    """Two nodes; three pods that stay, and one that will go meanwhile."""
    scene = Scene(MIG_NODE, MIG_NODE, weather=weather)
    scene.serve_all((*KEPT, "leaving"), sliced("2g.10gb"), longest_s=60.0)
    return scene


def play(scene: Scene, lost: tuple[str, ...], crash: str = "") -> None:
    """Requests pour in before, while and after; what is lost is mended as a supervisor would; all ends well."""
    before = standing(scene)
    scene.pod("before", sliced("1g.5gb"))
    for what in lost:
        lose(scene, what)
    scene.remove("leaving")
    scene.pod("while", sliced("1g.5gb"))
    if crash:
        scene.wait(1.0)
        scene.strike("crash", crash, lasts_s=0.5)
    scene.wait(MINUTES_S if UNREACHABLE in lost else 5.0)
    for name in KEPT:
        assert scene.world.kubelets.runs(scene.request(name)), f"{name} was disturbed"
    if UNREACHABLE in lost:
        scene.host("pod-watcher").start()
    scene.pod("after", sliced("1g.5gb"))
    scene.until(lambda: all(scene.runs(name) for name in (*KEPT, "before", "while", "after")), longest_s=90.0)
    for name, bound in standing(scene).items():
        was = before[name]
        assert (bound.allocation, bound.ticket, bound.containers) == (was.allocation, was.ticket, was.containers)
    scene.finish()


@pytest.mark.parametrize("weather", [None, UNLUCKY], ids=["calm", "words are lost and repeated"])
@pytest.mark.parametrize("lost", CASES, ids=" and ".join)
def test_a_system_returns_by_itself_to_what_runs(lost: tuple[str, ...], weather: Weather | None) -> None:
    """Running pods keep the very slices that they have, and those that went meanwhile leave nothing."""
    play(begin(weather), lost)


@pytest.mark.parametrize("crash", ["allocator-a", "agent-node-1", "inventory"])
@pytest.mark.parametrize("lost", [(WIPED,), (FORGOTTEN, WIPED), (WIPED, UNREACHABLE)], ids=" and ".join)
def test_a_crash_meanwhile_changes_nothing_of_that(lost: tuple[str, ...], crash: str) -> None:
    """What was lost is found again by processes that die in the middle of finding it."""
    play(begin(), lost, crash)


def test_pods_that_all_go_while_nobody_looks_leave_nothing() -> None:
    """InstaSlice #150: after a mass delete allocations dangled. Here the source is away, and the broker wiped, too."""
    scene = begin()
    scene.host("pod-watcher").kill()
    for name in (*KEPT, "leaving"):
        scene.remove(name)
    scene.strike("broker wipe")
    scene.wait(MINUTES_S)
    scene.host("pod-watcher").start()
    machines = scene.world.machines
    scene.until(
        lambda: not any(gpu.instances for machine in machines.values() for gpu in machine.gpus.values()), longest_s=90.0
    )
    scene.finish()


def test_a_waiver_that_lands_when_its_request_is_over_does_not_stay_on_the_bus_for_ever() -> None:
    """Each such request would leave an answer that is never ended."""
    assert_played(a_waiver_of_before_a_wipe_lands_when_all_is_over, believed("late answer after the end ignored"))


@pytest.mark.parametrize(
    ("story", "bug"),
    [
        (a_source_told_all_before_a_wipe, told_in_any_life),
        (a_source_asked_before_a_wipe, ASKED_IN_ANY_LIFE),
        (an_eviction_was_ordered_before_a_wipe, EVICTED_IN_ANY_LIFE),
        (an_order_lands_in_a_bus_made_by_a_slow_clock, numbers_outlive_their_stream),
        (an_order_lands_in_a_bus_made_by_a_slow_clock, believed("order of another incarnation stands")),
        (a_slice_is_waived_and_a_binding_to_it_lands_after_a_wipe, believed("Bound of any incarnation")),
    ],
    ids=["told all", "asked", "evicted", "numbered", "ordered", "bound"],
)
def test_what_was_said_before_a_wipe_ends_no_slice_if_it_lands_late(story: Callable[[], None], bug: PlantedBug) -> None:
    """A running pod would lose its slice: its source has not published by then what it has, or it would be unwanted."""
    assert_played(story, bug)


def test_a_request_is_not_released_before_the_slice_that_a_late_binding_names_is_gone() -> None:
    """Its place would look free while its node is silent."""
    assert_played(a_pod_was_bound_before_a_wipe_and_is_gone, OUTDATED_NAMES_NOTHING)


def lose_all_but(scene: Scene, stream: Stream) -> None:
    """The broker was killed, and finds the files of one stream only."""
    broker = scene.world.broker
    broker.stop()
    broker.wipe(but=stream)
    scene.wait(1.5)
    broker.ensure()
    broker.start()


@pytest.mark.parametrize("stream", [Stream.BOOK, Stream.STATE])
def test_a_broker_that_has_lost_one_stream_returns_to_what_runs(stream: Stream) -> None:
    """The other one's message is of an earlier incarnation, or of one in which no node was adopted."""
    scene = begin()
    before = standing(scene)
    lose_all_but(scene, stream)
    scene.pod("after", sliced("1g.5gb"))
    scene.until(lambda: all(scene.runs(name) for name in (*KEPT, "leaving", "after")), longest_s=90.0)
    assert standing(scene) == before
    scene.finish()


def a_node_is_rebooted_and_the_broker_forgets_its_latest_words() -> None:
    """As where the broker's node loses its power: what is made again has numbers that the messages of before had."""
    scene = Scene(MIG_NODE)
    scene.serve_all(KEPT, sliced("2g.10gb"), longest_s=60.0)
    tickets = {each.ticket for each in standing(scene).values()}
    scene.wait(5.0)
    scene.strike("broker restart", lasts_s=1.0, number=FORGOTTEN_WORDS)
    scene.strike("reboot", "node-0", lasts_s=1.0)
    scene.until(lambda: not tickets & {each.ticket for each in standing(scene).values()}, longest_s=AT_ONCE_S)
    scene.finish(once=lambda: all(scene.runs(name) for name in KEPT))


def _newer_by_the_numbers_of_state(_original: Any, _ctx: Any, again: Bound, bound: Bound) -> bool:
    """Section 5 broken: the numbers of STATE say which message of an agent is the newer one."""
    return again.slice_sequence > bound.slice_sequence


def test_after_a_reboot_pods_have_their_new_devices_at_once_though_the_bus_forgets() -> None:
    """Their containers would wait for a minute, with UUIDs that name nothing."""
    schedule = a_node_is_rebooted_and_the_broker_forgets_its_latest_words
    schedule()
    patch = (bind, "_is_newer", _newer_by_the_numbers_of_state)
    bug = PlantedBug("newer by the numbers of STATE", "a minute", (), (patch,))
    with planted(bug), pytest.raises(AssertionError):
        schedule()


@catches(NEVER_ENTERED)
def test_what_an_agent_has_is_entered_although_its_node_was_opened_without_it() -> None:
    """Its place would be granted for ever, and never be had; and its pod wait for a node that is open.
    The last that STATE has of the node is older than that: it is opened again as if the slice were not there."""
    scene = Scene()
    unheard = scene.lose(lambda _host, write: isinstance(write.message, NodeChanged))
    scene.pod("a", sliced("7g.40gb"))
    scene.until(lambda: bool(unheard))
    lose_all_but(scene, Stream.STATE)
    scene.wait(3.0)
    scene.world.broker.fate_of = lambda _host, _write: None
    scene.wait(20.0)
    scene.finish()

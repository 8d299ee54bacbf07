"""Pods that are moved: their new place is booked, they are evicted, and their successors have it."""

from collections.abc import Callable

import pytest
from simulation.judges.gpu_tables import A30, A100
from simulation.judges.moves import MOVABLE, SUBSTITUTE
from simulation.plans.pods import Ask, Device
from simulation.schedules.scene import MIG_NODE, Scene, sliced

from sluice.contracts.bus.events import Write
from sluice.contracts.messages import Bound, Grant


def with_leeway(profile: str, key: str, value: str) -> Ask:
    """One slice that may be larger, or be moved."""
    keys = (("sluice.dev/profile", profile), (key, value))
    return Ask(keys, ("main",), (Device("profile", profile=profile, larger=key == SUBSTITUTE),))


def returns(**how) -> Scene:
    """A small pod runs on a larger profile, for its own was not to be had; now it is."""
    scene = Scene(MIG_NODE, ((A30, True),), folder_evicts=True, **how)
    scene.serve("whole", sliced("7g.40gb"))
    scene.serve("mover", with_leeway("1g.5gb", SUBSTITUTE, "return"))
    scene.wait(1.0)
    scene.remove("whole")
    return scene


def makes_room(**how) -> Scene:
    """A large pod waits, and would have a GPU if the small one there went to another."""
    scene = Scene(((A100, True), (A100, True)), folder_evicts=True, **how)
    for name, profile in (("stays", "4g.20gb"), ("leaves", "3g.20gb")):
        scene.serve(name, sliced(profile))
    scene.serve("mover", with_leeway("1g.5gb", MOVABLE, "true"))
    scene.wait(1.0)
    scene.remove("leaves")
    scene.pod("large", sliced("7g.40gb"))
    return scene


Begins = Callable[..., Scene]
STORIES: tuple[Begins, ...] = (returns, makes_room)


def of_moves(landed: list[Write]) -> tuple[list[Grant], list[Grant]]:
    """The places that were booked for the mover's successor, and those that it took over."""
    grants = [write.message for write in landed if isinstance(write.message, Grant)]
    evicting = [grant for grant in grants if grant.evict and not grant.adopted and grant.booking.name == "mover"]
    booked = [grant for grant in evicting if grant.after[0].startswith(f"{grant.booking.request}_")]
    kept = {grant.booking.allocation for grant in booked}
    return booked, [grant for grant in evicting if kept.issuperset(grant.after)]


def has_moved(scene: Scene, before: Bound) -> bool:
    now = scene.bound("mover")
    if now is None or now.request == before.request or not scene.runs("mover"):
        return False
    booking = scene.world.judge.bookings[now.allocation]
    return booking.devices[0].gpu != scene.world.judge.bookings[before.allocation].devices[0].gpu


def play(scene: Scene, landed: list[Write], before: Bound, longest_s: float = 60.0) -> None:
    """The moved pod comes to its new place, requested once more; a request that waits for its old one gets that."""
    scene.until(lambda: has_moved(scene, before), longest_s)
    if "large" in scene.world.folder.pods:
        scene.until(lambda: scene.runs("large"), longest_s)
    assert [asked.name for asked in scene.world.judge.requests.values()].count("mover") == 2
    assert of_moves(landed)[0]
    scene.finish()


@pytest.mark.parametrize("begins", STORIES, ids=lambda begins: begins.__name__)
def test_a_place_that_was_booked_is_handed_over(begins: Begins) -> None:
    """A pod that is restarted for a better place, and then has none, is worse off than before."""
    scene = begins()
    before, landed = scene.bound("mover"), scene.landed()
    play(scene, landed, before)
    booked, handed = of_moves(landed)
    assert len(booked) == len(handed) == 1
    (now,) = [w.message for w in landed if isinstance(w.message, Bound) and w.message.request != before.request][:1]
    assert now.allocation == handed[0].booking.allocation
    assert (handed[0].booking.node, handed[0].booking.devices) == (booked[0].booking.node, booked[0].booking.devices)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("steps", [range(1, 60, 13), pytest.param(range(1, 90), marks=pytest.mark.exhaustive)], ids=str)
@pytest.mark.parametrize(
    ("killed", "allocators"), [("allocator-a", 1), ("allocator-a", 2), ("pod-watcher", 1), ("agent-node-0", 2)]
)
@pytest.mark.parametrize("begins", STORIES, ids=lambda begins: begins.__name__)
def test_a_move_outlives_who_is_killed_at_any_step(begins: Begins, killed: str, allocators: int, steps: range) -> None:
    """Killed in the middle of the n-th event since the new place was booked: no pod moves twice, or for nothing."""
    handed = 0
    for step in steps:
        scene = begins(allocators=allocators)
        before, landed = scene.bound("mover"), scene.landed()
        assert before is not None
        scene.until(lambda landed=landed: bool(of_moves(landed)[0]), longest_s=40.0)
        scene.kill_after(killed, step)
        play(scene, landed, before)
        handed += bool(of_moves(landed)[1])
    assert handed > 0

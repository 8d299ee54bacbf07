"""What a node does with GPUs that an administrator partitions, one story each; and under a crash at each step."""

import pytest
from simulation.plans.pods import Ask, Device, mps
from simulation.schedules.scene import MIG_NODE, Scene, sliced
from simulation.world.hardware import OPERATOR, Gpu
from simulation.world.weather import Weather

from sluice.contracts.messages import Pending, SliceDegraded

LAYOUT = (("3g.20gb", (0, 4)), ("2g.10gb", (4, 2)), ("1g.5gb", (6, 1)))
FIXED = {"GPU-node-0-0": LAYOUT}
BOTH = (MIG_NODE, MIG_NODE)
UNLUCKY = Weather(until=25.0, ack_lost=0.15, request_lost=0.1, late=0.05, twice=0.2, redelivered=0.3)


def gpu_of(scene: Scene) -> Gpu:
    return scene.world.machines["node-0"].gpus["GPU-node-0-0"]


def is_as_it_was(scene: Scene) -> bool:
    """Whether the layout is what its administrator made."""
    found = sorted((one.span, one.profile.name, one.maker) for one in gpu_of(scene).instances.values())
    return found == sorted((span, name, OPERATOR) for name, span in LAYOUT)


def test_one_instance_serves_one_after_the_other_and_is_never_touched() -> None:
    """Two pods want the same instance: the second waits, and has the very same device when the first has gone."""
    scene = Scene(layouts=FIXED)
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: scene.runs("a"))
    scene.pod("b", sliced("3g.20gb"))
    scene.wait(5)
    assert not scene.bound("b")
    device = scene.world.judge.ready[scene.bound("a").allocation].devices[0].uuid
    scene.remove("a")
    scene.until(lambda: scene.runs("b"))
    assert scene.world.judge.ready[scene.bound("b").allocation].devices[0].uuid == device
    assert is_as_it_was(scene)
    scene.finish()


def test_what_is_there_is_used_before_anything_is_cut_up() -> None:
    """One fixed GPU and one that Sluice cuts up: small pods do not cost a large one its place."""
    scene = Scene(*BOTH, layouts=FIXED)
    scene.pod("small", sliced("1g.5gb"))
    scene.until(lambda: scene.runs("small"))
    scene.pod("large", sliced("7g.40gb"))
    scene.until(lambda: scene.runs("large"))
    assert (scene.bound("small").node, scene.bound("large").node) == ("node-0", "node-1")
    scene.finish()


def test_a_size_is_served_by_what_is_there() -> None:
    """Twelve thousand MiB are a 3g.20gb here: users need not know how the GPU is partitioned."""
    scene = Scene(layouts=FIXED)
    scene.pod("a", Ask((("sluice.dev/memory", "12000Mi"),), ("main",), (Device("memory", amount=12000),)))
    scene.until(lambda: scene.runs("a"))
    scene.finish()


def test_shares_live_in_an_instance_that_is_there() -> None:
    """The home's daemon comes and goes, its instance stays."""
    scene = Scene(layouts=FIXED)
    scene.pod("a", mps(1500))
    scene.pod("b", mps(1500))
    scene.until(lambda: scene.runs("a") and scene.runs("b"))
    scene.remove("a")
    scene.remove("b")
    scene.until(lambda: not scene.world.machines["node-0"].mps.listed)
    assert is_as_it_was(scene)
    scene.finish()


def test_after_a_reboot_a_slice_waits_for_the_layout_and_is_served_again() -> None:
    """Until its administrator has applied it again, users see that; then the pod has its slice back."""
    scene = Scene(layouts=FIXED)
    scene.pod("a", sliced("2g.10gb"))
    scene.until(lambda: scene.runs("a"))
    landed = scene.landed()
    layout, gpu_of(scene).layout = LAYOUT, (("1g.5gb", (6, 1)),)  # for now the rest is forgotten
    scene.strike("reboot", "node-0", lasts_s=0.2)
    scene.until(lambda: any(isinstance(write.message, SliceDegraded) for write in landed), longest_s=60.0)
    said = [write.message.message for write in landed if isinstance(write.message, SliceDegraded)]
    assert "this GPU's fixed layout has no 2g.10gb there; its administrator has to make one" in said[0]
    gpu_of(scene).layout = layout
    gpu_of(scene).lay_out()
    scene.until(lambda: is_as_it_was(scene) and scene.runs("a"), longest_s=60.0)
    scene.finish()


def test_what_nobody_made_is_waited_for_with_a_reason() -> None:
    """A pod that wants what the layout lacks gets that reason, and is served when the administrator makes it."""
    scene = Scene(layouts={"GPU-node-0-0": (("1g.5gb", (6, 1)),)})
    landed = scene.landed()
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: any(isinstance(write.message, Pending) for write in landed))
    (said,) = [write.message.message for write in landed if isinstance(write.message, Pending)]
    assert "no GPU here has 3g.20gb in its fixed layout" in said
    gpu_of(scene).layout = LAYOUT
    gpu_of(scene).lay_out()
    scene.until(lambda: scene.runs("a"), longest_s=60.0)
    scene.finish()


def play_a_fleet_of_both(scene: Scene) -> None:
    """Pods of all kinds come to a fixed GPU and to one that is cut up, and half of them go again."""
    asks = [sliced("1g.5gb"), sliced("3g.20gb"), mps(1500), sliced("2g.10gb"), mps(1500), sliced("1g.5gb")]
    for number, ask in enumerate(asks):
        scene.pod(f"pod-{number}", ask)
    scene.until(lambda: all(scene.runs(f"pod-{number}") for number in range(len(asks))), longest_s=120.0)
    for number in range(0, len(asks), 2):
        scene.remove(f"pod-{number}")
    scene.wait(5)
    scene.finish()
    assert is_as_it_was(scene)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("steps", [range(1, 80, 13), pytest.param(range(1, 80), marks=pytest.mark.exhaustive)], ids=str)
@pytest.mark.parametrize("killed", ["allocator-a", "agent-node-0"])
def test_a_crash_at_any_step_leaves_the_layout_as_it_is(killed: str, steps: range) -> None:
    """Killed in the middle of the n-th event since pods have asked, for each n: nothing is made, nothing is lost."""
    for at in steps:
        scene = Scene(*BOTH, allocators=2, layouts=FIXED)
        scene.kill_after(killed, at)
        play_a_fleet_of_both(scene)


def test_a_bad_network_leaves_the_layout_as_it_is() -> None:
    """Writes that are lost, late or doubled, words that come twice, two allocators: the same end."""
    play_a_fleet_of_both(Scene(*BOTH, allocators=2, layouts=FIXED, weather=UNLUCKY))


@pytest.mark.parametrize("fault", ["broker wipe", "journal lost"])
def test_what_is_forgotten_is_found_again_on_the_instances(fault: str) -> None:
    """The broker or the journal is lost under running pods: each keeps the very device that it has."""
    scene = Scene(layouts=FIXED)
    scene.pod("a", sliced("3g.20gb"))
    scene.pod("b", mps(1500))
    scene.until(lambda: scene.runs("a") and scene.runs("b"))
    scene.strike(fault, "node-0" if fault == "journal lost" else "")  # type: ignore[arg-type]
    scene.wait(10)
    scene.until(lambda: scene.runs("a") and scene.runs("b"), longest_s=60.0)
    assert is_as_it_was(scene)
    scene.finish()

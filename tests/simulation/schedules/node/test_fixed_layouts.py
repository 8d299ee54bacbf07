"""What a node does with GPUs that an administrator partitions, one schedule each; and under a crash at each step."""

from simulation.schedules.scene import Scene, sliced
from simulation.world.hardware import OPERATOR, Gpu

from sluice.contracts.messages import Pending, SliceDegraded

LAYOUT = (("3g.20gb", (0, 4)), ("2g.10gb", (4, 2)), ("1g.5gb", (6, 1)))
FIXED = {"GPU-node-0-0": LAYOUT}


def gpu_of(scene: Scene) -> Gpu:
    return scene.world.machines["node-0"].gpus["GPU-node-0-0"]


def is_as_it_was(scene: Scene) -> bool:
    found = sorted((one.span, one.profile.name, one.maker) for one in gpu_of(scene).instances.values())
    return found == sorted((span, name, OPERATOR) for name, span in LAYOUT)


def test_after_a_reboot_a_slice_waits_for_the_layout_and_is_served_again() -> None:
    """Until its administrator has applied it again, users see that; then the pod has its slice back."""
    scene = Scene(layouts=FIXED)
    scene.serve("a", sliced("2g.10gb"))
    layout, gpu_of(scene).layout = LAYOUT, (("1g.5gb", (6, 1)),)  # for now the rest is forgotten
    scene.strike("reboot", "node-0", lasts_s=0.2)
    said = scene.until_lands(SliceDegraded, 60.0).message
    assert "this GPU's fixed layout has no 2g.10gb there; its administrator has to make one" in said
    gpu_of(scene).layout = layout
    gpu_of(scene).lay_out()
    scene.finish(once=lambda: is_as_it_was(scene) and scene.runs("a"), longest_s=60.0)


def test_what_was_not_made_is_waited_for_with_a_reason() -> None:
    """A pod that wants what the layout lacks gets that reason, and is served when the administrator makes it."""
    scene = Scene(layouts={"GPU-node-0-0": (("1g.5gb", (6, 1)),)})
    scene.pod("a", sliced("3g.20gb"))
    assert "no GPU here has 3g.20gb in its fixed layout" in scene.until_lands(Pending).message
    gpu_of(scene).layout = LAYOUT
    gpu_of(scene).lay_out()
    scene.finish(once=lambda: scene.runs("a"), longest_s=60.0)

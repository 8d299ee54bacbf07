"""The interleavings that the protocol names, each played once on purpose."""

from simulation.schedules.scene import MIG_NODE, Scene, sliced

from sluice.contracts import messages as msg


def test_a_pod_runs_and_gives_its_slice_back() -> None:
    """The whole journey with nothing in its way, in the order that the protocol gives."""
    scene = Scene()
    landed = scene.landed()
    scene.serve("a", sliced("3g.20gb"))
    scene.remove("a")
    scene.wait(10)
    kinds = [type(write.message) for write in landed]
    asked = (msg.AllocationRequested, msg.Grant, msg.SliceReady, msg.Bound)
    journey = (*asked, msg.RequestWithdrawn, msg.Revoke, msg.SliceGone, msg.Closed, msg.Released)
    assert [kind for kind in dict.fromkeys(kinds) if kind in journey] == list(journey)
    scene.finish()


def test_two_allocators_give_a_pod_one_slice() -> None:
    """Both grant it, on two nodes: both node guards hold, the binding's guard lets one win, the other is revoked."""
    scene = Scene(MIG_NODE, MIG_NODE, allocators=2)
    landed = scene.landed()
    scene.serve_all([f"pod-{number}" for number in range(6)], sliced("1g.5gb"))
    bound = [write.subject for write in landed if isinstance(write.message, msg.Bound)]
    assert len(bound) == len(set(bound)) == 6
    scene.finish()


def test_a_failed_compute_instance_leaves_no_gpu_instance_behind() -> None:
    """The GPU instance exists, the compute instance cannot be made: all of it is undone, and the pod served later."""
    scene = Scene()
    gpu = scene.world.machines["node-0"].gpus["GPU-node-0-0"]
    gpu.refusals.append(("create_ci", "Unknown"))
    scene.pod("a", sliced("3g.20gb"))
    scene.until_lands(msg.SliceFailed)
    assert not gpu.instances
    scene.finish(once=lambda: scene.runs("a"))


def test_the_bus_forgets_a_pod_that_is_gone() -> None:
    """Section 8: after the closing messages have run out nothing of the pod is left, so start-up does not grow."""
    scene = Scene(closing_ttl_s=20)
    scene.serve("a", sliced("1g.5gb"))
    scene.finish()
    left = [subject for subject in scene.subjects() if ".node-0." not in f"{subject}." or subject.count(".") > 2]
    others = [subject for subject in left if not isinstance(scene.value(subject), msg.NodeOpened)]
    assert others == ["sluice.source.folder"]

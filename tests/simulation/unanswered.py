"""
Interleavings in which it matters that a write without an answer is settled by a write (PROTOCOL §2, W3).

Each ends when nothing was violated, and raises ViolationError where the rule is broken.
"""

from simulation.scene import MIG_NODE, Scene, sliced

from sluice.contracts.messages import Grant, NodeClosed, Released


def another_grants_the_place_meanwhile() -> None:
    """
    One allocator's Grant is lost; before it goes out again, the other one's Grant of that place is there and is read.

    It has to go out with the same guard, which refuses it now: on what was read since, it would never have been made.
    """
    scene = Scene(MIG_NODE, allocators=2)
    lost = scene.lose(lambda host, write: host == "allocator-a" and isinstance(write.message, Grant), times=1)
    landed = scene.landed()
    scene.host("allocator-b").pause()
    scene.pod("a", sliced("7g.40gb"))
    scene.until(lambda: bool(lost))
    scene.host("allocator-b").resume()
    scene.until(lambda: scene.runs("a"))
    scene.wait(5)
    grants = [write for write in landed if isinstance(write.message, Grant)]
    assert [write.operation.startswith("allocator-b") for write in grants] == [True]
    scene.finish()


def its_pod_is_removed_meanwhile() -> None:
    """
    A Grant is late, nothing that was read shows it, and its pod is removed; then it lands.

    Nobody may say that the pod's slice is given back as long as it may still be made.
    """
    scene = Scene()
    late = scene.lose(lambda _host, write: isinstance(write.message, Grant))
    landed = scene.landed()
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: bool(late))
    request = scene.request("a")
    scene.remove("a")
    scene.wait(5)
    scene.land(late[0])
    scene.until(lambda: any(isinstance(write.message, Grant) for write in landed))
    scene.until(lambda: isinstance(scene.value(f"sluice.binding.{request}"), Released))
    assert not scene.world.machines["node-0"].gpus["GPU-node-0-0"].instances
    scene.finish()


def its_agent_speaks_while_the_end_of_its_head_is_unanswered() -> None:
    """A node is removed by mistake; what is granted there again does not land behind the end of its head."""
    scene = Scene()
    landed = scene.landed()
    lost = scene.lose(lambda _host, write: isinstance(write.message, NodeClosed), times=1)
    scene.world.removals.say("node-0")
    scene.until(lambda: bool(lost))
    scene.host("agent-node-0").read_anew()
    scene.pod("a", sliced("1g.5gb"))
    scene.until(lambda: scene.runs("a"))
    assert any(isinstance(write.message, NodeClosed) for write in landed)
    scene.finish()

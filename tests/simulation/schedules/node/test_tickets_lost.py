"""The memory disk that tickets lie on is emptied, and the node has not been rebooted."""

import pytest
from simulation.judges.gpu_tables import GpuRow
from simulation.judges.judge import ViolationError
from simulation.plans.pods import Ask, mps
from simulation.planted.bug import planted
from simulation.planted.node.late_processes import another_home, written_once
from simulation.schedules.scene import MIG_NODE, WHOLE, WHOLE_NODE, Scene, sliced

Node = tuple[tuple[GpuRow, bool], ...]
MODES = [(WHOLE_NODE, WHOLE), (MIG_NODE, sliced("3g.20gb")), (WHOLE_NODE, mps(30_000))]


def _emptied(scene: Scene, ask: Ask) -> None:
    scene.serve("a", ask)
    scene.world.machines["node-0"].tickets.clear()
    scene.world.kubelets.restart(scene.request("a"), 0.0)
    scene.until(lambda: not scene.runs("a"))


@pytest.mark.parametrize(("node", "ask"), MODES, ids=["whole GPU", "instance", "share"])
@pytest.mark.parametrize("dies", [False, True], ids=["the agent goes on", "the agent is started again"])
def test_a_container_starts_again_after_its_ticket_was_lost(node: Node, ask: Ask, *, dies: bool) -> None:
    """Under the same name: its pod gets nothing new, and waits for nothing else."""
    scene = Scene(node, kubelets=True)
    _emptied(scene, ask)
    before = scene.bound("a")
    if dies:
        scene.host("agent-node-0").kill()
        scene.host("agent-node-0").start()
    scene.until(lambda: scene.runs("a"))
    assert scene.bound("a") == before
    scene.finish()


def test_without_the_rule_it_never_starts_again() -> None:
    """The same schedule breaks where what was written once is taken to be there."""
    scene = Scene(MIG_NODE, kubelets=True)
    _emptied(scene, sliced("3g.20gb"))
    with planted(written_once), pytest.raises(ViolationError) as found:
        scene.finish()
    assert found.value.rule in written_once.caught_by


def test_a_ticket_that_is_made_again_for_another_home_is_seen() -> None:
    """Not exempt although that home has no daemon: only what was handed out before may be handed out without one."""
    scene = Scene(WHOLE_NODE, kubelets=True)
    _emptied(scene, mps(30_000))
    with planted(another_home), pytest.raises(ViolationError) as found:
        scene.finish()
    assert found.value.rule in another_home.caught_by

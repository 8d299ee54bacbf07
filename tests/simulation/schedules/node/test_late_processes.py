"""Processes that outlive their pod, and have not opened their device when it is to be given back."""

import pytest
from simulation.judges.gpu_tables import GpuRow
from simulation.plans.pods import Ask, mps
from simulation.schedules.scene import MIG_NODE, WHOLE, WHOLE_NODE, Scene, sliced
from simulation.world.hardware import Machine

Node = tuple[tuple[GpuRow, bool], ...]
LIVES_ON_S = 12.0
SLOWLY_S = 9.0
MODES = [(WHOLE_NODE, WHOLE), (MIG_NODE, sliced("7g.40gb")), (WHOLE_NODE, mps(30_000))]
NAMES = ["whole GPU", "instance", "share"]


def _waiting(scene: Scene) -> bool:
    machine: Machine = scene.world.machines["node-0"]
    return bool(machine.waiting)


def _left_by_a_pod_that_was_deleted(scene: Scene, ask: Ask) -> float:
    """A pod is deleted by force while its process has not opened its device; when that process will have ended."""
    scene.pod("a", ask, lingers_s=LIVES_ON_S, opens_after_s=SLOWLY_S)
    scene.until(lambda: _waiting(scene))
    scene.remove("a")
    scene.pod("b", ask, user=1)
    return scene.world.clockwork.now + LIVES_ON_S


@pytest.mark.parametrize(("node", "ask"), MODES, ids=NAMES)
def test_the_next_pod_waits_for_a_process_that_has_not_opened_its_device_yet(node: Node, ask: Ask) -> None:
    """Section 5: an empty device does not say that its pod is gone, and what opens it late would be a stranger."""
    scene = Scene(node, kubelets=True)
    gone_at = _left_by_a_pod_that_was_deleted(scene, ask)
    scene.until(lambda: scene.bound("b") is not None)
    assert gone_at < scene.world.clockwork.now < gone_at + 3.0
    scene.finish()


def test_an_agent_that_dies_meanwhile_looks_again() -> None:
    """That no process was found is not remembered over a crash, and a process is found again."""
    scene = Scene(WHOLE_NODE, kubelets=True)
    gone_at = _left_by_a_pod_that_was_deleted(scene, WHOLE)
    for events in (5, 30, 60):
        scene.kill_after("agent-node-0", events)
    scene.until(lambda: scene.bound("b") is not None)
    assert scene.world.clockwork.now > gone_at
    scene.finish()

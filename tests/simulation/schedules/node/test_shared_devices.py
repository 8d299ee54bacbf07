"""What a node does about shares, one story each: homes, daemons, limits, and instances that are kept warm."""

from simulation.schedules.scene import MIG_NODE, WHOLE, WHOLE_NODE, Scene, sliced
from simulation.world.hardware import OPERATOR, Machine, Process
from simulation.world.weather import Fate

from sluice.contracts.bus.events import Write
from sluice.contracts.messages import Revoke, SliceFailed, SliceGone, SliceReady


def machine_of(scene: Scene) -> Machine:
    """The only node."""
    return scene.world.machines["node-0"]


def test_that_a_slice_is_gone_is_said_when_its_pod_has_the_gpu_again() -> None:
    """A slice failed, its words wait unanswered, the broker is wiped, and its pod gets the GPU."""
    scene = Scene(WHOLE_NODE)
    landed = scene.landed()
    (gpu,) = machine_of(scene).gpus.values()
    tool = Process(77, OPERATOR, gpu.uuid)
    gpu.processes.append(tool)
    unanswered: list[Write] = []

    def fate_of(_host: str, write: Write) -> Fate | None:
        if not isinstance(write.message, SliceFailed):
            return None
        unanswered.append(write)
        return "ack lost" if len(unanswered) == 1 else "request lost"

    scene.world.broker.fate_of = fate_of
    scene.pod("a", WHOLE)
    scene.until(lambda: any(isinstance(write.message, Revoke) for write in landed))
    gpu.processes.remove(tool)
    scene.wait(1.0)
    scene.strike("broker wipe")
    scene.until(lambda: scene.runs("a"))
    assert not any(isinstance(write.message, SliceGone) for write in landed)
    scene.world.broker.fate_of = lambda _host, _write: None
    scene.until(lambda: any(isinstance(write.message, SliceGone) for write in landed))
    scene.finish()


def test_that_a_slice_is_gone_is_said_while_another_is_made_there_of_which_no_ledger_tells() -> None:
    """Its words wait unanswered over two wipes, while its place is granted and another slice made there."""
    scene = Scene(MIG_NODE)
    lost = scene.lose(lambda _host, write: isinstance(write.message, SliceReady))
    scene.pod("a", sliced("7g.40gb"))
    scene.until(lambda: bool(lost))
    ready = lost[0].message
    assert isinstance(ready, SliceReady)
    scene.remove("a")
    (gpu,) = machine_of(scene).gpus.values()
    scene.until(lambda: not gpu.instances)
    scene.wait(0.3)
    scene.strike("broker wipe")
    scene.pod("b", sliced("7g.40gb"))
    scene.until(lambda: bool(gpu.instances), longest_s=60.0)
    scene.strike("gpu slow", "node-0", lasts_s=15.0)
    scene.strike("broker wipe")
    assert ready.allocation not in scene.world.judge.said_gone
    scene.world.broker.fate_of = lambda _host, _write: None
    scene.until(lambda: ready.allocation in scene.world.judge.said_gone)
    assert [instance.uuid for instance in gpu.instances.values()] == [""], "it is made by then: the story tells nothing"
    scene.until(lambda: scene.runs("b"), longest_s=60.0)
    scene.finish()

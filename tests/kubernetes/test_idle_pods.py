"""Idle pods on a whole system: real services and simulated GPUs without a process. Only time is played: it jumps."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from factories.cluster.cluster_system import ClusterSystem, whole_on
from factories.cluster.kubernetes import Cluster
from factories.cluster.scenes import Scene, user_pod

from sluice.contracts.slice_usage import NodeUsage
from sluice.runtime.grpc.security import LOOPBACK
from sluice.runtime.grpc.usage_client import ask_agents
from sluice_node_agent.shell.commands.hardware_command import change_hardware

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
NODE = "gpu-1"
JUMPING_CLOCK = """
import sys
from datetime import timedelta
from pathlib import Path

if {{"sluice_node_agent", "sluice_pod_watcher"}} & set(sys.orig_argv):
    from sluice.runtime.clock import SystemClock

    monotonic, utc = SystemClock.monotonic, SystemClock.utc

    def ahead():
        return float(Path({ahead!r}).read_text())

    SystemClock.utc = lambda self: utc(self) + timedelta(seconds=ahead())
    if "sluice_node_agent" in sys.orig_argv:  # the pod-watcher's lease goes by the machine's
        SystemClock.monotonic = lambda self: monotonic(self) + ahead()
"""
"""What their interpreters load first. The file `ahead` says by how many seconds their clocks are ahead."""


@pytest.fixture
def jump(tmp_path: Path) -> Callable[[int], None]:
    """Time jumps: so many seconds have passed since the start."""

    def to(ahead_s: int) -> None:
        (tmp_path / "next").write_text(str(ahead_s))
        (tmp_path / "next").rename(tmp_path / "ahead")

    to(0)
    return to


@pytest.fixture
def system(server: Cluster, tmp_path: Path, jump: Callable[[int], None]) -> Iterator[ClusterSystem]:
    """Pods of other namespaces idle for as long as they like; those of the test are asked one by one."""
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(JUMPING_CLOCK.format(ahead=str(tmp_path / "ahead")))
    others = {"PYTHONPATH": str(tmp_path / "python"), "SLUICE_NODE_AGENT_USAGE_EVERY_S": "0.2"}
    watcher = {"IDLE_EVICTIONS": "evict", "EVICT_RETRY_S": "0.5"}
    with whole_on(tmp_path / "s", server, (NODE,), watcher=watcher, own_nodes=True, others=others) as started:
        yield started


async def test_a_pod_whose_slice_idles_is_warned_and_evicted_and_its_neighbours_stay(
    scene: Scene, jump: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A forgotten notebook keeps a slice for days; and a pod that works, or never agreed, loses its work."""
    for name, after in (("notebook", "10m"), ("works", "10m"), ("never-asked", "never")):
        annotations = {"sluice.dev/profile": "1g.5gb", "sluice.dev/idle-after": after}
        await scene.apply(user_pod(name, annotations=annotations))
    pods = await scene.started(3)
    (device,) = scene.devices(pods["works"])
    command = ["hardware", "--data", str(scene.system.data), NODE, "start-process", device, "--memory-mib", "700"]
    assert change_hardware(command) == 0
    await scene.until(lambda: only_one_works(scene), "the slices to be measured")
    for name in pods:
        assert not await scene.notes(name, "SliceIdle")

    jump(310)
    (warning,) = await scene.until(lambda: scene.notes("notebook", "SliceIdle"), "a warning")
    assert "its slice has been idle for 5 min; the pod is evicted in 5 min unless it is used" in warning
    assert not (await scene.pods())["notebook"]["metadata"].get("deletionTimestamp")

    jump(650)
    (why,) = await scene.until(lambda: scene.notes("notebook", "Evicting"), "the eviction")
    assert why == "evicting the pod: its slice has been idle for 11 min"
    await scene.until(lambda: is_gone(scene, "notebook"), "the pod to go")
    await scene.until(lambda: scene.told(pods["notebook"]) is None, "its slice to be given back")

    assert {name for name in await scene.pods() if not await is_gone(scene, name)} == {"works", "never-asked"}
    for name in ("works", "never-asked"):
        assert not await scene.notes(name, "SliceIdle")
    assert change_hardware([*command[:4], "stop-process", capsys.readouterr().out.split()[-1]]) == 0


async def only_one_works(scene: Scene) -> bool:
    """Whether the agent has measured that; time jumps from there."""
    address = scene.live.fleet_state.news()[NODE].address
    (measured,) = (await ask_agents({NODE: address}, LOOPBACK)).values()
    assert isinstance(measured, NodeUsage), measured
    has_idled_never = {each.name: each.idle_s is None for each in measured.slices}
    return has_idled_never == {"notebook": False, "works": True, "never-asked": False}


async def is_gone(scene: Scene, name: str) -> bool:
    pod = (await scene.pods()).get(name)
    return pod is None or bool(pod["metadata"].get("deletionTimestamp"))

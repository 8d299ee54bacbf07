"""
`sluice demo`: shows in half a minute what MIG is and what Sluice does with it.

Real services on simulated GPUs. Each claim is checked against the running system before it is printed; the demo fails
with the first that does not hold.
"""

import asyncio
import shutil
from pathlib import Path

from sluice_console.shell.demo.demo_scene import DemoFailedError, Scene, Stage
from sluice_console.shell.examples import examples_dir
from sluice_console.shell.live.agent_snapshots import snapshots
from sluice_console.shell.output.printer import console, say
from sluice_console.shell.process.data_directory import temporary_directory
from sluice_console.shell.process.end_by_signal import ended_by_signal
from sluice_console.shell.process.system import System, SystemOptions
from sluice_console.shell.web.sidecar import PORT, page_at

__all__ = ["DemoFailedError", "demo"]

START_WITHIN_S = 30.0
WHOLE_WITHIN_S = 90.0
EMPTY_TOTAL = 19
"""`creatable_total` of an empty A100 of 40 GB: 7 + 1 + 4 + 3 + 2 + 1 + 1 over its seven profiles."""

WHOLE_GPU = "01-whole-gpu.yaml"
MIX = ("02-by-profile.yaml", "03-by-memory.yaml", "04-by-sm-count.yaml", "05-by-percentage.yaml")
SHARES = "14-two-shares.yaml"
SHARE_PODS = ("share-1", "share-2")
SMALL = "06-seven-small.yaml"
WAITING = "07-has-to-wait.yaml"
MISTAKE = "08-mistake.yaml"
SMALL_PODS = tuple(f"small-{number}" for number in range(1, 8))
MIX_PODS = ("by-profile", "by-memory", "by-sm-count", "by-percentage")
NEXT = (
    "",
    "Next, with your own pods and a live map of the GPUs in the browser:",
    "",
    "  mkdir pods && cp examples/0[1-7]*.yaml pods",
    "  .venv/bin/sluice up --fleet examples/fleet.toml --pods pods",
    "",
    f"The map is at {page_at(f'127.0.0.1:{PORT}')}, or where `sluice up` prints.",
)
"""What to try next, as commands for a checkout."""


async def demo() -> int:
    """Run all acts. Raises DemoFailedError and what starting a system raises; leaves nothing behind either way."""
    began = asyncio.get_running_loop().time()
    base = temporary_directory("sluice-demo-")
    out = console()
    try:
        pods_dir = base / "pods"
        pods_dir.mkdir()
        examples = examples_dir()
        options = SystemOptions(examples / "fleet.toml", pods_dir, base / "data", announced=False)
        with ended_by_signal("nothing is left running"):
            async with asyncio.timeout(WHOLE_WITHIN_S):
                out.print("Starting a NATS broker, the services, and two nodes with two simulated A100 GPUs each ...")
                async with System(options, lambda line: say([line])) as system:
                    await system.ready(within_s=START_WITHIN_S)
                    await _play(Stage(out, system.live, pods_dir, examples))
    except TimeoutError:
        raise DemoFailedError(f"the demo took more than {WHOLE_WITHIN_S:g} s") from None
    finally:
        shutil.rmtree(base, ignore_errors=True)
    took_s = asyncio.get_running_loop().time() - began
    out.print(f"\nEverything is stopped and removed, after {took_s:.1f} s.")
    for line in NEXT:
        out.print(line)
    return 0


async def _play(stage: Stage) -> None:
    await _empty_fleet(stage)
    await _whole_gpu(stage)
    await _share(stage)
    await _fill(stage)
    await _waits_and_is_served(stage)
    await _mistake(stage)
    await _nothing_left(stage)


async def _empty_fleet(stage: Stage) -> None:
    stage.begin(
        "Four empty GPUs",
        "With MIG a GPU is cut into instances, each with memory and cores of its own, separated in hardware.",
        "An A100 has eight slices of memory (the cells below). A profile is one size of cut: 1g.5gb is one slice",
        "of compute with 5 GB of memory, 7g.40gb is the whole card.",
    )
    scene = await stage.until(
        lambda scene: len(scene.gpus) == 4 and all(gpu.creatable_total == EMPTY_TOTAL for gpu in scene.gpus),
        f"four empty GPUs with a creatable_total of {EMPTY_TOTAL} each",
    )
    stage.show(scene)
    stage.tell(
        "An empty A100 has room for seven 1g.5gb, or three 2g.10gb, or one 7g.40gb ... `sluice gpus --json` adds",
        f"these alternatives up: creatable_total {EMPTY_TOTAL}.",
    )


async def _whole_gpu(stage: Stage) -> None:
    stage.begin(
        "A pod asks for 100 % of a GPU", "Sluice creates an instance of the largest profile, 7g.40gb, at this moment."
    )
    stage.add(WHOLE_GPU)
    scene = await stage.until(
        lambda scene: scene.holds("whole-gpu") and scene.gpu_of("whole-gpu").creatable_total == 0,
        "the pod whole-gpu to be bound and its GPU to go from 19 to 0",
    )
    stage.show(scene)
    others = [gpu.creatable_total for gpu in scene.gpus if gpu.uuid != scene.gpu_of("whole-gpu").uuid]
    if others != [EMPTY_TOTAL] * 3:
        raise DemoFailedError(f"act {stage.act}: the other GPUs should be untouched, but show {others}")
    stage.tell("Its creatable_total went from 19 to 0: the card is full. The other three are untouched.")


async def _share(stage: Stage) -> None:
    stage.begin(
        "Two pods share one instance",
        "Each asks for a fifth of a GPU's cores (SMs). Sluice creates one instance for both, with an MPS daemon that",
        "limits each pod to its share. Only pods of one namespace and user share: MPS does not isolate tenants.",
    )
    stage.add(SHARES)
    scene = await stage.until(
        lambda scene: all(scene.home_of(pod) for pod in SHARE_PODS), "two pods to be bound to shares of one instance"
    )
    first, second = (scene.home_of(pod) for pod in SHARE_PODS)
    if first is None or first.daemon is None or first is not second:
        raise DemoFailedError(f"act {stage.act}: the two pods should share one instance and one daemon")
    pid = first.daemon.pid
    if not _runs(pid):
        raise DemoFailedError(f"act {stage.act}: the MPS daemon should run as process {pid}, and does not")
    stage.show(scene)
    stage.tell(
        f"Both use the {first.profile} through the MPS daemon with process id {pid} (here a stand-in with the same",
        "commands). When both pods end:",
    )
    stage.remove(SHARES)
    await stage.until(
        lambda scene: (
            not any(pod in scene.pods for pod in SHARE_PODS)
            and [gpu.creatable_total for gpu in scene.gpus].count(EMPTY_TOTAL) == 3
        ),
        "the shared instance to be destroyed",
    )
    if _runs(pid):
        raise DemoFailedError(f"act {stage.act}: the MPS daemon, process {pid}, should have ended with its last tenant")
    stage.tell("The daemon has ended, and its instance is destroyed.")


def _runs(pid: int) -> bool:
    """Whether a process runs and is not a zombie: a simulated node's daemon is a process of this machine."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def _fill(stage: Stage) -> None:
    stage.begin(
        "Other pods fill the rest",
        "They ask by profile, memory, SMs or percentage. Each gets the smallest instance that is enough, placed so",
        "that large profiles still fit for as long as possible.",
    )
    for file, pod in zip(MIX, MIX_PODS, strict=True):
        stage.add(file)
        await stage.until(lambda scene, pod=pod: scene.holds(pod), f"the pod {pod} to be bound")  # type: ignore[misc]
    stage.add(SMALL)
    scene = await stage.until(
        lambda scene: all(map(scene.holds, SMALL_PODS)) and all(gpu.creatable_total == 0 for gpu in scene.gpus),
        "seven small pods to be bound and every GPU to be full",
    )
    stage.show(scene)
    stage.tell(f"{len(scene.pods)} pods run on four GPUs, and nothing more fits.")


async def _waits_and_is_served(stage: Stage) -> None:
    stage.begin("One pod too many waits, with a reason")
    stage.add(WAITING)
    scene = await stage.until(lambda scene: scene.state("has-to-wait") == "waiting", "the pod has-to-wait to wait")
    stage.tell(f"has-to-wait {scene.pods['has-to-wait'].message}", "When another pod ends:")
    stage.remove(MIX[-1])
    scene = await stage.until(
        lambda scene: scene.holds("has-to-wait") and "by-percentage" not in scene.pods,
        "the pod has-to-wait to be served",
    )
    stage.show(scene)
    stage.tell(
        "The instance of the ended pod is destroyed, and a new one of the right size is created for the waiting pod."
    )


async def _mistake(stage: Stage) -> None:
    stage.begin("A mistake is refused at once")
    stage.add(MISTAKE)
    scene = await stage.until(lambda scene: scene.state("mistake") == "refused", "the pod mistake to be refused")
    stage.tell(f"mistake {scene.pods['mistake'].message}", "The other pods are not affected.")
    if not all(scene.holds(pod) for pod in ("whole-gpu", "has-to-wait", *MIX_PODS[:-1], *SMALL_PODS)):
        raise DemoFailedError(f"act {stage.act}: a mistake of one pod disturbed another")


async def _nothing_left(stage: Stage) -> None:
    stage.begin("All pods end")
    stage.remove(*sorted(file.name for file in stage.pods_dir.iterdir()))
    scene = await stage.until(_is_empty, "every pod to be gone and every GPU to be empty")
    stage.show(scene)
    found = await snapshots({node: news.address for node, news in stage.live.fleet_state.news().items()})
    instances = sum(len(gpu.instances) for snapshot in found for gpu in snapshot.gpus)
    slices = sum(len(snapshot.slices) for snapshot in found)
    daemons = sum(len(gpu.daemons) for snapshot in found for gpu in snapshot.gpus)
    if daemons:
        raise DemoFailedError(f"act {stage.act}: the agents still report {daemons} MPS daemons")
    if len(found) != 2 or instances or slices:
        raise DemoFailedError(f"act {stage.act}: the agents still report {instances} instances and {slices} slices")
    stage.tell(
        f"The {len(found)} node agents report {instances} instances on "
        f"{sum(len(snapshot.gpus) for snapshot in found)} GPUs: nothing is left."
    )


def _is_empty(scene: Scene) -> bool:
    return not scene.pods and all(
        not gpu.instances and gpu.creatable_total == EMPTY_TOTAL and not gpu.stale for gpu in scene.gpus
    )

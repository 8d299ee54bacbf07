"""Broker wiped and a journal lost at once: only the node shows the owner of an instance. Raises ViolationError."""

from typing import Any

from simulation.plans.pods import mps
from simulation.planted.bug import PlantedBug, always, bug
from simulation.schedules.scene import MIG_NODE, WHOLE, WHOLE_NODE, Scene, sliced
from simulation.world.hardware import Machine, Ticket
from simulation.world.weather import Weather

from sluice.contracts.messages import Pending, RequestWithdrawn, SliceFailed
from sluice_node_agent.core.orders import reconcile
from sluice_node_agent.core.orders.reconcile import LedgerView
from sluice_node_agent.core.recovery.orphaned_instances import OrphanedInstances
from sluice_node_agent.core.slices import create

COMING = ("sliced", "sharing", "another-whole", "sharing-more")
KEPT = ("exclusive", "shared-0", "shared-1", "whole")


def begin(weather: Weather | None = None) -> Scene:
    """Pods run: on an instance, in two shares of one home, on a GPU of their own."""
    scene = Scene(MIG_NODE, WHOLE_NODE, WHOLE_NODE, weather=weather)
    for name, ask in zip(KEPT, (sliced("3g.20gb"), mps(1500), mps(1500), WHOLE), strict=True):
        scene.serve(name, ask, longest_s=60.0)
    return scene


def forget(scene: Scene, *nodes: str, number: int = 1) -> None:
    """The journals of these nodes and the broker, in one instant."""
    for node in nodes:
        scene.strike("journal lost", node, lasts_s=0.5, number=number)
    scene.strike("broker wipe")


def journal_and_ledger_are_lost(crash: str = "", weather: Weather | None = None) -> None:
    """Pods run on, their slices are known again, and pods that come meanwhile get others."""
    scene = begin(weather)
    before = {name: scene.bound(name) for name in KEPT}
    daemons = _daemons(scene)
    forget(scene, *scene.world.machines)
    scene.pod("while", sliced("1g.5gb"))
    if crash:
        scene.wait(1.0)
        scene.strike("crash", crash, lasts_s=0.5)
    scene.wait(30.0)
    for name in KEPT:
        assert scene.world.kubelets.runs(scene.request(name)), f"{name} was disturbed"
    scene.until(lambda: all(scene.runs(name) for name in (*KEPT, "while")), longest_s=60.0)
    for name, was in before.items():
        bound = scene.bound(name)
        assert (bound.allocation, bound.ticket, bound.containers) == (was.allocation, was.ticket, was.containers)
    assert daemons <= _daemons(scene)
    scene.finish()


def what_was_under_way_is_lost(after_s: float = 0.3, weather: Weather | None = None) -> None:
    """Slices of all kinds are being made and unmade in that instant: nothing of them stays where it can be given."""
    scene = begin(weather)
    for name in ("exclusive", "shared-0", "whole"):
        scene.remove(name)
    for name, ask in zip(COMING, (sliced("2g.10gb"), mps(1500), WHOLE, mps(3000)), strict=True):
        scene.pod(name, ask)
    scene.wait(after_s)
    forget(scene, *scene.world.machines)
    scene.finish(once=lambda: all(scene.runs(name) for name in ("shared-1", *COMING)), longest_s=90.0)


def who_lingers_on_a_whole_gpu_is_seen() -> None:
    """Its slice was being revoked at that moment. The GPU's next request does not get it beside the old pod."""
    scene = Scene(WHOLE_NODE)
    scene.serve("leaving", WHOLE, lingers_s=20.0)
    leaving = scene.request("leaving")
    scene.remove("leaving")
    scene.until(lambda: not scene.world.machines["node-0"].tickets)
    forget(scene, "node-0")
    landed = scene.landed()
    scene.serve("next", WHOLE, longest_s=90.0)
    refused = [write.message.error for write in landed if isinstance(write.message, SliceFailed)]
    assert refused, "no pod was granted the GPU while it was in use: the story tests nothing"
    assert set(refused) == {"InUse"}
    assert not scene.world.judge.processes_of(leaving)
    scene.finish()


def a_ticket_says_nothing_that_can_be_believed() -> None:
    """One pod's ticket is of an earlier version: the pod runs on, waits with a reason, and is given no second slice."""
    scene = begin()
    machine, ticket = ticket_of(scene, "exclusive")
    gpu = machine.gpu_with(ticket.devices[0])
    (instance,) = (each for each in gpu.instances.values() if each.uuid == ticket.devices[0])
    ticket.said = None
    forget(scene, *scene.world.machines)
    scene.pod("while", sliced("1g.5gb"))
    scene.until(lambda: all(scene.runs(name) for name in (*KEPT[1:], "while")), longest_s=60.0)
    scene.wait(30.0)
    assert scene.world.kubelets.runs(scene.request("exclusive")), "it was disturbed"
    assert scene.bound("exclusive") is None
    waiting = scene.value(f"sluice.waiting.{scene.request('exclusive')}")
    assert isinstance(waiting, Pending)
    assert ticket.name in waiting.message
    assert instance in gpu.instances.values()
    scene.remove("exclusive")
    scene.until(lambda: not scene.world.kubelets.runs(scene.request("exclusive")))
    scene.until(lambda: isinstance(scene.value(f"sluice.request.{scene.request('exclusive')}"), RequestWithdrawn))
    assert instance in gpu.instances.values(), "its owner is unknown, so it is not destroyed"


def a_new_disk_and_a_gpu_that_refuses() -> None:
    """What lived cannot be made again at once: its pod keeps its place, and its slice comes back there."""
    scene = Scene()
    watcher = scene.host("pod-watcher")
    watcher.kill()
    scene.pod("a", sliced("3g.20gb"))
    scene.wait(20.0)  # asked for long after it was written: no edit can be why it is withdrawn
    watcher.start()
    scene.until(lambda: scene.runs("a"))
    before = scene.bound("a")
    (gpu,) = scene.world.machines["node-0"].gpus.values()
    gpu.refusals.append(("create_gi", "InsufficientResources"))
    scene.strike("disk wiped", "node-0", lasts_s=1.0)
    scene.wait(30.0)
    scene.until(lambda: scene.runs("a"))
    bound = scene.bound("a")
    assert bound.allocation == before.allocation
    scene.finish()


def _daemons(scene: Scene) -> set[int]:
    machines = scene.world.machines.values()
    return {daemon.pid for machine in machines for daemon in machine.mps.listed.values() if daemon.alive}


def ticket_of(scene: Scene, name: str) -> tuple[Machine, Ticket]:
    """The ticket of a pod that runs, and where it is."""
    bound = scene.bound(name)
    machine = scene.world.machines[bound.node]
    return machine, machine.tickets[bound.ticket]


@bug(
    "tickets ignored without a journal",
    ("I1", "I3", "I4", "bound once", "undisturbed", "LAW 3", "cluster"),
    reconcile,
    "newest_first",
)
def tickets_unread(_original: Any, _tickets: Any) -> list[Any]:
    """The ledger alone names an instance's owner; without an entry it has none.
    Loses a second slice, and the first for good: its owner is not known any more."""
    return []


class _Everywhere:
    """A mark at every place."""

    def __contains__(self, _place: object) -> bool:
        return True


@bug("unmarked instances taken for ours", "I13", OrphanedInstances, "_instances")
def foreign_is_ours(original: Any, self: Any, found: Any, homes: Any) -> Any:
    """Marks are ignored: after a lost journal everything without an owner is destroyed.
    Loses the instance made by hand, when a journal is lost."""
    devices = self._state.devices
    marks, devices.marks = devices.marks, _Everywhere()
    try:
        return list(original(self, found, homes))
    finally:
        devices.marks = marks


def _holders_ignored(original: Any, record: Any, number: Any, _holders: Any, state: Any, ticket: Any) -> Any:
    return original(record, number, (), state, ticket)


LINGERS_UNSEEN = PlantedBug(
    "whole GPU recovered without a process check",
    "a device of its own",
    ("I1",),
    ((create, "_take_whole", _holders_ignored),),
)
LEFT_BEHIND = PlantedBug(
    "marks ignored after a loss",
    "capacity, until a person looks",
    ("I3", "I4"),
    ((OrphanedInstances, "look", always(None)),),
)
NOT_KNOWN_TO_HAVE_LIVED = PlantedBug(
    "lived ignored",
    "its place, to a device that refuses once",
    ("undisturbed",),
    ((LedgerView, "has_lived", always(False)),),
)

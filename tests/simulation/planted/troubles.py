"""Bugs planted on purpose about disks, lagging servers and wrong clocks."""

from dataclasses import replace
from typing import Any

from simulation.faults import further_faults
from simulation.plans.plan import Fault, FaultKind, Plan
from simulation.planted.bug import Bugs, PlantedBug, always, bug
from simulation.world.broker import Reader

from sluice.contracts.messages import AllocationRequested
from sluice_allocator.core import recheck
from sluice_allocator.core.state.bus_cache import BusCache
from sluice_node_agent.shell.journal.lines import DamagedError, Lines
from sluice_pod_watcher.core.folder.reconciler import FolderReconciler

TROUBLE_BUGS = Bugs()


def _damaged(plan: Plan) -> Plan:
    nodes = [node for node, _ in plan.nodes]
    return _only(plan, *(Fault(at, "journal damaged", nodes[0], 1.0, int(at)) for at in (12.0, 25.0)))


_FORGETS: tuple[FaultKind, ...] = (
    "broker wipe", "broker restart", "foreign", "node removed", "journal lost", "journal damaged", "identities lost",
    "replica lags",
)  # fmt: skip


@TROUBLE_BUGS.plant("damage not noticed", "journal", further_faults, "read_lines", _damaged)
def _damage_not_noticed(_original: Any, data: bytes, *, told: int = 0) -> Lines:
    """What does not read right is left out, as if it had never been written.
    Loses a place given twice, after a bit has flipped on a disk."""
    if not data and told:
        raise DamagedError("nothing is left")
    return Lines()


# Too rare by chance for the dose: it has a schedule of its own in `test_further_faults`.
@bug("latest request id wins", "undisturbed", FolderReconciler, "_adopt")
def latest_is_right(original: Any, self: Any, uid: Any, message: Any) -> Any:
    """A pod has the id that the bus has shown last, and whatever it had before is over.
    Loses living training, to an ask of before that was on its way for long."""
    if isinstance(message, AllocationRequested):
        before = self.identities.at((message.origin, f"{message.namespace}/{message.name}"))
        if before is not None:
            self.identities.end(before.uid, "pod gone")
            self.due[before.uid] = None
    return original(self, uid, message)


def _only(plan: Plan, *more: Fault) -> Plan:
    """The plan without what forgets something, and with these faults."""
    faults = [fault for fault in plan.faults if fault.kind not in _FORGETS]
    return replace(plan, keep_warm_s=0.0, faults=tuple(sorted((*faults, *more), key=lambda fault: fault.at)))


def _made_by_a_slow_clock(plan: Plan) -> Plan:
    """The bus is recreated again and again, each time by a server whose clock is further behind."""
    times = [8.0 + 4.0 * number for number in range(8)]
    behind = [
        Fault(at - 1.0, "clock", f"allocator-{which}", 0.0, -3000 * number)
        for number, at in enumerate(times, start=1)
        for which in "ab"
    ]
    wipes = (Fault(at, "broker wipe") for at in times)
    return _only(replace(plan, allocators=2, both_active=True), *behind, *wipes)


def _served_by_a_lagging_server(plan: Plan) -> Plan:
    """One server always lags by some seconds, and connections break often: pods come and go meanwhile."""
    lags = [Fault(at, "replica lags", "", 3.0) for at in (6.0, 12.0, 18.0, 24.0, 30.0, 36.0)]
    breaks = [Fault(lag.at + after, "disconnect", "pod-watcher") for lag in lags for after in (1.0, 2.2)]
    pods = tuple(replace(life, removed_at=life.made_at + 3.0) for life in plan.pods)
    return _only(replace(plan, pods=pods), *lags, *breaks)


def disks_wiped_behind_the_bus(plan: Plan) -> Plan:
    """The bus is wiped, and a moment later each node gets a new disk: some have their slices published by then."""
    wipes = (14.0, 28.0)
    nodes = [node for node, _ in plan.nodes]
    disks = [Fault(at + 0.8 + number, "disk wiped", node, 2.0) for at in wipes for number, node in enumerate(nodes)]
    return _only(plan, *(Fault(at, "broker wipe") for at in wipes), *disks)


TROUBLE_BUGS += [
    PlantedBug(
        "sequences compared across incarnations",
        "living training, to a clock that is behind",
        ("undisturbed", "I3", "I4", "I1"),
        ((BusCache, "_number_anew", always(None)),),
        _made_by_a_slow_clock,
    ),
    PlantedBug(
        "reading ends before its leader",
        "whatever was written last: a server that lags does not show it, and it counts as gone",
        ("I5", "cordoned", "taken until settled", "undisturbed", "I3", "I4"),
        ((Reader, "_is_complete", always(True)),),
        _served_by_a_lagging_server,
    ),
    PlantedBug(
        "statuses without entry stay",
        "a pod's end, for ever: it is never released",
        ("I3", "I4"),
        ((recheck, "watch_status", always(None)),),
        disks_wiped_behind_the_bus,
    ),
]

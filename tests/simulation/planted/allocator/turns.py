"""Bugs about turns and promises, planted on purpose: which request waits longest, and what is kept for it."""

from dataclasses import replace
from typing import Any

from simulation.judges.gpu_tables import A100_WITHOUT_MIG
from simulation.plans.plan import Fault, Plan, PodLife
from simulation.plans.pods import Ask, Device, fractional
from simulation.planted.bug import Bugs, PlantedBug, always, bug
from simulation.schedules.starvation import PROMISE_AFTER_S

from sluice.contracts.messages import Grant
from sluice_allocator.core import changes, cycle
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.node import reconcile as nodes
from sluice_allocator.core.request import grant_validity
from sluice_allocator.core.request import reconcile as requests
from sluice_allocator.core.reservations import reservation
from sluice_node_agent.core.orders import reconcile
from sluice_node_agent.core.orders.reconcile import OrderReconciler
from sluice_node_agent.core.slices import destroy

STARVING_BUGS = Bugs()
TURN_BUGS = Bugs()


def _wiped(plan: Plan) -> Plan:
    faults = [fault for fault in plan.faults if fault.kind not in {"journal lost", "broker wipe"}]
    faults += [Fault(at, "broker wipe") for at in (14.0, 24.0, 34.0)]
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


_ALL_OF_ONE = Ask((("sluice.dev/gpus", "1"),), ("main",), (Device("whole"),))


@STARVING_BUGS.plant("reserved and not booked", ("turn", "I1"), changes, "rebook")
def _not_booked(original: Any, ctx: Any, allocation: Any) -> bool:
    """A promise is in the ledger, and its place is given to others until its tenants are gone.
    Loses a place that was promised."""
    freed: bool = original(ctx, allocation)
    entry = ctx.facts.ledger.get(allocation)
    if isinstance(entry, Grant) and reservation.is_promise(ctx, entry):
        freed |= ctx.cluster.unbook(allocation)
    return freed


@TURN_BUGS.plant("reservation ignores its tenants", ("I1", "I2"), SchedulerContext, "grant")
def _waits_for_none(original: Any, self: Any, booking: Any, after: Any = (), **more: Any) -> None:
    """The place is booked, and its tenants are not waited for. Loses a slice still in use."""
    original(self, booking, (), **more)


@STARVING_BUGS.plant("reservation given up early", ("aging", "turn"), grant_validity, "why_give_up")
def _given_up_early(original: Any, ctx: Any, grant: Any, revision: int) -> str | None:
    """A promise is given up as soon as the first of those who stand there is gone: its piece is free, is it not?
    Loses a large pod's turn, each time that a half of its place is free."""
    waits = reservation.is_promise(ctx, grant)
    if waits and not grant.evict and len(reservation.unfinished(ctx, grant)) < len(grant.after):
        return "a victim is gone"
    cause: str | None = original(ctx, grant, revision)
    return cause


@TURN_BUGS.plant("reservation forgotten by a wipe", "I4", nodes, "_adopting_entry", _wiped)
def _forgotten_by_the_wipe(original: Any, ctx: Any, report: Any) -> Any:
    """After a wipe a promise is taken over like any slice that is there. Loses any answer, and its turn."""
    entry = original(ctx, report)
    return replace_after(entry) if isinstance(entry, Grant) else entry


def replace_after(grant: Grant) -> Grant:
    """The same, waiting for no pod."""
    return Grant(revision=grant.revision, incarnation=grant.incarnation, booking=grant.booking, adopted=grant.adopted)


def own_home_only(_original: Any, grant: Any, _state: Any) -> bool:
    """A GPU that was granted whole is kept by the MPS server of those who share it."""
    return grant.share is not None


# Found by the schedule in which an agent loses its journal.
@bug("agent takes an existing device", ("LAW 3", "one tenant per device"), OrderReconciler, "_was_begun")
def takes_what_is_there(_original: Any, self: Any, _order: Any) -> bool:
    """After the journal was lost, what is found at a promised place is taken for the promise's own.
    Loses living training."""
    return bool(self.found.unclaimed)


def _two_on_a_full_fleet(plan: Plan) -> Plan:
    """No pod ends, so that very many wait, and both allocators promise before they read each other's promises."""
    pods = tuple(replace(life, removed_at=None) for life in plan.pods)
    weather = replace(plan.weather, stall=max(plan.weather.stall, 0.15))
    return replace(plan, allocators=2, both_active=True, pods=pods, weather=weather)


def _shared_for_good(plan: Plan) -> Plan:
    """Whole GPUs alone: some pods share one and stay; others want all of one, wait for those in vain, and give up."""
    nodes = tuple((node, tuple((A100_WITHOUT_MIG, False) for _ in gpus)) for node, gpus in plan.nodes)
    pods = tuple(_shares_or_gives_up(number, life) for number, life in enumerate(plan.pods))
    return replace(plan, nodes=nodes, layouts={}, resizings=(), pods=pods)


def _shares_or_gives_up(number: int, life: PodLife) -> PodLife:
    pod = replace(life.pod, namespace="lab", user=None)
    if number % 2:
        gives_up_at = life.made_at + 2 * PROMISE_AFTER_S
        return PodLife(pod.asking(_ALL_OF_ONE), life.made_at, removed_at=gives_up_at)
    return PodLife(pod.asking(fractional(25)), 1.0) if number % 4 == 0 else life


STARVING_BUGS.plant("no aging", "aging", cycle, "promise_places", loses="a large pod's turn, for ever")(always(None))
"""Found by the schedule in which a large pod would starve."""
BOTH_KEPT = PlantedBug(
    "both reservations kept",
    "capacity, to a pod that needs it once",
    ("I4",),
    ((reservation, "is_earlier", always(False)),),
    _two_on_a_full_fleet,
)
"""Found in few random worlds: two allocators have to see different fleets at the same moment."""
TURN_BUGS.plant("reservation not booked", ("turn", "I1"), changes, "rebook", loses="a promised place")(_not_booked)
TURN_BUGS.plant(
    "reservation started too early", ("I1", "I2"), OrderReconciler, "is_next", loses="a slice still in use"
)(always(True))
TURN_BUGS += [
    PlantedBug(
        "reserved requests leave the queue",
        "a place that is free, to a pod that waits for another",
        ("I4",),
        ((requests, "_may_have_another", always(False)),),
    ),
    PlantedBug(
        "other pods' holders block a revoke",
        "capacity, as long as another pod runs there",
        ("I4",),
        (
            (reconcile, "_was_never_begun", always(False)),
            (destroy, "_was_to_come_later", always(False)),
            (destroy, "_has_home", own_home_only),
        ),
        _shared_for_good,
    ),
]
"""Found in random worlds."""

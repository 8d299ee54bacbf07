"""Bugs about the limits of namespaces, planted on purpose: what is counted, when, and what two allocators do."""

from dataclasses import replace
from typing import Any

from simulation.judges.quotas import QuotaSaid
from simulation.plans.plan import Fault, Plan
from simulation.planted.bug import Bugs, PlantedBug, always

from sluice.contracts.messages import Revoke
from sluice.contracts.quotas.usage import NOTHING
from sluice_allocator.core import allocator, changes
from sluice_allocator.core.quotas import quota
from sluice_allocator.core.request import bind, grant_validity

QUOTA_BUGS = Bugs()


def _limited(plan: Plan) -> Plan:
    """Every seed has tight limits from the beginning; no broker that forgets them, and one allocator."""
    said = (QuotaSaid(0.0, "lab", total=(2, None, None)), QuotaSaid(0.0, "den", total=(1, 20096, None)))
    faults = tuple(each for each in plan.faults if each.kind != "broker wipe" and each.target != "allocator-b")
    return replace(plan, quotas=said, faults=faults, layouts={}, allocators=1, both_active=False)


def _read_anew(plan: Plan) -> Plan:
    plan = _limited(plan)
    more = tuple(Fault(at, "disconnect", "allocator-a", 0.5) for at in (8.0, 16.0, 24.0))
    return replace(plan, faults=tuple(sorted((*plan.faults, *more), key=lambda fault: fault.at)))


def _evicting(plan: Plan) -> Plan:
    """One node, full of pods that may be evicted, and important ones, which stay, of a namespace with one device."""
    plan = _limited(plan)
    (node, gpus), *others = plan.nodes
    without = [each for name, _ in others for each in (name, f"agent-{name}")]
    faults = tuple(fault for fault in plan.faults if fault.target not in without)
    pods = tuple(
        replace(
            life,
            pod=replace(
                life.pod,
                namespace="den" if number % 2 else "lab",
                ask=_with_priority(life.pod.ask, "den" if number % 2 else "lab"),
                preempts=True,
            ),
            removed_at=None,
        )
        for number, life in enumerate(plan.pods)
    )
    said = (QuotaSaid(0.0, "den", total=(1, None, None)),)
    return replace(plan, nodes=((node, gpus),), quotas=said, faults=faults, pods=pods)


@QUOTA_BUGS.plant("usage not counted at start", "quota", allocator, "caught_up", _read_anew)
def _not_counted_at_start(original: Any, ctx: Any, event: Any) -> None:
    """What was there when this process read everything is not counted: only what it grants itself.
    Loses what others of the cluster were promised, to a namespace over its limit."""
    original(ctx, event)
    ctx.cluster.namespace_usage._used.clear()


@QUOTA_BUGS.plant("quota free at revoke", "quota", changes, "rebook", _limited)
def _free_at_revoke(original: Any, ctx: Any, allocation: Any) -> bool:
    """A namespace may have more as soon as something is being taken away from it.
    Loses likewise, for as long as a pod takes to end."""
    before = ctx.facts.ledger.get(allocation)
    booking = ctx.cluster.booking(allocation)
    freed: bool = original(ctx, allocation)
    if isinstance(before, Revoke) and booking is not None and ctx.cluster.booking(allocation) is not None:
        counts = ctx.cluster.usage_of(booking.devices)
        ctx.cluster.namespace_usage.change(booking.namespace, counts, NOTHING)
    return freed


@QUOTA_BUGS.plant("victims of others relax", "quota", quota, "_booked", _evicting)
def _victims_of_others_relax(_original: Any, ctx: Any, _namespace: str, allocations: Any) -> Any:
    """Evicted pods also make room in the quota of the request's namespace (tensor-fusion B7).
    Loses likewise, to any pod that may evict."""
    bookings = (ctx.cluster.booking(each) for each in allocations)
    return (ctx.cluster.usage_of(booking.devices) for booking in bookings if booking is not None)


def _with_priority(ask: Any, namespace: str) -> Any:
    mine = (("sluice.dev/preemptible", "true"),) if namespace == "lab" else (("sluice.dev/priority", "50"),)
    kept = tuple(pair for pair in ask.annotations if pair[0] not in {"sluice.dev/preemptible", "sluice.dev/priority"})
    return replace(ask, annotations=(*kept, *mine))


NOTHING_TAKEN_BACK = PlantedBug(
    "nothing taken back",
    "what others of the cluster were promised, whenever two allocators work",
    ("quota",),
    ((grant_validity, "excess", always(None)),),
)
"""Rare among seeds: `test_quotas` plays it."""


BOUND_ON_WHAT_IS_KNOWN = PlantedBug(
    "bound before all limits are read",
    "a pod that runs, to a limit that ends nothing that runs",
    ("quota", "undisturbed"),
    ((bind, "may_bind", always(True)),),
)
"""Too rare by chance for the dose: it has a schedule of its own in `test_quotas`."""

"""Cordoned nodes and GPUs: whose pods a drain evicts, and what waiting requests show. Evictions follow from cordon,
grants and bindings, so lifting the cordon lifts them. A pod goes through its source, as `kubectl drain` does it
(https://kubernetes.io/docs/tasks/administer-cluster/safely-drain-node/), and stays where that is refused."""

from itertools import islice

from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import Cordoned, Grant
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.placement import NoPlace
from sluice_allocator.core.preemption.eviction_backoff import PreemptionContext
from sluice_allocator.core.state.bus_cache import request_of

NAMED_MAX = 3  # most cordons named in a waiting reason
LOOKED_AT_MAX = 20  # most cordons searched for those that matter to a request, whatever the size of the fleet


def why_drained(ctx: PreemptionContext, grant: Grant) -> str | None:
    """Why the pod of a grant has to leave its node; None when it need not. Only a pod that is bound to this place: a
    slice that is being made is bound within a bounded time, or given up."""
    booking = grant.booking
    cordon = ctx.facts.cordons.get(booking.node)
    if cordon is None or not cordon.drain:
        return None
    if cordon.gpus and not any(device.gpu in cordon.gpus for device in booking.devices):
        return None
    is_there = ctx.facts.bound_to(booking.request) == booking.allocation
    return f"{_what(cordon)} drained{_because(cordon)}" if is_there else None


def look_at_drained(ctx: PreemptionContext, node: NodeName) -> None:
    """A node's cordon changed: look again at its pods, and decide again what is queued, as no guard covers it."""
    ctx.take_back(subjects.ledger_filter(node))
    known = ctx.cluster.nodes.get(node)
    for allocation in known.taken if known is not None else ():
        entry = ctx.facts.ledger.get(allocation)
        if entry is not None:
            ctx.changed_requests[request_of(entry)] = None


def with_cordons(ctx: PreemptionContext, why: NoPlace) -> NoPlace:
    """A waiting reason, with the cordons of GPUs of the models in it."""
    models = {each.of for each in why.reasons if each.reason is WaitReason.NODE_CORDONED}
    if not models:
        return why
    cordons = islice(ctx.facts.cordons.values(), LOOKED_AT_MAX)
    named = [cordon for cordon in cordons if models & _models_of(ctx, cordon)][:NAMED_MAX]
    if not named:
        return why
    words = "; ".join(f"{_what(cordon)} cordoned{_because(cordon)}" for cordon in named)
    return NoPlace(f"{why.message}; {words}", why.reasons, why.more)


def _models_of(ctx: PreemptionContext, cordon: Cordoned) -> set[str]:
    known = ctx.shown.get(cordon.node)
    gpus = known.gpus if known is not None else ()
    return {gpu.model for gpu in gpus if not cordon.gpus or gpu.uuid in cordon.gpus}


def _what(cordon: Cordoned) -> str:
    gpus = len(cordon.gpus)
    some = f"{gpus} GPUs of {cordon.node} are" if gpus > 1 else f"1 GPU of {cordon.node} is"
    return some if gpus else f"{cordon.node} is"


def _because(cordon: Cordoned) -> str:
    return f" ({cordon.why})" if cordon.why else ""

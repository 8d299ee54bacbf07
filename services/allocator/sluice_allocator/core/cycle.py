"""The cycle: what follows from changed facts and from time, once per event.

    1 time        conditions that have lasted, evictions, gangs (ticks only)
    2 nodes       adopted, used, or taken out of use
    3 requests    granted, bound, revoked, released
    4 gangs       what each means for its members: these are requests that changed
    5 queue       what was freed is offered in turn, then new requests are tried
    6 reservations, moves, defragmentation, and nodes asked for (ticks only)

2 to 4 repeat until nothing more follows, and only then comes the queue: no request gets a place before everything that
changed was looked at. One event has a budget; what is left goes on with the next one."""

from sluice_allocator.core.capacity.demand import ask_for_nodes
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.gangs.reconcile import reconcile_gang, time_passed_for_gangs
from sluice_allocator.core.key_index import in_turn
from sluice_allocator.core.moves.defragment import defragment
from sluice_allocator.core.moves.move import move_pods_back
from sluice_allocator.core.node.reconcile import reconcile_node
from sluice_allocator.core.preemption.candidates import look_at_evictions, look_at_victim
from sluice_allocator.core.recheck import recheck
from sluice_allocator.core.request.entries import settle_stray
from sluice_allocator.core.request.reconcile import reconcile_request
from sluice_allocator.core.reservations.reserve import promise_places
from sluice_allocator.core.serve.offers import end_pauses, refresh_pending, serve


def run_cycle(ctx: SchedulerContext, *, ticked: bool) -> None:
    """Reconcile what changed, then serve the queue. Facts are complete, and this process is active."""
    # 1. Time: what has lasted long enough is looked at again.
    if ticked:
        ctx.changed_requests |= dict.fromkeys(in_turn(ctx.node_waits.node_of, ctx.rules.pending_refresh_batch))
        recheck(ctx)
        look_at_evictions(ctx)
        time_passed_for_gangs(ctx)
    # 2. to 4. Nodes, requests and gangs, until nothing more follows.
    if not _reconcile(ctx) or ctx.sparing.look:
        return
    # 5. The queue.
    if ticked:
        end_pauses(ctx)
        refresh_pending(ctx)
    serve(ctx)
    # 6. Places for those who waited long, and moves.
    if ticked:
        promise_places(ctx)
        move_pods_back(ctx)
        defragment(ctx)
        ask_for_nodes(ctx)


def _reconcile(ctx: SchedulerContext) -> bool:
    """Look at what changed, within one event's budget. False when something is left."""
    left = ctx.rules.settle_batch
    while ctx.changed_requests or ctx.changed_nodes or ctx.strays or ctx.gangs.dirty:
        if left <= 0:
            return False
        left -= 1
        if ctx.strays:
            settle_stray(ctx, ctx.strays.popitem(last=False)[0])
        elif ctx.changed_nodes:
            left -= ctx.rules.node_worth - 1
            reconcile_node(ctx, ctx.changed_nodes.popitem(last=False)[0])
        elif ctx.changed_requests:
            reconcile_request(ctx, ctx.changed_requests.popitem(last=False)[0])
        else:
            reconcile_gang(ctx, ctx.gangs.dirty.popitem(last=False)[0])
    return True


def look_at_victims(ctx: SchedulerContext) -> None:
    """Update which pods may be evicted, within one event's budget; also on standby."""
    left = ctx.rules.settle_batch if ctx.facts.settled else 0
    while left > 0 and ctx.sparing.look:
        left -= 1
        look_at_victim(ctx, ctx.sparing.look.popitem(last=False)[0])

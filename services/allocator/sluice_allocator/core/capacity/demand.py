"""Publish how many more nodes of each pool would serve what waits, for its autoscaler. Counted seldom; more are asked
for only when two counts in a row miss them (an agent may be restarting), fewer at once."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import PoolDemand
from sluice_allocator.core.capacity.node_count import Missing, Waiting, count_missing, learned, merged
from sluice_allocator.core.gangs.gang import GangContext
from sluice_allocator.core.placement import NoPlace, alternative_place_requests, place_request_of
from sluice_allocator.core.state.grant_facts import standing_promise


@dataclass(slots=True)
class NodePools:
    """Memory of this process alone: losing it costs one count."""

    due_at: float = float("-inf")
    changed: dict[NodeName, None] = field(default_factory=dict)  # nodes to learn from
    counted: dict[str, int] = field(default_factory=dict)  # the last count, by pool
    pool_of: dict[bytes, str] = field(default_factory=dict)  # the pool that would serve waiting requests of a shape


@dataclass(eq=False)
class CapacityContext(GangContext):
    """With what the counting of missing nodes remembers."""

    node_pools: NodePools = field(default_factory=NodePools)


POOLS_MAX = 32  # pools remembered; nodes of further ones are not learned from
SHAPES_MAX = 64  # most different needs looked at in one count, in the order of the queue
LEARNED_MAX = 100  # most nodes learned from at once


def ask_for_nodes(ctx: CapacityContext) -> None:
    """Time passed: count again, if that is due."""
    state, rules = ctx.node_pools, ctx.rules
    if ctx.now < state.due_at:
        return
    state.due_at = ctx.now + rules.nodes_asked_every_s
    pools = _known(ctx)
    if rules.nodes_asked_max:
        _learn(ctx, pools)
    found = Missing()
    if rules.nodes_asked_max and pools and ctx.queue:
        found = count_missing(ctx.cluster, pools, _waiting(ctx), nodes_max=rules.nodes_asked_max)
    state.pool_of = found.pool_of
    for name, demand in pools.items():
        counted = found.nodes.get(name, 0)
        missing = max(min(counted, demand.missing), min(counted, state.counted.get(name, 0)))
        state.counted[name] = counted
        if missing != demand.missing or demand != published(ctx, name):
            ctx.outbox.keep(subjects.pool(name), replace(demand, missing=missing))


def with_nodes_asked_for(ctx: CapacityContext, request: RequestId, why: NoPlace) -> NoPlace:
    """Why a request waits, and the nodes that are asked for because of requests like it."""
    if not ctx.node_pools.pool_of:
        return why
    pool = ctx.node_pools.pool_of.get(ctx.queue.pending_shape(request).shape) if request in ctx.queue else None
    demand = published(ctx, pool) if pool is not None else None
    if demand is None or not demand.missing:
        return why
    nodes = "1 more node" if demand.missing == 1 else f"{demand.missing} more nodes"
    return NoPlace(f"{why.message}. Asked the autoscaler for {nodes} of pool {demand.pool}", why.reasons)


def published(ctx: CapacityContext, pool: str) -> PoolDemand | None:
    """What is known of a pool: as this process has it published, or as the bus has it."""
    kept = ctx.outbox.kept(subjects.pool(pool))
    return kept if isinstance(kept, PoolDemand) else ctx.facts.pools.get(pool)


def _known(ctx: CapacityContext) -> dict[str, PoolDemand]:
    found = {each.pool: each for each in ctx.rules.node_pools}
    for name in (*ctx.facts.pools, *ctx.node_pools.counted):
        demand = published(ctx, name)
        if demand is not None:
            found[name] = replace(found[name], missing=demand.missing) if name in found else demand
    return found


def _learn(ctx: CapacityContext, pools: dict[str, PoolDemand]) -> None:
    written = {tuple(sorted(each.selector.items())) for each in ctx.rules.node_pools}
    changed = ctx.node_pools.changed
    for node in list(islice(changed, LEARNED_MAX)):
        del changed[node]
        seen = _pool_of(ctx, node)
        if seen is None or tuple(sorted(seen.selector.items())) in written:
            continue
        known = pools.get(seen.pool)
        if known is not None:
            pools[seen.pool] = merged(known, seen)
        elif len(pools) < POOLS_MAX:
            pools[seen.pool] = seen


def _pool_of(ctx: CapacityContext, node: NodeName) -> PoolDemand | None:
    inventory, facts = ctx.facts.inventories.get(node), ctx.facts.hosts.get(node)
    if inventory is None or facts is None or inventory.stale or inventory.removed or facts.is_of_no_object:
        return None
    return learned(inventory.snapshot, facts)


def _waiting(ctx: CapacityContext) -> Iterator[Waiting]:
    """What waits for a place that no node has (not for a limit, nor for pods to end). A gang counts whole."""
    turn = None
    for _ in range(SHAPES_MAX):
        turn = ctx.queue.head_after(turn)
        if turn is None:
            return
        request = turn[2]
        pending, asked = ctx.queue.pending_shape(request), ctx.facts.wanted(request)
        if asked is None or standing_promise(ctx, request) is not None:
            continue
        if ctx.gangs.leads(request):
            yield from _members(ctx, request, pending.shape)
        elif pending.why is not None:
            count = pending.members.before(pending.members.last()) + 1
            yield Waiting(pending.shape, place_request_of(asked), count, tuple(alternative_place_requests(asked)))


def _members(ctx: CapacityContext, leader: RequestId, shape: bytes) -> Iterator[Waiting]:
    party = ctx.gangs.party_of(leader)
    for member in party.members if party is not None else ():
        asked = ctx.facts.wanted(member)
        if asked is not None:
            yield Waiting(shape, place_request_of(asked), 1, tuple(alternative_place_requests(asked)))

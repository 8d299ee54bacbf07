"""The allocator's metrics of requests, queue and nodes. Computed from the core's facts on each scrape: about 20 ms for
100,000 requests, during which no decision is made. Several allocators show the same facts; only the active one knows
the queue."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from sluice.contracts.messages import AllocationRequested, Bound, Grant, Pending, Refused, RequestRejected, Revoke
from sluice.runtime.prometheus.metrics import SECONDS, Metric, Sample
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.state.bus_cache import BusCache
from sluice_allocator.shell.demand import pending_devices

REQUESTS = Metric(
    "sluice_requests",
    "gauge",
    "Requests by state: asked, bound, refused (no hardware can serve it), rejected (malformed), waiting.",
    ("state",),
)
WAITING = Metric("sluice_requests_waiting", "gauge", "Waiting requests by their first reason.", ("reason",))
QUEUE = Metric("sluice_queue_requests", "gauge", "Requests in the queue by mode and profile.", ("mode", "profile"))
QUEUE_OUTSIDE = Metric(
    "sluice_queue_outside", "gauge", "Requests outside the full queue (SLUICE_ALLOCATOR_WAITING_MAX).", ()
)
QUEUE_WAIT = Metric(
    "sluice_queue_first_waits_seconds",
    "gauge",
    "Waiting time of the first request in its turn, by mode and profile, in this process.",
    ("mode", "profile"),
)
NODES = Metric(
    "sluice_nodes",
    "gauge",
    "Nodes by state: open (used), unopened (not adopted yet), stale (no answer from its agent), removed, "
    "cordoned. A node may have several.",
    ("state",),
)
SLICES = Metric("sluice_slices", "gauge", "Slices by the state that agents reported last.", ("state",))
GRANTS = Metric("sluice_ledger_entries", "gauge", "Ledger entries by kind: Grant, Revoke, Closed.", ("kind",))
WORKS = Metric(
    "sluice_allocator_works",
    "gauge",
    "1 while this process decides, 0 on standby. Two at once do no harm: writes are guarded.",
    (),
)
STREAMS_KNOWN = Metric(
    "sluice_allocator_settled", "gauge", "1 once both streams are read to their end; nothing is decided before.", ()
)

PENDING_DEVICES = Metric(
    "sluice_pending_devices",
    "gauge",
    "Devices that queued requests wait for, by model and profile that would serve (any: several would; whole: "
    "whole GPUs; share: shares). For autoscalers.",
    ("model", "profile"),
)
LEAKED = Metric(
    "sluice_leaked_slices",
    "gauge",
    "Slices that agents report and the ledger does not know, on nodes that answer. Above 0 only for moments.",
    (),
)
DECISIONS = Metric(
    "sluice_decisions_total",
    "counter",
    "Decisions by outcome (granted, promised, waits, refused, revoked, evicted) and first reason.",
    ("outcome", "reason"),
)
PHASE_SECONDS = Metric(
    "sluice_request_phase_seconds",
    "histogram",
    "Duration of a request's phases: place (asked to granted), make (to ready), bind (to bound), serve (their "
    "sum); revoke, unmake, release, give_back (their sum).",
    ("phase",),
    (*SECONDS, 300.0, 1000.0, 3000.0, 10_000.0),
)


class AllocatorMetrics:
    """What one allocator knows, as samples."""

    def __init__(self, core: Allocator) -> None:
        self._core = core

    def now(self) -> Iterator[Sample]:
        """For `sluice.runtime.prometheus.metrics.collecting_from`."""
        world = self._core.ctx.facts
        requests, bindings = _types(world.requests), _types(world.bindings)
        yield Sample(REQUESTS, requests[AllocationRequested], ("asked",))
        yield Sample(REQUESTS, requests[RequestRejected], ("rejected",))
        yield Sample(REQUESTS, bindings[Bound], ("bound",))
        yield Sample(REQUESTS, bindings[Refused], ("refused",))
        yield Sample(REQUESTS, len(world.waiting), ("waiting",))
        for reason, count in Counter(map(_reason_of, world.waiting.values())).items():
            yield Sample(WAITING, count, (reason,))
        for kind, count in _types(world.ledger).items():
            yield Sample(GRANTS, count, (kind.__name__,))
        for kind, count in _types(world.slices).items():
            yield Sample(SLICES, count, (kind.__name__.removeprefix("Slice").lower(),))
        yield Sample(STREAMS_KNOWN, world.settled)
        yield Sample(WORKS, not self._core.ctx.outbox.paused)
        yield Sample(LEAKED, leaked_slices(world))
        yield from self._nodes()
        yield from self._queue()
        for labels, count in pending_devices(self._core.ctx).items():
            yield Sample(PENDING_DEVICES, count, labels)

    def _nodes(self) -> Iterator[Sample]:
        world, unopened = self._core.ctx.facts, self._core.ctx.unopened
        known = [inventory for inventory in world.inventories.values() if not inventory.removed]
        stale = sum(inventory.stale for inventory in known)
        closed = sum(inventory.snapshot.node in unopened for inventory in known if not inventory.stale)
        yield Sample(NODES, len(known) - stale - closed, ("open",))
        yield Sample(NODES, closed, ("unopened",))
        yield Sample(NODES, stale, ("stale",))
        yield Sample(NODES, len(world.removed), ("removed",))
        yield Sample(NODES, len(world.cordons), ("cordoned",))

    def _queue(self) -> Iterator[Sample]:
        ctx = self._core.ctx
        waits: dict[tuple[str, str], float] = {}
        for group in ctx.queue.shapes.values():
            _, _, first = group.members.first()
            asked = ctx.facts.requests.get(first)
            if not isinstance(asked, AllocationRequested):
                continue  # withdrawn, about to leave
            labels = _asked_for(asked)
            yield Sample(QUEUE, group.members.before(group.members.last()) + 1, labels)
            attempt = ctx.backoff.of_request.get(first)
            since = attempt.since_when if attempt is not None else None
            waits[labels] = max(waits.get(labels, 0.0), ctx.now - since if since is not None else 0.0)
        for labels, wait_s in waits.items():
            yield Sample(QUEUE_WAIT, wait_s, labels)
        yield Sample(QUEUE_OUTSIDE, len(ctx.queue.outside))


_OPEN = frozenset({Grant, Revoke})  # ledger entries under which an agent may have a slice


def leaked_slices(world: BusCache) -> int:
    """Slices of the pulled nodes without a ledger entry. Nodes that do not answer count none."""
    ledger, inventories = world.ledger, world.inventories
    unknown = [
        node
        for of_request in world.reported_of.values()
        for allocation, node in of_request.items()
        if type(ledger.get(allocation)) not in _OPEN
    ]
    return sum(node in inventories and not inventories[node].stale for node in unknown)


def _types(facts: Mapping[Any, object]) -> Counter[type]:
    return Counter(map(type, facts.values()))


def _reason_of(pending: Pending) -> str:
    return str(pending.reasons[0].reason) if pending.reasons else "none"


def _asked_for(asked: AllocationRequested) -> tuple[str, str]:
    """Mode and profile of the first container that asks; combinations of all would be too many."""
    first = asked.claims[0]
    return "/".join(first.modes), first.profile or "any"

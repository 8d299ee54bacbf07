"""The allocator's metrics of requests, queue and nodes. Computed from the core's facts on each scrape: about 20 ms for
100,000 requests, during which no decision is made. Several allocators show the same facts; only the active one knows
the queue."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from sluice.contracts import messages as msg
from sluice.contracts.request_syntax.device_limit import devices_of
from sluice.mig.catalog import catalog
from sluice.mig.model import GpuModel
from sluice.mig.model_names import is_meant
from sluice.runtime.prometheus.metrics import SECONDS, Metric, Sample
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.state.bus_cache import BusCache

ANY = "any"
WHOLE = "whole"
SHARE = "share"


def pending_devices(ctx: SchedulerContext) -> Counter[tuple[str, str]]:
    """Devices of all requests inside the queue, by model and profile. Costs a walk over shapes, not over requests."""
    found: Counter[tuple[str, str]] = Counter()
    for group in ctx.queue.shapes.values():
        asked = ctx.facts.wanted(group.members.first()[2])
        if asked is None:
            continue  # withdrawn, about to leave
        members = group.members.before(group.members.last()) + 1
        for claim in asked.claims:
            found[_labels(claim)] += members * devices_of(claim)
    return found


@lru_cache(maxsize=1024)
def _labels(claim: msg.Claim) -> tuple[str, str]:
    models = [model for model in catalog() if _admits(claim, model)]
    known = {profile.name for model in models for profile in model.profiles}
    return models[0].key if len(models) == 1 else ANY, _profile_of(claim, known)


def _profile_of(claim: msg.Claim, known: set[str]) -> str:
    if claim.profile is not None:
        return claim.profile if claim.profile in known else ANY
    if "exclusive" not in claim.modes or claim.shares_percent is not None:
        return SHARE
    sizes = (claim.sm_count, claim.sm_percentage, claim.memory_mib, claim.memory_percentage, claim.sm_partition)
    return WHOLE if all(size is None for size in sizes) else ANY


def _admits(claim: msg.Claim, model: GpuModel) -> bool:
    def is_named(parts: tuple[str, ...]) -> bool:
        return any(is_meant(name, part) for part in parts for name in model.product_names)

    has_profile = claim.profile is None or model.profile(claim.profile) is not None
    only = claim.only
    return has_profile and not is_named(only.not_models) and (not only.models or is_named(only.models))


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, "gauge", text, labels)


REQUESTS = _gauge(
    "sluice_requests",
    "Requests by state: asked, bound, refused (no hardware can serve it), rejected (malformed), waiting.",
    "state",
)
WAITING = _gauge("sluice_requests_waiting", "Waiting requests by their first reason.", "reason")
QUEUE = _gauge("sluice_queue_requests", "Requests in the queue by mode and profile.", "mode", "profile")
QUEUE_OUTSIDE = _gauge("sluice_queue_outside", "Requests outside the full queue (SLUICE_ALLOCATOR_WAITING_MAX).")
QUEUE_WAIT = _gauge(
    "sluice_queue_first_waits_seconds",
    "Waiting time of the first request in its turn, by mode and profile, in this process.",
    "mode",
    "profile",
)
NODES = _gauge(
    "sluice_nodes",
    "Nodes by state: open (used), unopened (not adopted yet), stale (no answer from its agent), removed, "
    "cordoned. A node may have several.",
    "state",
)
SLICES = _gauge("sluice_slices", "Slices by the state that agents reported last.", "state")
GRANTS = _gauge("sluice_ledger_entries", "Ledger entries by kind: Grant, Revoke, Closed.", "kind")
WORKS = _gauge(
    "sluice_allocator_works", "1 while this process decides, 0 on standby. Two at once do no harm: writes are guarded."
)
STREAMS_KNOWN = _gauge(
    "sluice_allocator_settled", "1 once both streams are read to their end; nothing is decided before."
)

PENDING_DEVICES = _gauge(
    "sluice_pending_devices",
    "Devices that queued requests wait for, by model and profile that would serve (any: several would; whole: "
    "whole GPUs; share: shares). For autoscalers.",
    "model",
    "profile",
)
LEAKED = _gauge(
    "sluice_leaked_slices",
    "Slices that agents report and the ledger does not know, on nodes that answer. Above 0 only for moments.",
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
        facts = self._core.ctx.facts
        requests, bindings = _types(facts.requests), _types(facts.bindings)
        yield Sample(REQUESTS, requests[msg.AllocationRequested], ("asked",))
        yield Sample(REQUESTS, requests[msg.RequestRejected], ("rejected",))
        yield Sample(REQUESTS, bindings[msg.Bound], ("bound",))
        yield Sample(REQUESTS, bindings[msg.Refused], ("refused",))
        yield Sample(REQUESTS, len(facts.waiting), ("waiting",))
        firsts = (str(each.reasons[0].reason) if each.reasons else "none" for each in facts.waiting.values())
        for reason, count in Counter(firsts).items():
            yield Sample(WAITING, count, (reason,))
        for kind, count in _types(facts.ledger).items():
            yield Sample(GRANTS, count, (kind.__name__,))
        for kind, count in _types(facts.slices).items():
            yield Sample(SLICES, count, (kind.__name__.removeprefix("Slice").lower(),))
        yield Sample(STREAMS_KNOWN, facts.settled)
        yield Sample(WORKS, not self._core.ctx.outbox.paused)
        yield Sample(LEAKED, leaked_slices(facts))
        yield from self._nodes()
        yield from self._queue()
        for labels, count in pending_devices(self._core.ctx).items():
            yield Sample(PENDING_DEVICES, count, labels)

    def _nodes(self) -> Iterator[Sample]:
        facts, unopened = self._core.ctx.facts, self._core.ctx.unopened
        known = [inventory for inventory in facts.inventories.values() if not inventory.removed]
        stale = sum(inventory.stale for inventory in known)
        closed = sum(inventory.snapshot.node in unopened for inventory in known if not inventory.stale)
        yield Sample(NODES, len(known) - stale - closed, ("open",))
        yield Sample(NODES, closed, ("unopened",))
        yield Sample(NODES, stale, ("stale",))
        yield Sample(NODES, len(facts.removed), ("removed",))
        yield Sample(NODES, len(facts.cordons), ("cordoned",))

    def _queue(self) -> Iterator[Sample]:
        ctx = self._core.ctx
        waits: dict[tuple[str, str], float] = {}
        for group in ctx.queue.shapes.values():
            _, _, first = group.members.first()
            asked = ctx.facts.wanted(first)
            if asked is None:
                continue  # withdrawn, about to leave
            claim = asked.claims[0]  # combinations of all would be too many
            labels = "/".join(claim.modes), claim.profile or "any"
            yield Sample(QUEUE, group.members.before(group.members.last()) + 1, labels)
            attempt = ctx.backoff.of_request.get(first)
            since = attempt.since_when if attempt is not None else None
            waits[labels] = max(waits.get(labels, 0.0), ctx.now - since if since is not None else 0.0)
        for labels, wait_s in waits.items():
            yield Sample(QUEUE_WAIT, wait_s, labels)
        yield Sample(QUEUE_OUTSIDE, len(ctx.queue.outside))


_OPEN = frozenset({msg.Grant, msg.Revoke})  # ledger entries under which an agent may have a slice


def leaked_slices(facts: BusCache) -> int:
    """Slices of the pulled nodes without a ledger entry. Nodes that do not answer count none."""
    ledger, inventories = facts.ledger, facts.inventories
    reported = (each for of_request in facts.reported_of.values() for each in of_request.items())
    unknown = [node for allocation, node in reported if type(ledger.get(allocation)) not in _OPEN]
    return sum(node in inventories and not inventories[node].stale for node in unknown)


def _types(facts: Mapping[Any, object]) -> Counter[type]:
    return Counter(map(type, facts.values()))

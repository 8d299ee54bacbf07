"""Answers to questions: what would become of a pod if it asked now, and the status of a request. Computed between two
events of the core, from the facts and with the search that real requests use. Nothing is queued or written, and what is
booked to try one pod beside another is unbooked before the answer, so a question leaves no trace."""

from collections.abc import Generator, Mapping, Sequence
from enum import Enum

import msgspec
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.ids import NodeName, RequestId, SourceName
from sluice.contracts.pod_specs import with_node
from sluice.contracts.reasons import ReasonCount, Refusal, WaitReason
from sluice.contracts.request_syntax import ContainerRequest, RequestLimits, parse_pod
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.gangs.reconcile import why_gang_waits, why_not_begun
from sluice_allocator.core.moves.defragment import Proposal, propose
from sluice_allocator.core.moves.move import about_moving
from sluice_allocator.core.placement import Place, PlaceRequest, Victim, explain, find_place, place_request_of, refuse
from sluice_allocator.core.placement.explain.left_over import LeftOver, left_over
from sluice_allocator.core.placement.explain.reason_table import ReasonsByFilter, reasons_by_filter
from sluice_allocator.core.placement.search.trial_pods import TrialPods
from sluice_allocator.core.preemption.candidates import find_victims
from sluice_allocator.core.preemption.drain import with_cordons
from sluice_allocator.core.quotas.alternatives import nor_other
from sluice_allocator.core.quotas.quota import why_waits
from sluice_allocator.core.reservations.reservation import for_whom_it_waits, with_promises
from sluice_allocator.core.resize.resize import about_adjusting
from sluice_allocator.core.state.grant_facts import DeviceAmount, device_amount

ABOUT_ALL = frozenset({WaitReason.NO_NODE_CAN_FIT, WaitReason.TOO_FEW_GPUS_ON_NODE})  # true only if no place was found


class PodAsked(msgspec.Struct, frozen=True):
    """A pod as written. Containers in their order."""

    namespace: str
    annotations: dict[str, str]
    containers: tuple[ContainerRequest, ...]
    host: msg.HostNeeds = msg.NO_NEEDS
    priority: int = 0  # of its spec: it counts where no annotation names one
    preempts: bool = True
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    same_gpu: tuple[tuple[str, ...], ...] = ()  # as in `Asking`
    by_claim: bool = False


class WouldEvict(msgspec.Struct, frozen=True):
    """A pod that would have to go. `memory_mib` is of all its devices."""

    namespace: str
    name: str
    priority: int
    memory_mib: int


class WouldBind(msgspec.Struct, frozen=True):
    """A place that fits now, what is left on its GPUs (unless pods are evicted first), and why others do not."""

    node: NodeName
    devices: tuple[DeviceAmount, ...]
    left: tuple[LeftOver, ...]
    others: tuple[ReasonsByFilter, ...]
    more: int  # reasons that `others` does not list
    evicts: tuple[WouldEvict, ...] = ()  # the pods that are evicted first if no place is free, least important first
    instead_of: str = ""  # the requested profiles, where larger ones would serve


class WouldWait(msgspec.Struct, frozen=True):
    """No place fits now: the first reason in a sentence, and all of them by filter."""

    message: str
    steps: tuple[ReasonsByFilter, ...]
    more: int  # reasons that `steps` does not list


class AsksNothing(msgspec.Struct, frozen=True):
    """The pod has no key of Sluice."""


Simulated = WouldBind | WouldWait | Refusal | AsksNothing


def simulate(ctx: SchedulerContext, pod: PodAsked) -> tuple[Simulated, tuple[Place, PlaceRequest] | None]:
    """The answer, and the place that is free for it."""
    ask = parse_pod(pod.annotations, pod.containers, limits=RequestLimits(ctx.rules.max_gpus_per_node))
    if isinstance(ask, Refusal):
        return ask, None
    if not ask.claims:
        return AsksNothing(), None
    host = with_node(pod.host, ask.node_name, "fastgshare/node_name")
    if isinstance(host, Refusal):
        return host, None
    substitute = ask.leeway.substitute != "no"
    sources = ctx.facts.sources  # with several, its terms match no pods
    source = next(iter(sources)) if len(sources) == 1 else SourceName("")
    asking = PlaceRequest(
        ask.claims,
        pod.namespace,
        host,
        ask.node_policy,
        ask.gpu_policy,
        substitute,
        labels=dict(pod.labels),
        source=source,
        by_claim=pod.by_claim,
        same_gpu=pod.same_gpu,
    )
    refusal = refuse(ctx.cluster.rules, asking, max_gpus_per_node=ctx.rules.max_gpus_per_node)
    if refusal is not None:
        return refusal, None
    limited = why_waits(ctx, None, asking)
    found = limited or find_place(ctx.cluster, asking)
    if not isinstance(found, Place):
        at_limit = limited is not None
        priority = ctx.priority_of(pod.namespace, ask.priority if ask.priority is not None else pod.priority)
        may_evict = pod.preempts and ask.group is None
        displacing = find_victims(ctx, None, asking, priority, at_limit=at_limit) if may_evict else None
        if displacing is None:
            return WouldWait(found.message, reasons_by_filter(found.reasons), found.more), None
        devices = _given(ctx, displacing.place.devices)
        evicts = tuple(_evicted(ctx, victim) for victim in displacing.victims)
        others = reasons_by_filter(found.reasons)
        return WouldBind(displacing.place.node, devices, (), others, found.more, evicts), None
    elsewhere = explain(ctx.cluster, asking)
    others = reasons_by_filter(each for each in elsewhere.reasons if each.reason not in ABOUT_ALL)
    left = left_over(ctx.cluster, found.devices)
    devices, instead_of = _given(ctx, found.devices), found.instead_of
    return WouldBind(found.node, devices, left, others, elsewhere.more, instead_of=instead_of), (found, asking)


def simulate_together(ctx: SchedulerContext, pods: Sequence[PodAsked]) -> Generator[Simulated]:
    """Each beside those before it that would be bound; one that would evict others takes nothing from the next. Until
    it is closed those are booked: meanwhile no event may be handled, and no other question answered."""
    answer: Simulated = AsksNothing()
    refused: PodAsked | None = None
    with TrialPods(ctx.cluster.peers) as trial:
        try:
            for pod in pods:
                if pod != refused:  # otherwise nothing was taken since
                    answer, place = simulate(ctx, pod)
                    refused = pod if place is None else None
                    if place is not None:
                        trial.book(ctx.cluster, *place)
                yield answer
        finally:
            trial.unbook(ctx.cluster)


def _evicted(ctx: SchedulerContext, victim: Victim) -> WouldEvict:
    booking = ctx.cluster.booking(victim.allocation)
    name = booking.name if booking is not None else victim.allocation
    return WouldEvict(victim.namespace, name, victim.priority, victim.memory_mib)


def _given(ctx: SchedulerContext, devices: Sequence[msg.DeviceGrant]) -> tuple[DeviceAmount, ...]:
    gpus = ctx.cluster.gpus
    return tuple(device_amount(device, gpus[device.gpu].model) for device in devices if device.gpu in gpus)


class RequestState(Enum):
    """The status of a request."""

    QUEUED = "queued"
    HELD = "held"
    COMMITTING = "committing"
    GRANTED = "granted"
    BOUND = "bound"
    REFUSED = "refused"
    ENDING = "ending"
    RELEASED = "released"
    REJECTED = "rejected"
    SEEN = "seen"


class QueuePosition(msgspec.Struct, frozen=True):
    """A position in the queue: `before` counts the requests of the same shape that are tried first, `ahead` all."""

    priority: int
    before: int
    waiting: int
    ahead: int = 0


def _turn(ctx: SchedulerContext, asked: msg.AllocationRequested, request: RequestId) -> QueuePosition:
    priority = ctx.priority_of(asked.namespace, asked.priority)
    return QueuePosition(priority, ctx.queue.before(request), len(ctx.queue), ctx.queue.ahead(request))


class RequestStatus(msgspec.Struct, frozen=True):
    """A request's status, in a sentence and with its details."""

    state: RequestState
    message: str
    revision: int = 0
    node: str = ""
    allocation: str = ""
    devices: tuple[DeviceAmount, ...] = ()
    turn: QueuePosition | None = None
    steps: tuple[ReasonsByFilter, ...] = ()
    more: int = 0  # reasons that `steps` does not list
    refusal: Refusal | None = None
    plan: Proposal | None = None  # while it is queued: which pods could be moved so that it fits


def how_it_stands(ctx: SchedulerContext, request: RequestId) -> RequestStatus | None:
    """A request's current status; None when the request is unknown."""
    asked = ctx.facts.requests.get(request)
    binding = ctx.facts.bindings.get(request)
    booked = [entry for entry in ctx.facts.entries_of(request).values() if not isinstance(entry, msg.Closed)]
    wanted, revision = ctx.facts.wanted(request), asked.revision if asked is not None else 0
    chosen = ctx.cluster.booking(ctx.committing[request]) if request in ctx.committing else None
    if chosen is not None:
        return _standing(ctx, RequestState.COMMITTING, "a place is chosen; it is being written to the ledger", chosen)
    if isinstance(binding, msg.Refused) and (wanted is None or binding.request_revision >= revision):
        message = f"refused: {binding.refusal.sentence()}"
        return RequestStatus(RequestState.REFUSED, message, binding.request_revision, refusal=binding.refusal)
    if isinstance(asked, msg.RequestRejected) and not booked:
        message = f"its source cannot parse it: {asked.refusal.sentence()}"
        return RequestStatus(RequestState.REJECTED, message, revision, refusal=asked.refusal)
    if isinstance(binding, msg.Bound) and wanted is not None:
        return _bound(ctx, binding)
    if booked:
        entry = next((each for each in booked if isinstance(each, msg.Grant)), booked[0])
        if wanted is not None and isinstance(entry, msg.Grant):
            waits = for_whom_it_waits(ctx, entry) or why_not_begun(ctx, request)
            waits = waits or "has a place; its slice is being created"
            turn = _turn(ctx, wanted, request) if request in ctx.queue else None
            waits += "; it takes any other place that is free earlier" if turn else ""
            return replace(_standing(ctx, RequestState.GRANTED, waits, entry.booking), turn=turn)
        why = f"its slice is being revoked: {entry.cause}" if isinstance(entry, msg.Revoke) else "no longer requested"
        return _standing(ctx, RequestState.ENDING, why, entry.booking)
    if wanted is not None:
        return _without_place(ctx, request, wanted)
    if isinstance(binding, msg.Released):
        return RequestStatus(RequestState.RELEASED, f"released: {binding.cause}")
    if asked is not None or binding is not None:
        message = "no longer requested; its release is being published"
        return RequestStatus(RequestState.ENDING, message, revision)
    return None


def _standing(ctx: SchedulerContext, state: RequestState, message: str, booking: msg.Booking) -> RequestStatus:
    there = (booking.node, booking.allocation, _given(ctx, booking.devices))
    return RequestStatus(state, message, booking.request_revision, *there)


def _bound(ctx: SchedulerContext, binding: msg.Bound) -> RequestStatus:
    entry = ctx.facts.ledger.get(binding.allocation)
    devices = entry.booking.devices if isinstance(entry, msg.Grant | msg.Revoke) else ()
    more = about_adjusting(ctx, binding.allocation) + about_moving(ctx, binding.allocation)
    message, revision = f"is bound on {binding.node}{more}", binding.request_revision
    there = (binding.node, binding.allocation, _given(ctx, devices))
    return RequestStatus(RequestState.BOUND, message, revision, *there)


def _without_place(ctx: SchedulerContext, request: RequestId, asked: msg.AllocationRequested) -> RequestStatus:
    together = why_gang_waits(ctx, request)
    if together is not None:
        leader, for_what = together
        is_queued = leader is not None and leader in ctx.queue
        turn = _turn(ctx, asked, leader) if leader and is_queued else None
        return _waiting(asked, for_what.message, for_what.reasons, turn)
    if request in ctx.queue.outside:
        why = ctx.queue.why_outside()
        return _waiting(asked, why.message, why.reasons)
    if request in ctx.queue:
        asking = place_request_of(asked)
        why = why_waits(ctx, request, asking) or with_cordons(ctx, with_promises(ctx, explain(ctx.cluster, asking)))
        why = nor_other(asked, why)
        waiting = _waiting(asked, why.message, why.reasons, _turn(ctx, asked, request))
        return replace(waiting, more=why.more, plan=propose(ctx, request, asked))
    node = ctx.node_waits.node_of.get(request)
    if node is not None:
        message = f"may have a slice on {node}, which is not open yet"
        return RequestStatus(RequestState.HELD, message, asked.revision, node=node)
    return RequestStatus(RequestState.SEEN, "received; it is scheduled next", asked.revision)


def _waiting(
    asked: msg.AllocationRequested, why: str, reasons: Sequence[ReasonCount], turn: QueuePosition | None = None
) -> RequestStatus:
    steps = reasons_by_filter(reasons)
    return RequestStatus(RequestState.QUEUED, f"waits: {why}", asked.revision, turn=turn, steps=steps)

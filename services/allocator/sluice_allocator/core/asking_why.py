"""
Answers to questions: what would become of a pod if it asked now, and the status of a request.

Computed between two events of the core, from the facts and with the search that real requests use. Nothing is booked,
queued or written, so a question leaves no trace.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice

from sluice.contracts.ids import AllocationId, NodeName, RequestId, SourceName
from sluice.contracts.messages import (
    NO_NEEDS,
    AllocationRequested,
    Booking,
    Bound,
    Closed,
    DeviceGrant,
    Grant,
    HostNeeds,
    Refused,
    Released,
    RequestRejected,
    Revoke,
)
from sluice.contracts.pod_specs import with_node
from sluice.contracts.reasons import Refusal, WaitReason
from sluice.contracts.request_syntax import ContainerRequest, RequestLimits, parse_pod
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.evictions.draining import with_cordons
from sluice_allocator.core.evictions.preempting import find_victims
from sluice_allocator.core.given import GivenDevice, given
from sluice_allocator.core.groups.settling import why_group_waits, why_not_begun
from sluice_allocator.core.limits.alternatives import nor_other
from sluice_allocator.core.limits.quotas import why_waits
from sluice_allocator.core.moves.defragmenting import Proposal, propose
from sluice_allocator.core.moves.moving import about_moving
from sluice_allocator.core.placement import Asking, Place, Victim, asking_of, explain, find_place, refuse
from sluice_allocator.core.placement.leftover import LeftOver, left_over
from sluice_allocator.core.sizes.adjusting import about_adjusting
from sluice_allocator.core.steps import Step, steps_of
from sluice_allocator.core.waiting.promised import for_whom_it_waits, with_promises

ABOUT_ALL = frozenset({WaitReason.NO_NODE_CAN_FIT, WaitReason.TOO_FEW_GPUS_ON_NODE})
"""Reasons that hold only when no place was found at all."""


@dataclass(frozen=True, slots=True)
class PodAsked:
    """A pod as written. Containers in their order."""

    namespace: str
    annotations: dict[str, str]
    containers: tuple[ContainerRequest, ...]
    host: HostNeeds = NO_NEEDS
    priority: int = 0
    """Of its spec: it counts where no annotation names one."""
    preempts: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WouldEvict:
    """A pod that would have to go. `memory_mib` is of all its devices."""

    namespace: str
    name: str
    priority: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class WouldBind:
    """
    A place that fits now, what would be left on its GPUs, and why other places do not fit.

    Without what is left if other pods have to be evicted first.
    """

    node: NodeName
    devices: tuple[GivenDevice, ...]
    left: tuple[LeftOver, ...]
    others: tuple[Step, ...]
    more: int
    """Reasons that `others` does not list."""
    evicts: tuple[WouldEvict, ...] = ()
    """The pods that are evicted first if no place is free, the least important first."""
    instead_of: str = ""
    """The requested profiles, where larger ones would serve."""


@dataclass(frozen=True, slots=True)
class WouldWait:
    """No place fits now: the first reason in a sentence, and all of them by filter."""

    message: str
    steps: tuple[Step, ...]
    more: int
    """Reasons that `steps` does not list."""


@dataclass(frozen=True, slots=True)
class AsksNothing:
    """The pod has no key of Sluice."""


Simulated = WouldBind | WouldWait | Refusal | AsksNothing


def _only_source(desk: Desk) -> SourceName:
    """The pod's source, if there is only one; with several, its terms match no pods."""
    found = list(islice(desk.world.sources, 2))
    return found[0] if len(found) == 1 else SourceName("")


def simulate(desk: Desk, pod: PodAsked) -> Simulated:
    """What would become of a single pod if it asked now."""
    ask = parse_pod(pod.annotations, pod.containers, limits=RequestLimits(desk.rules.max_gpus_per_node))
    if isinstance(ask, Refusal):
        return ask
    if not ask.claims:
        return AsksNothing()
    host = with_node(pod.host, ask.node_name, "fastgshare/node_name")
    if isinstance(host, Refusal):
        return host
    substitute = ask.leeway.substitute != "no"
    asking = Asking(
        ask.claims,
        pod.namespace,
        host,
        ask.node_policy,
        ask.gpu_policy,
        substitute,
        labels=dict(pod.labels),
        source=_only_source(desk),
    )
    refusal = refuse(desk.fleet.rules, asking, max_gpus_per_node=desk.rules.max_gpus_per_node)
    if refusal is not None:
        return refusal
    limited = why_waits(desk, None, asking)
    found = limited or find_place(desk.fleet, asking)
    if not isinstance(found, Place):
        at_limit = limited is not None
        priority = desk.priority_of(pod.namespace, ask.priority if ask.priority is not None else pod.priority)
        may_evict = pod.preempts and ask.group is None
        displacing = find_victims(desk, None, asking, priority, at_limit=at_limit) if may_evict else None
        if displacing is None:
            return WouldWait(found.message, steps_of(found.reasons), found.more)
        devices = _given(desk, displacing.place.devices)
        evicts = tuple(_evicted(desk, victim) for victim in displacing.victims)
        return WouldBind(displacing.place.node, devices, (), steps_of(found.reasons), found.more, evicts)
    elsewhere = explain(desk.fleet, asking)
    others = steps_of(each for each in elsewhere.reasons if each.reason not in ABOUT_ALL)
    left = left_over(desk.fleet, found.devices)
    instead_of = found.instead_of
    return WouldBind(found.node, _given(desk, found.devices), left, others, elsewhere.more, instead_of=instead_of)


def _evicted(desk: Desk, victim: Victim) -> WouldEvict:
    booking = desk.fleet.booking(victim.allocation)
    name = booking.name if booking is not None else victim.allocation
    return WouldEvict(victim.namespace, name, victim.priority, victim.memory_mib)


def _given(desk: Desk, devices: Sequence[DeviceGrant]) -> tuple[GivenDevice, ...]:
    """The devices on GPUs that are shown."""
    gpus = desk.fleet.gpus
    return tuple(given(device, gpus[device.gpu].model) for device in devices if device.gpu in gpus)


# -- one request --------------------------------------------------------------------------------------------------


class State(Enum):
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


@dataclass(frozen=True, slots=True)
class Turn:
    """A position in the queue: `before` counts the requests of the same shape that are tried first, `ahead` all."""

    priority: int
    before: int
    waiting: int
    ahead: int = 0


def _turn(desk: Desk, asked: AllocationRequested, request: RequestId) -> Turn:
    """The position of a waiting request, or of the leader that waits for its group."""
    return Turn(
        desk.priority_of(asked.namespace, asked.priority),
        desk.queue.before(request),
        len(desk.queue),
        desk.queue.ahead(request),
    )


@dataclass(frozen=True, slots=True)
class Standing:
    """A request's status, in a sentence and with its details."""

    state: State
    message: str
    revision: int = 0
    node: str = ""
    allocation: str = ""
    devices: tuple[GivenDevice, ...] = ()
    turn: Turn | None = None
    steps: tuple[Step, ...] = ()
    more: int = 0
    """Reasons that `steps` does not list."""
    refusal: Refusal | None = None
    plan: Proposal | None = None
    """While it is queued: which pods could be moved so that it fits."""


def how_it_stands(desk: Desk, request: RequestId) -> Standing | None:
    """A request's current status; None when the request is unknown."""
    asked = desk.world.requests.get(request)
    binding = desk.world.bindings.get(request)
    entries = [desk.world.ledger[allocation] for allocation in desk.world.allocations_of.get(request, ())]
    booked = [entry for entry in entries if not isinstance(entry, Closed)]
    wanted = isinstance(asked, AllocationRequested)
    if request in desk.committing:
        return _committing(desk, request, desk.committing[request])
    if isinstance(binding, Refused) and (not wanted or binding.request_revision >= _revision(asked)):
        message = f"refused: {binding.refusal.sentence()}"
        return Standing(State.REFUSED, message, binding.request_revision, refusal=binding.refusal)
    if isinstance(asked, RequestRejected) and not booked:
        message = f"its source cannot parse it: {asked.refusal.sentence()}"
        return Standing(State.REJECTED, message, asked.revision, refusal=asked.refusal)
    if isinstance(binding, Bound) and wanted:
        return _bound(desk, binding)
    if booked:
        entry = next((each for each in booked if isinstance(each, Grant)), booked[0])
        if isinstance(asked, AllocationRequested) and isinstance(entry, Grant):
            waits = for_whom_it_waits(desk, entry) or why_not_begun(desk, request)
            waits = waits or "has a place; its slice is being created"
            standing = _standing(desk, State.GRANTED, waits, entry.booking)
            return _promised(desk, request, asked, standing) if request in desk.queue else standing
        why = f"its slice is being revoked: {entry.cause}" if isinstance(entry, Revoke) else "no longer requested"
        return _standing(desk, State.ENDING, why, entry.booking)
    if wanted and isinstance(asked, AllocationRequested):
        return _without_place(desk, request, asked)
    if isinstance(binding, Released):
        return Standing(State.RELEASED, f"released: {binding.cause}")
    if asked is not None or binding is not None:
        return Standing(State.ENDING, "no longer requested; its release is being published", _revision(asked))
    return None


def _revision(asked: object) -> int:
    revision = getattr(asked, "revision", 0)
    return revision if isinstance(revision, int) else 0


def _committing(desk: Desk, request: RequestId, allocation: AllocationId) -> Standing:
    message = "a place is chosen; it is being written to the ledger"
    for unsent in desk.undecided.values():
        grant = unsent.message
        if isinstance(grant, Grant) and grant.booking.allocation == allocation:
            return _standing(desk, State.COMMITTING, message, grant.booking)
    return Standing(State.COMMITTING, message, _revision(desk.world.requests.get(request)), allocation=allocation)


def _standing(desk: Desk, state: State, message: str, booking: Booking) -> Standing:
    return Standing(
        state,
        message,
        booking.request_revision,
        node=booking.node,
        allocation=booking.allocation,
        devices=_given(desk, booking.devices),
    )


def _promised(desk: Desk, request: RequestId, asked: AllocationRequested, standing: Standing) -> Standing:
    """A request with a reservation keeps its turn."""
    message = f"{standing.message}; it takes any other place that is free earlier"
    turn = _turn(desk, asked, request)
    return replace(standing, message=message, turn=turn)


def _bound(desk: Desk, binding: Bound) -> Standing:
    entry = desk.world.ledger.get(binding.allocation)
    devices = entry.booking.devices if isinstance(entry, Grant | Revoke) else ()
    more = about_adjusting(desk, binding.allocation) + about_moving(desk, binding.allocation)
    return Standing(
        State.BOUND,
        f"is bound on {binding.node}{more}",
        binding.request_revision,
        node=binding.node,
        allocation=binding.allocation,
        devices=_given(desk, devices),
    )


def _without_place(desk: Desk, request: RequestId, asked: AllocationRequested) -> Standing:
    together = why_group_waits(desk, request)
    if together is not None:
        leader, for_what = together
        is_queued = leader is not None and leader in desk.queue
        turn = _turn(desk, asked, leader) if leader and is_queued else None
        message, steps = f"waits: {for_what.message}", steps_of(for_what.reasons)
        return Standing(State.QUEUED, message, asked.revision, turn=turn, steps=steps)
    if request in desk.queue.outside:
        why = desk.queue.why_outside()
        return Standing(State.QUEUED, f"waits: {why.message}", asked.revision, steps=steps_of(why.reasons))
    if request in desk.queue:
        asking = asking_of(asked)
        why = why_waits(desk, request, asking) or with_cordons(desk, with_promises(desk, explain(desk.fleet, asking)))
        why = nor_other(asked, why)
        return Standing(
            State.QUEUED,
            f"waits: {why.message}",
            asked.revision,
            turn=_turn(desk, asked, request),
            steps=steps_of(why.reasons),
            more=why.more,
            plan=propose(desk, request, asked),
        )
    node = desk.opening.holds.get(request)
    if node is not None:
        message = f"may have a slice on {node}, which is not open yet"
        return Standing(State.HELD, message, asked.revision, node=node)
    return Standing(State.SEEN, "received; it is scheduled next", asked.revision)

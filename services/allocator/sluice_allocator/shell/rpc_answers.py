"""Converts the core's answers to their gRPC form."""

from collections.abc import Iterable

from msgspec.structs import asdict

from sluice.contracts.ids import RequestId, RunId
from sluice.contracts.messages import (
    HostNeeds,
    HostPort,
    HostRoom,
    NodeExpression,
    PodTerm,
    Share,
    SpreadTerm,
    Toleration,
)
from sluice.contracts.pb import allocator_pb2 as pb
from sluice.contracts.proto.bookings import MODES, share_to_proto
from sluice.contracts.reasons import Refusal, shorten
from sluice.contracts.request_syntax import ContainerRequest
from sluice_allocator.core.explain.status import AsksNothing, PodAsked, RequestStatus, Simulated, WouldBind, WouldWait
from sluice_allocator.core.moves.defragment import Emptied, Moved, Proposal
from sluice_allocator.core.placement.explain.left_over import LeftOver
from sluice_allocator.core.placement.explain.reason_table import ReasonsByFilter
from sluice_allocator.core.resize.pending import FIELDS, AdjustRefused, Change, Effect, Outcome
from sluice_allocator.core.state.grant_facts import DeviceAmount

CONTAINERS_MAX = 1000  # most containers of one pod; an API server takes no object with more


class QuestionError(ValueError):
    """A question that no pod can be behind. The message names the field, its value and a valid form."""


def pod_asked(request: pb.SimulateRequest) -> PodAsked:
    """The pod to simulate. Raises QuestionError."""
    if not 1 <= len(request.containers) <= CONTAINERS_MAX:
        raise QuestionError(f"containers: {len(request.containers)} of them; a pod has 1 to {CONTAINERS_MAX}")
    return PodAsked(
        request.namespace or "default",
        dict(request.annotations),
        tuple(_container(each) for each in request.containers),
        _needs(request.host),
        labels=dict(request.labels),
        priority=request.priority,
        preempts=not request.never_preempts,
        same_gpu=tuple(tuple(each.containers) for each in request.same_gpu),
        by_claim=request.by_claim,
    )


def _container(each: pb.ContainerAsk) -> ContainerRequest:
    uid = each.run_as_user if each.HasField("run_as_user") else None
    return ContainerRequest(each.name, dict(each.limits), dict(each.requests), uid, each.driver_capabilities)


def change_asked(request: pb.AdjustRequest) -> Change:
    values = {name: int(getattr(request, name)) for name in FIELDS if request.HasField(name)}
    return Change(RequestId(request.request), request.container, values)


def _needs(host: pb.HostNeeds) -> HostNeeds:
    room = host.room
    amounts = {"cpu_milli": room.cpu_milli, "memory_mib": room.memory_mib, **room.resources}
    for name, amount in amounts.items():
        if amount < 0:
            raise QuestionError(f"host.room: {shorten(name)} = {amount}; at least 0")
    return HostNeeds(
        room=HostRoom(cpu_milli=room.cpu_milli, memory_mib=room.memory_mib, resources=dict(room.resources)),
        node_name=host.node_name,
        node_selector=dict(host.node_selector),
        affinity=tuple(tuple(_expression(each) for each in term.expressions) for term in host.affinity),
        tolerations=tuple(_toleration(each) for each in host.tolerations),
        beside=tuple(_pod_term(each) for each in host.beside),
        apart=tuple(_pod_term(each) for each in host.apart),
        spread=tuple(_spread_term(each) for each in host.spread),
        ports=tuple(HostPort(port=each.port, protocol=each.protocol or "TCP", ip=each.ip) for each in host.ports),
    )


def _pod_term(term: pb.PodTerm) -> PodTerm:
    selector = tuple(_expression(each) for each in term.selector)
    return PodTerm(topology_key=term.topology_key, selector=selector, namespaces=tuple(term.namespaces))


def _spread_term(term: pb.SpreadTerm) -> SpreadTerm:
    return SpreadTerm(
        topology_key=term.topology_key,
        max_skew=max(1, term.max_skew),
        selector=tuple(_expression(each) for each in term.selector),
        min_domains=max(1, term.min_domains),
        by_affinity=not term.ignores_affinity,
        by_taints=term.honors_taints,
    )


def _expression(each: pb.NodeExpression) -> NodeExpression:
    for operator in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"):
        if each.operator == operator:
            return NodeExpression(key=each.key, operator=operator, values=tuple(each.values))
    raise QuestionError(
        f"host.affinity: operator = {shorten(each.operator)!r}; In, NotIn, Exists, DoesNotExist, Gt or Lt"
    )


def _toleration(each: pb.Toleration) -> Toleration:
    for operator in ("Equal", "Exists"):
        if (each.operator or "Equal") == operator:
            return Toleration(key=each.key, operator=operator, value=each.value, effect=each.effect)
    raise QuestionError(f"host.tolerations: operator = {shorten(each.operator)!r}; Equal or Exists")


def simulated(found: Simulated, run: RunId, *, waiting: int, devices_max: int) -> pb.SimulateResponse:
    """What a simulated pod would get, and how many devices one may request."""
    answer = pb.SimulateResponse(decided_by=run, waiting=waiting, devices_max=devices_max)
    match found:
        case WouldBind():
            bound = pb.WouldBeBound(
                node=found.node,
                devices=_devices(found.devices),
                left=[_left(each) for each in found.left],
                others=_steps(found.others),
                more=found.more,
                evicts=[pb.EvictedPod(**asdict(each)) for each in found.evicts],
                instead_of=found.instead_of,
            )
            answer.bound.CopyFrom(bound)
        case WouldWait():
            answer.waits.CopyFrom(pb.WouldWait(message=found.message, steps=_steps(found.steps), more=found.more))
        case Refusal():
            answer.refused.CopyFrom(pb.Refusal(**asdict(found)))
        case AsksNothing():
            answer.nothing.SetInParent()
    return answer


def explained(request: str, standing: RequestStatus, run: RunId) -> pb.ExplainResponse:
    answer = pb.ExplainResponse(
        request=request,
        state=f"REQUEST_STATE_{standing.state.name}",
        message=standing.message,
        request_revision=standing.revision,
        node=standing.node,
        allocation=standing.allocation,
        devices=_devices(standing.devices),
        steps=_steps(standing.steps),
        more=standing.more,
        decided_by=run,
    )
    if standing.turn is not None:
        answer.turn.CopyFrom(pb.Turn(**asdict(standing.turn)))
    if standing.plan is not None:
        answer.proposal.CopyFrom(_proposal(standing.plan))
    if standing.refusal is not None:
        answer.refused.CopyFrom(pb.Refusal(**asdict(standing.refusal)))
    return answer


_EFFECTS: dict[Effect, str] = {
    "unchanged": "ADJUST_EFFECT_UNCHANGED",
    "now": "ADJUST_EFFECT_NOW",
    "next process start": "ADJUST_EFFECT_NEXT_PROCESS_START",
}


def adjusted(outcome: Outcome, run: RunId, *, dry_run: bool) -> pb.AdjustResponse:
    answer = pb.AdjustResponse(decided_by=run)
    if isinstance(outcome, AdjustRefused):
        most = [pb.FittingValue(field=name, value=value) for name, value in outcome.most]
        more = {**asdict(outcome), "reason": f"ADJUST_REFUSAL_{outcome.reason.name}", "most": most}
        answer.refused.CopyFrom(pb.AdjustRefused(**more))
        return answer
    fields = [pb.AdjustedField(**{**asdict(each), "effect": _EFFECTS[each.effect]}) for each in outcome.fields]
    done = pb.Adjusted(
        allocation=outcome.booking.allocation,
        node=outcome.booking.node,
        container=outcome.container,
        revision=outcome.revision,
        fields=fields,
        dry_run=dry_run,
    )
    answer.adjusted.CopyFrom(done)
    return answer


def _devices(devices: Iterable[DeviceAmount]) -> list[pb.PlacedDevice]:
    return [_device(each, each.grant.share) for each in devices]


def _device(amount: DeviceAmount, share: Share | None) -> pb.PlacedDevice:
    sizes = {"model": amount.model, "memory_mib": amount.memory_mib, "sm_percent": amount.sm_percent}
    in_proto = share_to_proto(share) if share is not None else None
    return pb.PlacedDevice(**{**asdict(amount.grant), **sizes, "mode": MODES[amount.mode], "share": in_proto})


def consolidated(nodes: Iterable[Emptied], run: str) -> pb.ConsolidateResponse:
    found = [pb.EmptiedNode(node=each.node, moves=_moves(each.moves)) for each in nodes]
    return pb.ConsolidateResponse(nodes=found, allocator_run=run)


def _moves(moved: Iterable[Moved]) -> list[pb.MovedPod]:
    return [pb.MovedPod(**asdict(each)) for each in moved]


def _proposal(plan: Proposal) -> pb.MoveProposal:
    said = {name: getattr(plan, name) for name in ("node", "gains_mib", "moves_mib", "is_done")}
    return pb.MoveProposal(**said, devices=_devices(plan.devices), moves=_moves(plan.moved))


def _left(left: LeftOver) -> pb.LeftOver:
    homes = [pb.HomeLeft(**asdict(each)) for each in left.homes]
    return pb.LeftOver(**{**asdict(left), "homes": homes})


def _steps(steps: Iterable[ReasonsByFilter]) -> list[pb.Step]:
    return [pb.Step(filter=each.filter, reasons=[pb.Reason(**asdict(one)) for one in each.reasons]) for each in steps]

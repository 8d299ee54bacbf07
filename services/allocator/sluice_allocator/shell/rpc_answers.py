"""Converts the core's answers to their gRPC form."""

from collections.abc import Iterable
from typing import Any

from sluice.contracts import messages as msg
from sluice.contracts.ids import RequestId, RunId
from sluice.contracts.pb import allocator_pb2 as pb
from sluice.contracts.proto.bookings import MODES, fields_of
from sluice.contracts.reasons import Refusal, shorten
from sluice.contracts.request_syntax import ContainerRequest
from sluice.contracts.rpc_limits import SIMULATED_TOGETHER_MAX
from sluice_allocator.core.explain.status import AsksNothing, PodAsked, RequestStatus, Simulated, WouldBind, WouldWait
from sluice_allocator.core.moves.defragment import Emptied, Proposal
from sluice_allocator.core.resize.pending import FIELDS, AdjustRefused, Change, Effect, Outcome
from sluice_allocator.core.state.grant_facts import DeviceAmount

CONTAINERS_MAX = 1000  # most containers of one pod; an API server takes no object with more


class QuestionError(ValueError):
    """A question that no pod can be behind. The message names the field, its value and a valid form."""


def pods_asked(request: pb.SimulateRequest) -> list[PodAsked]:
    """The pod to simulate, and those after it. Raises QuestionError."""
    found, most = len(request.next), SIMULATED_TOGETHER_MAX - 1
    if found > most or any(each.next for each in request.next):
        raise QuestionError(f"next: {found} pods; at most {most}, without a next of their own")
    return [pod_asked(each) for each in (request, *request.next)]


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


def _needs(host: pb.HostNeeds) -> msg.HostNeeds:
    room = host.room
    amounts = {"cpu_milli": room.cpu_milli, "memory_mib": room.memory_mib, **room.resources}
    for name, amount in amounts.items():
        if amount < 0:
            raise QuestionError(f"host.room: {shorten(name)} = {amount}; at least 0")
    return msg.HostNeeds(
        room=msg.HostRoom(cpu_milli=room.cpu_milli, memory_mib=room.memory_mib, resources=dict(room.resources)),
        node_name=host.node_name,
        node_selector=dict(host.node_selector),
        affinity=tuple(tuple(_expression(each) for each in term.expressions) for term in host.affinity),
        tolerations=tuple(_toleration(each) for each in host.tolerations),
        beside=tuple(_pod_term(each) for each in host.beside),
        apart=tuple(_pod_term(each) for each in host.apart),
        spread=tuple(_spread_term(each) for each in host.spread),
        ports=tuple(msg.HostPort(port=each.port, protocol=each.protocol or "TCP", ip=each.ip) for each in host.ports),
    )


def _pod_term(term: pb.PodTerm) -> msg.PodTerm:
    selector = tuple(_expression(each) for each in term.selector)
    return msg.PodTerm(topology_key=term.topology_key, selector=selector, namespaces=tuple(term.namespaces))


def _spread_term(term: pb.SpreadTerm) -> msg.SpreadTerm:
    return msg.SpreadTerm(
        topology_key=term.topology_key,
        max_skew=max(1, term.max_skew),
        selector=tuple(_expression(each) for each in term.selector),
        min_domains=max(1, term.min_domains),
        by_affinity=not term.ignores_affinity,
        by_taints=term.honors_taints,
    )


def _expression(each: pb.NodeExpression) -> msg.NodeExpression:
    for operator in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"):
        if each.operator == operator:
            return msg.NodeExpression(key=each.key, operator=operator, values=tuple(each.values))
    raise QuestionError(
        f"host.affinity: operator = {shorten(each.operator)!r}; In, NotIn, Exists, DoesNotExist, Gt or Lt"
    )


def _toleration(each: pb.Toleration) -> msg.Toleration:
    for operator in ("Equal", "Exists"):
        if (each.operator or "Equal") == operator:
            return msg.Toleration(key=each.key, operator=operator, value=each.value, effect=each.effect)
    raise QuestionError(f"host.tolerations: operator = {shorten(each.operator)!r}; Equal or Exists")


def simulated_together(
    answers: list[pb.SimulateResponse], run: RunId, *, waiting: int, devices_max: int
) -> pb.SimulateResponse:
    """What simulated pods would get, and how many devices one may request."""
    first, *others = answers
    about = pb.SimulateResponse(decided_by=run, waiting=waiting, devices_max=devices_max, next=others)
    first.MergeFrom(about)
    return first


def simulated(found: Simulated) -> pb.SimulateResponse:
    answer = pb.SimulateResponse()
    match found:
        case WouldBind():
            answer.bound.CopyFrom(pb.WouldBeBound(**_with_devices(found)))
        case WouldWait():
            answer.waits.CopyFrom(pb.WouldWait(**fields_of(found)))
        case Refusal():
            answer.refused.CopyFrom(pb.Refusal(**fields_of(found)))
        case AsksNothing():
            answer.nothing.SetInParent()
    return answer


def explained(request: str, standing: RequestStatus, run: RunId) -> pb.ExplainResponse:
    said = _with_devices(standing)
    renamed = {"request_revision": said.pop("revision"), "refused": said.pop("refusal"), "proposal": said.pop("plan")}
    if standing.plan is not None:
        renamed["proposal"] = _with_devices(standing.plan)
    state = f"REQUEST_STATE_{standing.state.name}"
    return pb.ExplainResponse(**{**said, **renamed, "state": state, "request": request, "decided_by": run})


_EFFECTS: dict[Effect, str] = {
    "unchanged": "ADJUST_EFFECT_UNCHANGED",
    "now": "ADJUST_EFFECT_NOW",
    "next process start": "ADJUST_EFFECT_NEXT_PROCESS_START",
}


def adjusted(outcome: Outcome, run: RunId, *, dry_run: bool) -> pb.AdjustResponse:
    answer = pb.AdjustResponse(decided_by=run)
    if isinstance(outcome, AdjustRefused):
        most = [pb.FittingValue(field=name, value=value) for name, value in outcome.most]
        more = {**fields_of(outcome), "reason": f"ADJUST_REFUSAL_{outcome.reason.name}", "most": most}
        answer.refused.CopyFrom(pb.AdjustRefused(**more))
        return answer
    fields = [pb.AdjustedField(**{**fields_of(each), "effect": _EFFECTS[each.effect]}) for each in outcome.fields]
    done = pb.Adjusted(container=outcome.container, revision=outcome.revision, fields=fields, dry_run=dry_run)
    done.allocation, done.node = outcome.booking.allocation, outcome.booking.node
    answer.adjusted.CopyFrom(done)
    return answer


def _with_devices(answer: WouldBind | RequestStatus | Proposal) -> dict[str, Any]:
    return fields_of(answer) | {"devices": [_device(each) for each in answer.devices]}


def _device(amount: DeviceAmount) -> dict[str, Any]:
    sizes = {"model": amount.model, "memory_mib": amount.memory_mib, "sm_percent": amount.sm_percent}
    return {**fields_of(amount.grant), **sizes, "mode": MODES[amount.mode]}


def consolidated(nodes: Iterable[Emptied], run: str) -> pb.ConsolidateResponse:
    return pb.ConsolidateResponse(nodes=[pb.EmptiedNode(**fields_of(each)) for each in nodes], allocator_run=run)

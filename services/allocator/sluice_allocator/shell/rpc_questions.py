"""Converts gRPC requests to the core's questions. The pod's own request is parsed elsewhere."""

from sluice.contracts.ids import RequestId
from sluice.contracts.messages import HostNeeds, HostPort, HostRoom, NodeExpression, PodTerm, SpreadTerm, Toleration
from sluice.contracts.pb import allocator_pb2 as pb
from sluice.contracts.reasons import shorten
from sluice.contracts.request_syntax import ContainerRequest
from sluice_allocator.core.explain.status import PodAsked
from sluice_allocator.core.resize.pending import FIELDS, Change

CONTAINERS_MAX = 1000  # most containers of one pod; an API server takes no object with more


class QuestionError(ValueError):
    """A question that no pod can be behind. The message names the field, its value and a valid form."""


def pod_asked(request: pb.SimulateRequest) -> PodAsked:
    """The pod to simulate. Raises QuestionError."""
    if not 1 <= len(request.containers) <= CONTAINERS_MAX:
        raise QuestionError(f"containers: {len(request.containers)} of them; a pod has 1 to {CONTAINERS_MAX}")
    containers = tuple(
        ContainerRequest(
            each.name,
            dict(each.limits),
            dict(each.requests),
            each.run_as_user if each.HasField("run_as_user") else None,
            each.driver_capabilities,
        )
        for each in request.containers
    )
    host = _needs(request.host)
    return PodAsked(
        request.namespace or "default",
        dict(request.annotations),
        containers,
        host,
        labels=dict(request.labels),
        priority=request.priority,
        preempts=not request.never_preempts,
        same_gpu=tuple(tuple(each.containers) for each in request.same_gpu),
        by_claim=request.by_claim,
    )


def change_asked(request: pb.AdjustRequest) -> Change:
    """The requested change of shares: the fields that are set."""
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
    return PodTerm(
        topology_key=term.topology_key,
        selector=tuple(_expression(each) for each in term.selector),
        namespaces=tuple(term.namespaces),
    )


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

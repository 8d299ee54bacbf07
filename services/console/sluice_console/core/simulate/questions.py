"""A manifest as a request to the allocator, passed on as written: the allocator parses it with its own limits."""

from collections.abc import Iterable, Mapping

from sluice.contracts.manifests import PodManifest
from sluice.contracts.messages import HostNeeds, NodeExpression, PodTerm, SpreadTerm
from sluice.contracts.pb import allocator_pb2 as pb
from sluice.contracts.pb import node_pb2
from sluice.contracts.request_syntax import ContainerRequest, Unquoted
from sluice.contracts.request_syntax.claim_text import written_name


def question_of(pod: PodManifest) -> pb.SimulateRequest:
    """The request for a pod that asks for slices (all of our values are text or numbers)."""
    return pb.SimulateRequest(
        namespace=pod.namespace,
        name=pod.name,
        annotations=_texts(pod.annotations),
        containers=[_container(each) for each in pod.containers],
        host=_host(pod.host),
        priority=pod.urgency.value,
        never_preempts=not pod.urgency.may_preempt,
        labels=pod.labels,
        same_gpu=[pb.OneGpu(containers=[written_name(each) for each in names]) for names in pod.same_gpu],
        by_claim=pod.by_claim,
    )


def _container(container: ContainerRequest) -> pb.ContainerAsk:
    return pb.ContainerAsk(
        name=container.name,
        limits=_texts(container.limits),
        requests=_texts(container.requests),
        run_as_user=container.uid,
        driver_capabilities=container.driver_capabilities,
    )


def _texts(written: Mapping[str, object]) -> dict[str, str]:
    """Values as written; mappings and lists are never ours and are left out."""
    texts = {name: value.text if isinstance(value, Unquoted) else value for name, value in written.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _host(host: HostNeeds) -> pb.HostNeeds:
    return pb.HostNeeds(
        room=node_pb2.HostRoom(
            cpu_milli=host.room.cpu_milli, memory_mib=host.room.memory_mib, resources=host.room.resources
        ),
        node_name=host.node_name,
        node_selector=host.node_selector,
        affinity=[pb.NodeTerm(expressions=_expressions(term)) for term in host.affinity],
        tolerations=[
            pb.Toleration(key=each.key, operator=each.operator, value=each.value, effect=each.effect)
            for each in host.tolerations
        ],
        beside=[_pod_term(each) for each in host.beside],
        apart=[_pod_term(each) for each in host.apart],
        spread=[_spread_term(each) for each in host.spread],
        ports=[pb.HostPort(port=each.port, protocol=each.protocol, ip=each.ip) for each in host.ports],
    )


def _pod_term(term: PodTerm) -> pb.PodTerm:
    return pb.PodTerm(topology_key=term.topology_key, selector=_expressions(term.selector), namespaces=term.namespaces)


def _spread_term(term: SpreadTerm) -> pb.SpreadTerm:
    return pb.SpreadTerm(
        topology_key=term.topology_key,
        max_skew=term.max_skew,
        selector=_expressions(term.selector),
        min_domains=term.min_domains,
        ignores_affinity=not term.by_affinity,
        honors_taints=term.by_taints,
    )


def _expressions(expressions: Iterable[NodeExpression]) -> list[pb.NodeExpression]:
    return [pb.NodeExpression(key=each.key, operator=each.operator, values=each.values) for each in expressions]

"""A manifest as a question to the allocator: as it was written, for the allocator reads it with its own limits."""

from collections.abc import Mapping

from sluice.contracts.asking import ContainerAsk, Unquoted
from sluice.contracts.manifests import PodManifest
from sluice.contracts.messages import HostNeeds
from sluice.contracts.pb import allocator_pb2 as pb
from sluice.contracts.pb import node_pb2


def question_of(pod: PodManifest) -> pb.SimulateRequest:
    """What would become of a pod that asks for something (so that everything of ours in it is text or a number)."""
    return pb.SimulateRequest(
        namespace=pod.namespace,
        name=pod.name,
        annotations=_texts(pod.annotations),
        containers=[_container(each) for each in pod.containers],
        host=_host(pod.host),
        priority=pod.urgency.value,
        never_preempts=not pod.urgency.may_preempt,
    )


def _container(container: ContainerAsk) -> pb.ContainerAsk:
    return pb.ContainerAsk(
        name=container.name,
        limits=_texts(container.limits),
        requests=_texts(container.requests),
        run_as_user=container.uid,
    )


def _texts(written: Mapping[str, object]) -> dict[str, str]:
    """Values as they were written; what is a mapping or a list is nothing of ours."""
    texts = {name: value.text if isinstance(value, Unquoted) else value for name, value in written.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _host(host: HostNeeds) -> pb.HostNeeds:
    return pb.HostNeeds(
        room=node_pb2.HostRoom(
            cpu_milli=host.room.cpu_milli, memory_mib=host.room.memory_mib, resources=host.room.resources
        ),
        node_name=host.node_name,
        node_selector=host.node_selector,
        affinity=[
            pb.NodeTerm(
                expressions=[
                    pb.NodeExpression(key=each.key, operator=each.operator, values=each.values) for each in term
                ]
            )
            for term in host.affinity
        ],
        tolerations=[
            pb.Toleration(key=each.key, operator=each.operator, value=each.value, effect=each.effect)
            for each in host.tolerations
        ],
    )

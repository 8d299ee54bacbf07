"""Attributes of spans, by OpenTelemetry's semantic conventions (messaging, k8s, hw, rpc) where they have a name.

Only what is named here leaves the process: no annotation, environment, ticket, password or text of a person."""

from sluice.contracts import messages as m
from sluice.runtime.tracing.request_traces import Attributes

_TYPES = {"publish": "send", "process": "process"}


def of_subject(subject: str, operation: str) -> Attributes:
    """The subject of a message; `operation` is `publish` or `process`."""
    return {
        "messaging.system": "nats",
        "messaging.operation.name": operation,
        "messaging.operation.type": _TYPES[operation],
        "messaging.destination.name": subject,
        "messaging.destination.template": ".".join(subject.split(".", 2)[:2]),
    }


def of_message(message: m.AnyMessage) -> Attributes:
    match message:
        case m.AllocationRequested() | m.RequestRejected():
            return {
                "k8s.namespace.name": message.namespace,
                "k8s.pod.name": message.name,
                "sluice.revision": message.revision,
            }
        case m.Grant() | m.Revoke():
            booking = message.booking
            return {
                "k8s.namespace.name": booking.namespace,
                "k8s.pod.name": booking.name,
                "k8s.pod.uid": str(booking.request),
                "k8s.node.name": str(booking.node),
                "sluice.allocation": str(booking.allocation),
                "sluice.revision": message.revision,
            }
        case m.Bound():
            return {"k8s.node.name": str(message.node), "sluice.allocation": str(message.allocation)}
        case m.NodeChanged():
            return {"k8s.node.name": str(message.node)}
        case m.Refused():
            return {"sluice.reason": str(message.refusal.reason)}
        case m.EvictionOrdered():
            return {}
    allocation = getattr(message, "allocation", "")
    return {"sluice.allocation": str(allocation)} if allocation else {}


def of_instruction(instruction: object) -> Attributes:
    """The target of a step: a GPU, a pod or a node, by the fields of those names."""
    found: dict[str, str] = {}
    gpu = getattr(instruction, "gpu", "")
    if gpu:
        found |= {"hw.id": str(gpu), "hw.type": "gpu"}
    uid = getattr(instruction, "uid", "")
    if uid:
        found["k8s.pod.uid"] = str(uid)
        found["k8s.namespace.name"] = str(getattr(instruction, "namespace", ""))
        found["k8s.pod.name"] = str(getattr(instruction, "name", ""))
    node = getattr(instruction, "node", "")
    if node:
        found["k8s.node.name"] = str(node)
    return found


def of_call(method: str) -> Attributes:
    """A gRPC call; `method` is `/package.Service/Method`."""
    return {"rpc.system.name": "grpc", "rpc.method": method.lstrip("/")}

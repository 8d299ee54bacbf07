"""Turns a line of a workload into the request its pod would make, with the parser that clusters and folders use."""

import msgspec

from sluice.contracts.ids import RequestId, SourceName
from sluice.contracts.messages import AllocationRequested, HostNeeds, HostRoom, Leeway
from sluice.contracts.policy_names import invalid_gpu_policy_reason, invalid_node_policy_reason
from sluice.contracts.reasons import Refusal, shorten
from sluice.contracts.request_syntax import ContainerRequest, PodRequest, RequestLimits, parse_pod
from sluice_allocator.offline.workload import Arrival

WORKLOAD = SourceName("workload")
CONTAINER = "main"  # the name of every pod's only container, for annotations that name one


class Policies(msgspec.Struct, frozen=True):
    """The policies of pods that name none; empty is the fleet's own."""

    node: str = ""
    gpu: str = ""


class PolicyError(ValueError):
    """A text that names no policy, with an example of a valid one."""


def parse_policies(text: str) -> Policies:
    """Parse `binpack` for both levels (if it is a policy of both), or `node=spread,gpu=numa,binpack` for one each.
    Raises PolicyError."""
    if "=" not in text:
        node = text if text and invalid_node_policy_reason(text) is None else ""
        gpu = text if text and invalid_gpu_policy_reason(text) is None else ""
        if not node and not gpu:
            raise PolicyError(invalid_gpu_policy_reason(text) or "a policy has a name")
        return Policies(node, gpu)
    said: dict[str, list[str]] = {}
    level = ""
    for part in text.split(","):
        name = part.strip()
        if "=" in name:
            level, _, name = name.partition("=")
            if level not in {"node", "gpu"} or level in said:
                why = f"{shorten(level)!r} is no level, or is given twice"
                raise PolicyError(f"{why}; right: node=spread,gpu=numa,binpack")
        if not level:
            raise PolicyError(f"{shorten(name)!r} has no level; right: node=spread,gpu=numa,binpack")
        said.setdefault(level, []).append(name)
    node, gpu = ",".join(said.get("node", ())), ",".join(said.get("gpu", ()))
    why_not = invalid_node_policy_reason(node) or invalid_gpu_policy_reason(gpu)
    if why_not is not None or [""] in said.values():
        raise PolicyError(why_not or "a policy has a name; right: node=spread,gpu=numa,binpack")
    return Policies(node, gpu)


def request_of(
    arrival: Arrival, request: RequestId, policies: Policies, limits: RequestLimits
) -> AllocationRequested | Refusal | None:
    """The pod's request; None when it asks for no GPU. A flat list of resources is one container's limits."""
    container = ContainerRequest(CONTAINER, limits=arrival.resources, uid=arrival.uid)
    ask = parse_pod(arrival.annotations, (container,), limits=limits)
    if isinstance(ask, Refusal):
        return ask
    if not ask.claims:
        return None
    return AllocationRequested(
        revision=1,
        source=WORKLOAD,
        namespace=arrival.namespace,
        name=arrival.pod,
        origin=arrival.where,
        owner=request,
        claims=ask.claims,
        priority=arrival.priority or ask.priority or 0,
        host=_needs(arrival, ask),
        node_policy=ask.node_policy or policies.node,
        gpu_policy=ask.gpu_policy or policies.gpu,
        leeway=_unmoved(ask.leeway),
        group=ask.group,
    )


def _unmoved(leeway: Leeway) -> Leeway:
    """The leeway of a pod that runs once: it is not restarted elsewhere, so moving it is left out."""
    substitute = "stay" if leeway.substitute == "return" else leeway.substitute
    return Leeway(preemptible=leeway.preemptible, movable=False, substitute=substitute)


def _needs(arrival: Arrival, ask: PodRequest) -> HostNeeds:
    room = HostRoom(cpu_milli=arrival.cpu_milli, memory_mib=arrival.memory_mib)
    return HostNeeds(room=room, node_name=ask.node_name, node_selector=arrival.node_selector)

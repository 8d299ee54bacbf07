"""The content of a request, from the pod's annotation and spec, or from the bus. `pod_store` decides when."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from sluice.contracts import messages as msg
from sluice.contracts.admission.stored_request import ResolvedRequest
from sluice.contracts.dra.slice_request import ClaimRequests
from sluice.contracts.ids import NodeName
from sluice.contracts.pod_specs import NO_PRIORITY, read_host_needs, read_priority, with_node, with_priority_class
from sluice.contracts.reasons import Refusal
from sluice_pod_watcher.core.cluster.pods import pod_view, volume_claims
from sluice_pod_watcher.core.same_fields import like


@dataclass(frozen=True, slots=True)
class RequestTerms:
    """The content of a request, without its identity: the claims and their terms, or why they cannot be parsed."""

    claims: tuple[msg.Claim, ...] = ()
    host: msg.HostNeeds = msg.NO_NEEDS
    priority: int = 0
    node_policy: str = ""
    gpu_policy: str = ""
    leeway: msg.Leeway = msg.NO_LEEWAY
    group: msg.PodGroup | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    refusal: Refusal | None = None
    preempts: bool = True
    resource_claims: tuple[msg.ResourceClaimRef, ...] = ()
    alternatives: tuple[tuple[msg.Claim, ...], ...] = ()
    same_gpu: tuple[tuple[str, ...], ...] = ()

    @property
    def ways(self) -> tuple[tuple[msg.Claim, ...], ...]:
        return (self.claims, *self.alternatives)


def terms_of(word: msg.AllocationRequested | msg.RequestRejected) -> RequestTerms:
    return like(RequestTerms, word)


def terms_of_pod(
    asked: ResolvedRequest,
    spec: dict[str, Any],
    view: pod_view.PodView,
    *,
    held: msg.Held | None,
    places: volume_claims.VolumeTopologies = (),
    shun: tuple[NodeName, ...] = (),
    resource_claims: tuple[msg.ResourceClaimRef, ...] = (),
    by_claims: ClaimRequests | None = None,
) -> RequestTerms:
    """The terms of a pod: its request, what its spec needs of a node, and its priority. The API server has resolved the
    pod's PriorityClass into its spec; the pod's own annotation takes precedence. `by_claims`: `asked` is what its own
    ResourceClaims say. A pod with a slice stays where it is, even if its edited spec fits no node."""
    pod = asked.pod
    needs = read_host_needs(spec, view.namespace, view.labels)
    if not isinstance(needs, Refusal):
        needs = with_node(needs, pod.node_name, "sluice.dev/node-name")
    if isinstance(needs, Refusal):
        if held is None:
            return RequestTerms(refusal=needs)
        needs = msg.HostNeeds(node_name=held.node)
    if places or shun:
        needs = msgspec.structs.replace(needs, volumes=places, shun=shun)
    urgency = read_priority(spec)
    if isinstance(urgency, Refusal):
        urgency = NO_PRIORITY  # no API server accepts such a pod
    return like(
        RequestTerms,
        pod,
        host=needs,
        priority=pod.priority if pod.priority is not None else with_priority_class(urgency, ()).value,
        leeway=pod.leeway if view.controller else _unmoved(pod.leeway),
        labels=view.labels,
        preempts=urgency.may_preempt,
        resource_claims=resource_claims,
        alternatives=by_claims.alternatives if by_claims is not None else (),
        same_gpu=by_claims.same_gpu if by_claims is not None else (),
    )


def terms_followed(terms: RequestTerms, view: pod_view.PodView, spec: Mapping[str, Any]) -> RequestTerms:
    """The terms of a pod that has its slice, as others' terms match it: labels may be edited while it runs."""
    now = read_host_needs(spec, view.namespace, view.labels)
    if isinstance(now, Refusal) or terms.refusal is not None:
        return terms
    host = msgspec.structs.replace(terms.host, beside=now.beside, apart=now.apart, spread=now.spread, ports=now.ports)
    return replace(terms, host=host, labels=view.labels)


def _unmoved(leeway: msg.Leeway) -> msg.Leeway:
    """The leeway of a pod that no controller recreates: never moved, but evicted for more important pods."""
    substitute = "stay" if leeway.substitute == "return" else leeway.substitute
    return msgspec.structs.replace(leeway, movable=False, substitute=substitute)

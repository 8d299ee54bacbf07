"""What a place is searched for: the part of a request that decides where it can go."""

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from sluice.contracts.ids import GpuUuid, SourceName
from sluice.contracts.messages import NO_NEEDS, AllocationRequested, Claim, HostNeeds

Avoid = frozenset[GpuUuid]  # GPUs on which this request failed recently


class PlaceRequest(msgspec.Struct, frozen=True):
    """Claims of one pod, and what its node needs besides GPUs. The namespace and the claims' uids make the trust domain
    of shares. An empty policy is the pool's own.
    """

    claims: tuple[Claim, ...]
    namespace: str = "default"
    host: HostNeeds = NO_NEEDS
    node_policy: str = ""
    gpu_policy: str = ""
    substitute: bool = False  # whether a larger compatible profile may serve if the asked one has no place
    steps: tuple[int, ...] = ()
    """Per claim, which larger profile is searched (1: the next larger) instead of the asked one; empty: the asked ones.
    """
    labels: dict[str, str] = msgspec.field(default_factory=dict)  # the pod's labels, which terms of other pods match
    source: SourceName = SourceName("")  # the pod's cluster: terms only match pods of one cluster
    by_claim: bool = False  # whether the kubelet hands its devices over by ResourceClaim: only some nodes' kubelets do
    same_gpu: tuple[tuple[str, ...], ...] = ()
    """Containers whose devices must all be on one GPU, in groups. One that has no claim here does not count."""


def without_shunned_nodes(request: PlaceRequest) -> PlaceRequest:
    """The same without avoiding nodes where the scheduler recently rejected such a pod."""
    return replace(request, host=replace(request.host, shun=()))


def alternative_place_requests(asked: AllocationRequested) -> Iterator[PlaceRequest]:
    """What to search instead where the first claims of a request have no place now, in this order."""
    if asked.alternatives:
        first = place_request_of(asked)
        for claims in asked.alternatives:
            yield replace(first, claims=claims)


def place_request_of(asked: AllocationRequested) -> PlaceRequest:
    """What to search for the first claims of a request."""
    substitute = asked.leeway.substitute != "no"
    return PlaceRequest(
        asked.claims,
        asked.namespace,
        asked.host,
        asked.node_policy,
        asked.gpu_policy,
        substitute,
        labels=asked.labels,
        source=asked.source,
        by_claim=bool(asked.resource_claims),
        same_gpu=asked.same_gpu,
    )

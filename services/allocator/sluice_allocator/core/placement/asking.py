"""What a place is looked for: the part of a request that decides where it can go, without whose life it is."""

import msgspec
from msgspec.structs import replace

from sluice.contracts.ids import GpuUuid, SourceName
from sluice.contracts.messages import NO_NEEDS, AllocationRequested, Claim, HostNeeds

Avoid = frozenset[GpuUuid]
"""GPUs on which this very request failed a short while ago."""


class Asking(msgspec.Struct, frozen=True):
    """
    Claims of one pod, and what its node must have besides GPUs.

    With the claims' uids the namespace makes the trust domain of shares. An empty policy is the pool's own.
    """

    claims: tuple[Claim, ...]
    namespace: str = "default"
    host: HostNeeds = NO_NEEDS
    node_policy: str = ""
    gpu_policy: str = ""
    substitute: bool = False
    """Whether a larger compatible profile may serve where the asked one has no place."""
    steps: tuple[int, ...] = ()
    """Per claim, the how-manieth larger profile is looked for instead of the asked one; empty: the asked ones."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Of the pod, which terms of other pods match."""
    source: SourceName = SourceName("")
    """Whose pod it is: terms speak of pods of one cluster."""


def anywhere(asking: Asking) -> Asking:
    """The same where nothing but nodes is left on which the scheduler would not have its like a while ago."""
    return replace(asking, host=replace(asking.host, shun=()))


def asking_of(asked: AllocationRequested) -> Asking:
    """What to look for on behalf of a request."""
    substitute = asked.leeway.substitute != "no"
    return Asking(
        asked.claims,
        asked.namespace,
        asked.host,
        asked.node_policy,
        asked.gpu_policy,
        substitute,
        labels=asked.labels,
        source=asked.source,
    )

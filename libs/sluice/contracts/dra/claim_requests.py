"""The result of reading a ResourceClaim: what its devices are asked for, or that it is another driver's."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.contracts.dra.slice_request import NO_OPTIONS, Options
from sluice.contracts.messages import Claim


@dataclass(frozen=True, slots=True)
class ClaimRequests:
    """
    A claim of ours. Its fields are those of AllocationRequested.

    `requests` is for its ResourceClaimRef: request, or `request/subrequest`, to the `container` key of its Claim. Of a
    prioritized list, the granted one is that with a device. `same_gpu` names every subrequest; those without a device
    do not count.
    """

    claims: tuple[Claim, ...]
    alternatives: tuple[tuple[Claim, ...], ...] = ()
    same_gpu: tuple[tuple[str, ...], ...] = ()
    requests: Mapping[str, str] = field(default_factory=dict)
    options: Options = NO_OPTIONS
    warnings: tuple[str, ...] = ()
    """For the claim's owner, in sentences."""


@dataclass(frozen=True, slots=True)
class NotOurs:
    """A claim for other drivers. It may be ours if `unknown` names DeviceClasses that were not found."""

    unknown: tuple[str, ...] = ()

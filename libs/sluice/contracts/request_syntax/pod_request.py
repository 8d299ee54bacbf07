"""Input and output of the pod parser. Plain data, unchecked."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.contracts.driver_capabilities import CAPABILITIES
from sluice.contracts.kube.quantities import WHOLE_MAX
from sluice.contracts.messages import NO_LEEWAY, Claim, Leeway, PodGroup


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """One container as written: values of resources are text, a number, or `Unquoted`. Limits are read first."""

    name: str
    limits: Mapping[str, object] = field(default_factory=dict)
    requests: Mapping[str, object] = field(default_factory=dict)
    uid: int | None = None
    """The user its processes run as (`runAsUser`), where known."""
    driver_capabilities: str = ""
    """The literal value of its own variable NVIDIA_DRIVER_CAPABILITIES."""


@dataclass(frozen=True, slots=True)
class PodRequest:
    """The checked request of a pod, none without claims. An empty policy is the pool's, an empty node any."""

    claims: tuple[Claim, ...] = ()
    priority: int | None = None
    node_policy: str = ""
    gpu_policy: str = ""
    node_name: str = ""
    leeway: Leeway = NO_LEEWAY
    group: PodGroup | None = None


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The most that this fleet could ever give."""

    max_gpus_per_node: int = 8
    """A request that no node with so many GPUs could hold is refused (`device_limit`)."""
    driver_capabilities: tuple[str, ...] = CAPABILITIES
    """Capabilities that a container may choose; others are refused, and `all` means all of these."""


ANY_COUNT = RequestLimits(max_gpus_per_node=WHOLE_MAX)
"""No limit, for a reader that passes the request on: the limit applies where it is decided."""

"""What goes into reading a pod's ask, and what comes out. Plain data; nothing is checked here."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.contracts.driver_capabilities import CAPABILITIES
from sluice.contracts.kube.quantities import WHOLE_MAX
from sluice.contracts.messages import NO_LEEWAY, Claim, Leeway, PodGroup


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """
    One container as it was written: resources by name, with values as they stood (text, a number, or `Unquoted`).

    A flat list of resources without limits and requests goes into `limits`, which are read first.
    """

    name: str
    limits: Mapping[str, object] = field(default_factory=dict)
    requests: Mapping[str, object] = field(default_factory=dict)
    uid: int | None = None
    """The user its processes run as (`runAsUser`), where that is known."""
    driver_capabilities: str = ""
    """The literal value of its own variable NVIDIA_DRIVER_CAPABILITIES."""


@dataclass(frozen=True, slots=True)
class PodRequest:
    """
    What a pod asks for, checked. Without claims it asks for nothing.

    An empty policy is the pool's; a chain of GPU policies is separated by commas. `node_name` is the only node that
    will do; empty is any. Without a `priority` that of the pod's spec counts.
    """

    claims: tuple[Claim, ...] = ()
    priority: int | None = None
    node_policy: str = ""
    gpu_policy: str = ""
    node_name: str = ""
    leeway: Leeway = NO_LEEWAY
    group: PodGroup | None = None


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What this fleet could ever give."""

    max_gpus_per_node: int = 8
    """What no node with so many GPUs could hold is refused (`counting`)."""
    driver_capabilities: tuple[str, ...] = CAPABILITIES
    """What a container may choose; others are refused, and `all` is all of these."""


ANY_COUNT = RequestLimits(max_gpus_per_node=WHOLE_MAX)
"""For a reader who hands the ask on: how many devices a pod may have is configured where it is decided."""

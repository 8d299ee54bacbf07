"""What admission may be told, with the reason for each default."""

from dataclasses import dataclass

from sluice.contracts.admission.host_paths import parts_of
from sluice.contracts.kubernetes import CSI_DRIVER, DEFAULT_MODES, ENV_ALWAYS

HOST_DIRECTORIES = (
    "/run/sluice",
    "/var/lib/sluice",
    "/var/lib/kubelet/pods",
    f"/var/lib/kubelet/plugins/{CSI_DRIVER}",
    "/var/lib/kubelet/plugins_registry",
)
"""
Where tickets, sockets, journals and the pipes of MPS daemons are, and where the kubelet mounts the volumes of all pods.

Who registers a driver with the kubelet could pass for ours, so the registry is among them.
"""

GPUS_MAX = 64
"""Of one node: no rule may allow more."""
_NEVER_ALLOWED = frozenset(variable for variable, _ in ENV_ALWAYS)
"""Admission sets these, so nobody else can."""


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """How one cluster wants its pods judged. Raises ValueError when that makes no sense."""

    max_gpus_per_node: int = 8
    """What no node with so many GPUs could hold is refused."""
    default_mode: str = ""
    """Of containers that name none, where it fits what they ask for; empty leaves them as they are."""
    runtime_class: str = ""
    """For GPU pods that name none; empty sets none. The object must exist, or the API server refuses the pod."""
    allow_privileged: bool = False
    """Whether a pod of ours may be privileged or share the host's processes: it then sees every GPU of its node."""
    exempt_namespaces: frozenset[str] = frozenset({"kube-system"})
    """Pods there are never touched. Sluice's own belongs to them: it must start without its webhook."""
    host_directories: tuple[str, ...] = HOST_DIRECTORIES
    """Directories of a node that no GPU pod may mount, nor anything below or above them."""
    env_allowed: frozenset[str] = frozenset({"NVIDIA_TF32_OVERRIDE"})
    """
    NVIDIA_ variables that a pod may set: such as the libraries in a container read, and the container runtime does not
    (https://docs.nvidia.com/cuda/cublas/ for this one). All others are refused, for the runtime may learn new ones.
    """

    def __post_init__(self) -> None:
        """Refuse what could not work."""
        if not 1 <= self.max_gpus_per_node <= GPUS_MAX:
            raise ValueError(f"max_gpus_per_node = {self.max_gpus_per_node}: from 1 to {GPUS_MAX}")
        if self.default_mode and self.default_mode not in DEFAULT_MODES:
            raise ValueError(f"default_mode = {self.default_mode!r}: one of {', '.join(DEFAULT_MODES)}, or empty")
        for name in sorted(self.env_allowed):
            if not name.startswith("NVIDIA_") or name in _NEVER_ALLOWED:
                allowed = f"NVIDIA_ variables, and not {', '.join(sorted(_NEVER_ALLOWED))}"
                raise ValueError(f"env_allowed holds {name!r}: {allowed}")
        for path in self.host_directories:
            if not path.startswith("/") or not parts_of(path):
                raise ValueError(f"host_directories holds {path!r}: absolute paths, not the root itself")

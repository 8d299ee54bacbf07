"""The settings of admission, with the reason for each default."""

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.contracts.dra.names import DRIVER
from sluice.contracts.driver_capabilities import CAPABILITIES, why_no_capabilities
from sluice.contracts.kube.names import CSI_DRIVER, DEFAULT_MODES, ENV_ALWAYS, HAND_OVERS
from sluice.contracts.request_syntax import RequestLimits


def parts_of(path: str) -> tuple[str, ...]:
    """The components of an absolute path as the kernel walks them, with `/var/run` as `/run`."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in {"", "."}:
            parts.append(part)
        if parts == ["var", "run"]:
            parts = ["run"]
    return tuple(parts)


def leads_to(path: str, directories: Sequence[str]) -> str:
    """The first of `directories` that is at, below or above `path`; `/proc` for its processes; else empty."""
    parts = parts_of(path)
    if parts == ("proc",) or (parts[:1] == ("proc",) and (parts[1].isdecimal() or parts[1] in {"self", "thread-self"})):
        return "/proc"
    for directory in directories:
        ours = parts_of(directory)
        common = min(len(parts), len(ours))
        if parts[:common] == ours[:common]:
            return directory
    # /var holds the link `run`, which a container could follow.
    return next((each for each in directories if parts_of(each)[:1] == ("run",)), "") if parts == ("var",) else ""


HOST_DIRECTORIES = (
    "/run/sluice",
    "/var/lib/sluice",
    "/etc/sluice",
    "/var/lib/kubelet/pods",
    f"/var/lib/kubelet/plugins/{CSI_DRIVER}",
    f"/var/lib/kubelet/plugins/{DRIVER}",
    "/var/lib/kubelet/plugins_registry",
    "/var/run/cdi",
    "/etc/cdi",
)
"""Of tickets, sockets, journals, MPS pipes, credentials and pods' volumes; of drivers' registry and CDI files."""

ENV_ALLOWED = ("NVIDIA_API_KEY", "NVIDIA_DISABLE_REQUIRE", "NVIDIA_REQUIRE_CUDA", "NVIDIA_TF32_OVERRIDE")
"""Variables that charts set and that select no device: the key of NVIDIA's services (https://docs.nvidia.com/nim/), the
driver that an image needs and whether to check it
(https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html#constraints), and how
cuBLAS computes (https://docs.nvidia.com/cuda/cublas/)."""
GPUS_MAX = 64
_NEVER_ALLOWED = frozenset(variable for variable, _ in ENV_ALWAYS)


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """How one cluster reviews its pods. Raises ValueError for invalid values."""

    max_gpus_per_node: int = 8
    """Requests above this are refused: no node has so many GPUs."""
    default_mode: str = ""
    """For containers that name none, where it fits their request; empty leaves them as they are."""
    runtime_class: str = ""
    """For GPU pods that name none; empty sets none. The object must exist, or the API server refuses the pod."""
    allow_privileged: bool = False
    """Whether a pod of ours may be privileged or use `hostPID`: it then sees every GPU of its node."""
    exempt_namespaces: frozenset[str] = frozenset({"kube-system"})
    """Pods there are never touched. Sluice's own namespace is one: it must start without its webhook."""
    host_directories: tuple[str, ...] = HOST_DIRECTORIES
    """Directories of a node that no GPU pod may mount, nor anything below or above them."""
    driver_capabilities: tuple[str, ...] = CAPABILITIES
    """The driver capabilities that a container may choose. Those of USUAL are always included."""
    env_allowed: frozenset[str] = frozenset(ENV_ALLOWED)
    """NVIDIA_ variables that a pod may set. All others are refused, because the runtime may add new ones."""
    hand_over: str = "tickets"
    """How new pods get their devices: `dra` by a ResourceClaim that the kubelet prepares, `tickets` by a volume."""

    @property
    def asks(self) -> RequestLimits:
        return RequestLimits(self.max_gpus_per_node, self.driver_capabilities)

    def __post_init__(self) -> None:
        why = why_no_capabilities(self.driver_capabilities)
        if why:
            raise ValueError(why)
        if not 1 <= self.max_gpus_per_node <= GPUS_MAX:
            raise ValueError(f"max_gpus_per_node = {self.max_gpus_per_node}: must be from 1 to {GPUS_MAX}")
        if self.default_mode and self.default_mode not in DEFAULT_MODES:
            raise ValueError(
                f"default_mode = {self.default_mode!r}: must be one of {', '.join(DEFAULT_MODES)}, or empty"
            )
        if self.hand_over not in HAND_OVERS:
            raise ValueError(f"hand_over = {self.hand_over!r}: must be one of {', '.join(HAND_OVERS)}")
        for name in sorted(self.env_allowed):
            if not name.startswith("NVIDIA_") or name in _NEVER_ALLOWED:
                allowed = f"use NVIDIA_ variables, except {', '.join(sorted(_NEVER_ALLOWED))}"
                raise ValueError(f"env_allowed holds {name!r}: {allowed}")
        for path in self.host_directories:
            if not path.startswith("/") or not parts_of(path):
                raise ValueError(f"host_directories holds {path!r}: use absolute paths other than /")

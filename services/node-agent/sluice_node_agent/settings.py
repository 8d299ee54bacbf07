"""The settings of a node agent."""

import re
from pathlib import Path
from typing import Literal

from sluice.contracts.ids import NodeName
from sluice.contracts.kube.names import DNS_SUBDOMAIN
from sluice.runtime.settings import TICK_MAX_S, CommonSettings
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.device.port import parse_selector

MPS_OFF = "off"
"""As `mps_control`: hand out no shares."""
QUOTA_OFF = "off"
"""As `quota_library`: enforce no time quota."""
_USAGE_EVERY_MIN_S, _USAGE_EVERY_MAX_S = 0.2, 600.0
"""GPM's samples are at least 0.1 s apart (nvml.h); a sample older than ten minutes is useless."""
_NODE_NAME = re.compile(DNS_SUBDOMAIN)


class NodeAgentSettings(CommonSettings, frozen=True, kw_only=True):
    """Which nodes this process serves, with which devices, and the tunables of `AgentConfig`."""

    nodes: tuple[str, ...] = ()
    """Nodes served: a real node's own name; empty is all simulated nodes of the fleet file."""
    fleet_file: Path | None = None
    """Fleet file of simulated nodes. Unset uses this machine's GPUs."""
    grpc_address: str = "127.0.0.1:0"
    """For the inventory's pulls. Port 0 is any free port; the bus publishes it."""
    health_address: str = ""
    """`host:port` of `grpc.health.v1` in plain text; empty serves none."""
    mps_control: str = ""
    """
    MPS control program; `off` offers no shares. Empty finds `nvidia-cuda-mps-control`; simulated nodes use a stand-in.
    """
    mps_dir: Path | None = None
    """Sockets and logs of MPS daemons; default `mps` in the data directory. Socket paths: at most 107 bytes."""
    kubelet_root: Path | None = None
    """The kubelet's `--root-dir`, mostly `/var/lib/kubelet`. If set, pods get tickets in a CSI volume (docs/csi.md)."""
    pods_dir: Path = Path("/run/sluice/pods")
    """What the pods' volumes show. Best on a tmpfs."""
    hand_over: bool = True
    """With `kubelet_root`: serve the kubelet's ResourceClaims (DRA), through which it hands devices over by CDI."""
    cdi_dir: Path = Path("/var/run/cdi")
    """CDI files of claims; the container runtime must read it. In a container at the same path as on the node."""
    nvidia_ctk: str = ""
    """Program that describes the driver for CDI, 1.19.0 or later. Empty finds `nvidia-ctk`."""
    nvidia_cdi_hook: str = ""
    """Path of `nvidia-cdi-hook` on the node. Empty is what `nvidia-ctk` finds."""
    driver_root: Path = Path("/")
    """The NVIDIA driver's root as `nvidia-ctk` sees it, as `/run/nvidia/driver` with the GPU operator."""
    driver_root_on_node: Path | None = None
    """The same directory on the node, where that is another path."""
    role: Literal["all", "agent", "csi"] = "all"
    """Agent and CSI driver together, or one. Apart, pods start and end while the agent is down."""
    fixed_layout: tuple[str, ...] = ()
    """GPUs that an administrator partitions (docs/fixed-layouts.md): `all`, node names, `<node>:<index>`, UUIDs. Other
    nodes' entries are ignored."""
    quota_library: str = ""
    """Absolute path of `libsluice-quota.so` (docs/time-quota.md); `off` sums up SMs instead. Empty: the image's own."""
    keep_warm_s: float = 0.0
    """Keep an idle GPU instance for the next grant of its profile and place; 0 keeps none."""
    watch_mps_s: float = 5.0
    """Check interval of MPS daemons."""
    closing_ttl_s: int = 4 * 3600
    """How long final messages stay on the bus."""
    tombstone_ttl_s: float = 8 * 3600
    """How long the journal remembers a gone slice. Longer than `closing_ttl_s`."""
    back_off_first_s: float = 0.5
    """Pause after a failed attempt to destroy a slice; it doubles."""
    back_off_max_s: float = 30.0
    """Longest such pause. Attempts never end."""
    quarantine_after: int = 5
    """Failed attempts until quarantine."""
    remake_retry_s: float = 30.0
    """Pause before recreating a lost slice again."""
    read_devices_s: float = 10.0
    """Read interval for outside changes (foreign instances, health)."""
    usage_every_s: float = 30.0
    """Sampling interval of usage (0.2 to 600); 0 never."""
    hami_metrics: bool = False
    """Also export HAMi's metrics (docs/metrics.md)."""
    tick_s: float = 0.5
    """Timer interval; at most 10."""

    def __post_init__(self) -> None:
        """Reject values that cannot work."""
        for node in self.nodes:
            if not _NODE_NAME.fullmatch(node) or len(node) > 253:
                raise ValueError(f"nodes: {node[:100]!r} is no node's name (lower-case letters, digits, '-' and '.')")
        self._check_kubelet()
        self._check_devices()
        if self.closing_ttl_s < 1:
            raise ValueError("closing_ttl_s is whole seconds, at least 1")
        if self.tombstone_ttl_s <= self.closing_ttl_s:
            raise ValueError("tombstone_ttl_s must be longer than closing_ttl_s: a late order must find the tombstone")
        if not 0 < self.back_off_first_s <= self.back_off_max_s:
            raise ValueError("back_off_first_s is more than 0 and at most back_off_max_s")
        if self.quarantine_after < 1:
            raise ValueError("quarantine_after is at least 1")
        if min(self.remake_retry_s, self.read_devices_s, self.watch_mps_s) <= 0 or not 0 < self.tick_s <= TICK_MAX_S:
            raise ValueError(
                f"remake_retry_s, read_devices_s, watch_mps_s and tick_s are more than 0, tick_s at most {TICK_MAX_S:g}"
            )
        if self.usage_every_s != 0 and not _USAGE_EVERY_MIN_S <= self.usage_every_s <= _USAGE_EVERY_MAX_S:
            raise ValueError(
                f"usage_every_s is {self.usage_every_s:g}; it is 0 (never), or {_USAGE_EVERY_MIN_S:g} to "
                f"{_USAGE_EVERY_MAX_S:g} seconds"
            )
        if self.keep_warm_s < 0:
            raise ValueError("keep_warm_s is at least 0; 0 keeps no idle instance")

    def _check_kubelet(self) -> None:
        if self.kubelet_root is None:
            if self.role == "csi":
                raise ValueError("kubelet_root must be set where role is csi: it is that kubelet's driver")
            return
        for name, path in (("kubelet_root", self.kubelet_root), ("pods_dir", self.pods_dir)):
            if not path.is_absolute() or ".." in path.parts or path == path.parent:
                raise ValueError(f"{name} is '{path}'; it must be an absolute path without '..', and not the root")
        places = (("cdi_dir", self.cdi_dir), ("driver_root", self.driver_root))
        for name, path in (*places, ("driver_root_on_node", self.driver_root_on_node or self.driver_root)):
            if not path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{name} is '{path}'; it must be an absolute path without '..'")
        if len(self.nodes) != 1:
            raise ValueError(
                f"nodes names {len(self.nodes)} nodes; with kubelet_root it must name one, the kubelet's own"
            )

    def _check_devices(self) -> None:
        if self.fixed_layout and self.fleet_file is not None:
            raise ValueError("fixed_layout is for real GPUs; of simulated ones the fleet file says it (layout = [...])")
        try:
            parse_selector(self.fixed_layout, NodeName(""))
        except ValueError as error:
            raise ValueError(f"fixed_layout: {error}") from None
        if self.quota_library not in {"", QUOTA_OFF} and not Path(self.quota_library).is_absolute():
            raise ValueError(f"quota_library is {self.quota_library!r}; it must be an absolute path, or {QUOTA_OFF}")

    def config(self) -> AgentConfig:
        """The settings of the core."""
        names = {*AgentConfig.__slots__} & {*self.__struct_fields__}
        return AgentConfig(**{name: getattr(self, name) for name in names})

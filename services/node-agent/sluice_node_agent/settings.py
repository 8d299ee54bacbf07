"""What a node agent may be told."""

import re
from pathlib import Path
from typing import Literal

from sluice.contracts.ids import NodeName
from sluice.runtime.settings import TICK_MAX_S, CommonSettings
from sluice_node_agent.core.rules import Rules
from sluice_node_agent.device.fixed_gpus import fixed_gpus

MPS_OFF = "off"
"""As `mps_control`: hand out no shares."""
QUOTA_OFF = "off"
"""As `quota_library`: hold nobody to its time."""
_USAGE_EVERY_MIN_S, _USAGE_EVERY_MAX_S = 0.2, 600.0
"""GPM's samples are at least 0.1 s apart (nvml.h); what is older than ten minutes is no use."""
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NODE_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
"""A DNS subdomain (https://kubernetes.io/docs/concepts/overview/working-with-objects/names/)."""


class NodeAgentSettings(CommonSettings, frozen=True, kw_only=True):
    """Which nodes this process serves, with which devices, and the tunables of `Rules`."""

    nodes: tuple[str, ...] = ()
    """On a real node just this one; a process may serve many simulated ones. None named means all of the fleet."""
    fleet_file: Path | None = None
    """The fleet of simulated nodes. Without one, the GPUs are those of this machine, through NVML."""
    grpc_address: str = "127.0.0.1:0"
    """Where the inventory pulls; port 0 takes any free one, and the bus says which."""
    health_address: str = ""
    """Where `grpc.health.v1` answers, in plain text, for probes that know no TLS; `host:port`, empty for nowhere."""
    mps_control: str = ""
    """
    The MPS control program, as a path or a name on PATH; `off` hands out no shares. Empty is `nvidia-cuda-mps-control`
    where it is found, and on simulated nodes a stand-in.
    """
    mps_dir: Path | None = None
    """
    Where MPS daemons keep their sockets and logs; `mps` in the data folder when not said. Their paths end up in Unix
    sockets, which take 107 bytes.
    """
    kubelet_root: Path | None = None
    """
    The kubelet's directory (its --root-dir, mostly /var/lib/kubelet). With it the pods of this node get their tickets
    in a volume, whose driver runs as `role` says. Without it there is no kubelet here: tickets stay in the data folder.
    """
    pods_dir: Path = Path("/run/sluice/pods")
    """Where the directories are that pods' volumes show. Best on a tmpfs; nothing in it is kept over a reboot."""
    role: Literal["all", "agent", "csi"] = "all"
    """
    What runs in this process: the agent and the driver of the volume, or one of them. Apart, pods can still start and
    end while the agent cannot run.
    """
    fixed_layout: tuple[str, ...] = ()
    """
    The GPUs whose MIG layout is an administrator's: their instances are handed out, and none is made or destroyed.
    `all`, a node's name, `<node>:<index>`, or GPU UUIDs; names of other nodes say nothing here, so one list does for a
    cluster. Of simulated nodes the fleet file says it (`layout`).
    """
    quota_library: str = ""
    """
    The client library of the time quota (libsluice-quota.so), an absolute path. With it fractional shares are held to
    their time; without one, or with `off`, their SMs are summed up instead (docs/time-quota.md). Empty is the image's,
    where it has one.
    """
    keep_warm_s: float = 0.0
    watch_mps_s: float = 5.0
    closing_ttl_s: int = 4 * 3600
    tombstone_ttl_s: float = 8 * 3600
    back_off_first_s: float = 0.5
    back_off_max_s: float = 30.0
    quarantine_after: int = 5
    remake_retry_s: float = 30.0
    read_devices_s: float = 10.0
    usage_every_s: float = 30.0
    """How often it is looked at what slices are used for; 0 never. GPUs without slices are not looked at."""
    hami_metrics: bool = False
    """Show metrics under HAMi's names, too, for dashboards that are there already (docs/metrics.md)."""
    tick_s: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what would stop the agent from working."""
        for node in self.nodes:
            if not _NODE_NAME.fullmatch(node) or len(node) > 253:
                raise ValueError(f"nodes: {node[:100]!r} is no node's name (lower-case letters, digits, '-' and '.')")
        self._check_kubelet()
        self._check_fixed_layout()
        self._check_quota_library()
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
        if len(self.nodes) != 1:
            raise ValueError(
                f"nodes names {len(self.nodes)} nodes; with kubelet_root it must name one, the kubelet's own"
            )

    def _check_quota_library(self) -> None:
        wanted = self.quota_library
        if wanted not in {"", QUOTA_OFF} and not Path(wanted).is_absolute():
            raise ValueError(f"quota_library is {wanted!r}; it must be an absolute path, or {QUOTA_OFF}")

    def _check_fixed_layout(self) -> None:
        if self.fixed_layout and self.fleet_file is not None:
            raise ValueError("fixed_layout is for real GPUs; of simulated ones the fleet file says it (layout = [...])")
        try:
            fixed_gpus(self.fixed_layout, NodeName(""))
        except ValueError as error:
            raise ValueError(f"fixed_layout: {error}") from None

    def rules(self) -> Rules:
        """The part that the core takes."""
        return Rules(
            closing_ttl_s=self.closing_ttl_s,
            tombstone_ttl_s=self.tombstone_ttl_s,
            back_off_first_s=self.back_off_first_s,
            back_off_max_s=self.back_off_max_s,
            quarantine_after=self.quarantine_after,
            remake_retry_s=self.remake_retry_s,
            read_devices_s=self.read_devices_s,
            watch_mps_s=self.watch_mps_s,
            keep_warm_s=self.keep_warm_s,
        )

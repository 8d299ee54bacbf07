"""The allocator's settings."""

from dataclasses import fields, replace
from pathlib import Path

from sluice.runtime.settings import TICK_MAX_S, CommonSettings, SettingsError
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.placement.spec.config import PlacementConfig
from sluice_allocator.hami_files import read_hami
from sluice_allocator.placement_file import PlacementFileError, parse_placement, read_pools, read_text


class AllocatorSettings(CommonSettings, frozen=True, kw_only=True):
    """The tunables of `Rules`, and how this process shares work with its replicas."""

    max_gpus_per_node: int = 8
    """Refuse requests for more GPUs on a node; 1 to 64."""
    pods_per_node_max: int | None = None
    """Most pods with slices per node (docs/policies.md); unset is no limit."""
    orphan_grace_s: float = 30.0
    """Revoke a grant without request this long after its source has listed everything."""
    removed_grace_s: float = 30.0
    """Close the grants of a removed node after this; its agent may still report."""
    closing_ttl_s: int = 4 * 3600
    """How long final messages stay on the bus. Far above any pause of a process."""
    lease_ttl_s: int = 3
    """A standby takes over after this, whole seconds."""
    always_active: bool = False
    """Work without the lease: safe, but replicas compete."""
    tick_s: float = 0.5
    """Timer interval; at most 10."""
    group_patience_s: float = 60.0
    """A gang without progress for this long gives back unbound places."""
    preemption: bool = True
    """Evict `preemptible` pods for higher priorities (docs/preemption.md)."""
    eviction_patience_s: float = 120.0
    """Give up an eviction not carried out (a disruption budget, say)."""
    eviction_gone_s: float = 1200.0
    """Stop waiting for an evicted pod's slice."""
    grpc_address: str = "127.0.0.1:0"
    """gRPC API. Port 0 is any free port; the lease publishes it."""
    health_address: str = ""
    """`host:port` of `grpc.health.v1` in plain text; empty serves none."""
    placement: Path | None = None
    """TOML file with pools, policies, weights, allowed profiles (docs/policies.md)."""
    hami_device_config: Path | None = None
    """HAMi's `device-config.yaml`, or its ConfigMap."""
    hami_node_config: Path | None = None
    """`config.json` of HAMi's device plugin, or its ConfigMap."""

    promise_after_s: float = 300.0
    """Reserve for a request that is first of its shape and has waited this long (docs/queue.md)."""
    promises_percent: int = 10
    """Most GPUs of a model reserved at once, in percent (at least one GPU); 0 reserves none."""
    move_cooldown_s: float = 600.0
    """Least time between two moves of a pod (docs/moving.md)."""
    moves_per_minute: int = 6
    """Most pods moved in a minute; 0 moves none."""
    defragment: bool = False
    """Move movable pods so that larger requests fit; else only propose it."""
    defragment_arrivals: int = 20
    """Move at most one pod to make room per this many arriving requests."""
    nodes_asked_max: int = 0
    """Most nodes asked of an autoscaler at once, of each pool; 0 to 100. 0 asks for none (docs/autoscaling.md)."""
    node_pools: Path | None = None
    """TOML file with pools that may have no node yet: a fleet file whose nodes stand for one new node of each."""
    waiting_max: int = 200_000
    """Most requests in the queue; further ones wait outside (`QueueFull`)."""

    def __post_init__(self) -> None:
        """Refuse values that would stop the allocator from working."""
        self._check_nodes()
        if self.closing_ttl_s < 1 or self.lease_ttl_s < 1:
            raise ValueError("closing_ttl_s and lease_ttl_s must be whole seconds, at least 1")
        if self.group_patience_s <= 0:
            raise ValueError("group_patience_s must be more than 0")
        if not 0 < self.eviction_patience_s <= self.eviction_gone_s:
            raise ValueError("eviction_patience_s must be more than 0, and eviction_gone_s at least as much")
        if self.orphan_grace_s < 0 or not 0 < self.tick_s <= TICK_MAX_S:
            raise ValueError(f"orphan_grace_s must be at least 0, tick_s more than 0 and at most {TICK_MAX_S:g}")
        if self.removed_grace_s < 1:
            grace = f"removed_grace_s = {self.removed_grace_s:g}"
            raise ValueError(f"{grace}: must be at least 1, 30 where nodes may still run")
        if self.promise_after_s < 0 or not 0 <= self.promises_percent <= 100:
            raise ValueError("promise_after_s must be at least 0, and promises_percent from 0 to 100")
        if self.move_cooldown_s < 0 or self.moves_per_minute < 0 or self.defragment_arrivals < 1:
            raise ValueError("move_cooldown_s and moves_per_minute must be at least 0, defragment_arrivals at least 1")
        if self.waiting_max < 1:
            raise ValueError(f"waiting_max = {self.waiting_max}: must be at least 1")

    def _check_nodes(self) -> None:
        if not 1 <= self.max_gpus_per_node <= 64:
            raise ValueError(f"max_gpus_per_node = {self.max_gpus_per_node}: must be from 1 to 64")
        if self.pods_per_node_max is not None and self.pods_per_node_max < 1:
            raise ValueError(f"pods_per_node_max = {self.pods_per_node_max}: must be at least 1, or unset for no limit")
        if not 0 <= self.nodes_asked_max <= 100:
            raise ValueError(f"nodes_asked_max = {self.nodes_asked_max}: must be from 0 to 100")
        if self.node_pools is not None and not self.nodes_asked_max:
            raise ValueError("node_pools has no effect with nodes_asked_max = 0: set the most nodes to ask for")

    def rules(self, placing: PlacementConfig) -> SchedulerConfig:
        """The core's rules, with those from the placement files. Raises SettingsError for the file of pools."""
        named = {each.name for each in fields(SchedulerConfig)} & {*self.__struct_fields__}
        same = {name: getattr(self, name) for name in named}
        return SchedulerConfig(**{**same, "node_pools": read_pools(self.node_pools), "placing": placing})

    def placing(self) -> tuple[PlacementConfig, tuple[str, ...]]:
        """The rules from the placement files, and warnings about unused keys of HAMi's. Raises SettingsError."""
        try:
            hami = read_hami(self.hami_device_config, self.hami_node_config)
            text = "" if self.placement is None else read_text(self.placement)
            rules = parse_placement(text, origin=str(self.placement or "(no file)"), hami=hami)
            return replace(rules, pods_per_node_max=self.pods_per_node_max), hami.warnings
        except PlacementFileError as error:
            raise SettingsError(str(error)) from error

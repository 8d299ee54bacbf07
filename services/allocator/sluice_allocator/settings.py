"""What the allocator may be told."""

from pathlib import Path

from sluice.runtime.settings import CommonSettings, SettingsError
from sluice_allocator.core.placement.rules import PlacingRules
from sluice_allocator.core.rules import Rules
from sluice_allocator.hami_files import read_hami
from sluice_allocator.placement_file import PlacementFileError, parse_placement, read_text


class AllocatorSettings(CommonSettings, frozen=True, kw_only=True):
    """The tunables of `Rules`, and how this process shares the work with its replicas."""

    max_gpus_per_node: int = 8
    orphan_grace_s: float = 30.0
    removed_grace_s: float = 30.0
    """How long the agent of a removed node may still say that it lives. It looks every five seconds."""
    closing_ttl_s: int = 4 * 3600
    lease_ttl_s: int = 3
    always_active: bool = False
    """Work without holding the lease. Correct (the guards decide, not the lease), but replicas then compete."""
    tick_s: float = 0.5
    grpc_address: str = "127.0.0.1:0"
    """Where people ask; port 0 takes any free one, and the lease says which."""
    health_address: str = ""
    """Where `grpc.health.v1` answers, in plain text, for probes that know no TLS; `host:port`, empty for nowhere."""
    placement: Path | None = None
    """Pools, policies, weights, and what may be made where (TOML; `docs/policies.md`)."""
    hami_device_config: Path | None = None
    """HAMi's `device-config.yaml`, or the ConfigMap that holds it."""
    hami_node_config: Path | None = None
    """The `config.json` of HAMi's device plugin (`nodeconfig`), or the ConfigMap that holds it."""

    def __post_init__(self) -> None:
        """Refuse numbers that would stop the allocator from working."""
        if not 1 <= self.max_gpus_per_node <= 64:
            raise ValueError(f"max_gpus_per_node = {self.max_gpus_per_node}: from 1 to 64")
        if self.closing_ttl_s < 1 or self.lease_ttl_s < 1:
            raise ValueError("closing_ttl_s and lease_ttl_s are whole seconds, at least 1")
        if self.orphan_grace_s < 0 or self.tick_s <= 0:
            raise ValueError("orphan_grace_s is at least 0, tick_s more than 0")
        if self.removed_grace_s < 1:
            raise ValueError(f"removed_grace_s = {self.removed_grace_s:g}: at least 1, and 30 where nodes may live")

    def rules(self, placing: PlacingRules) -> Rules:
        """The part that the core takes, with what the files about places say."""
        return Rules(
            max_gpus_per_node=self.max_gpus_per_node,
            orphan_grace_s=self.orphan_grace_s,
            removed_grace_s=self.removed_grace_s,
            closing_ttl_s=self.closing_ttl_s,
            placing=placing,
        )

    def placing(self) -> tuple[PlacingRules, tuple[str, ...]]:
        """What the files about places say, and what in HAMi's files means nothing here. Raises SettingsError."""
        try:
            hami = read_hami(self.hami_device_config, self.hami_node_config)
            text = "" if self.placement is None else read_text(self.placement)
            return parse_placement(text, origin=str(self.placement or "(no file)"), hami=hami), hami.warnings
        except PlacementFileError as error:
            raise SettingsError(str(error)) from error

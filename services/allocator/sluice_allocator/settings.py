"""What the allocator may be told."""

from sluice.runtime.settings import CommonSettings
from sluice_allocator.core.rules import Rules


class AllocatorSettings(CommonSettings, frozen=True, kw_only=True):
    """The tunables of `Rules`, and how this process shares the work with its replicas."""

    max_gpus_per_node: int = 8
    orphan_grace_s: float = 30.0
    closing_ttl_s: int = 4 * 3600
    lease_ttl_s: int = 3
    always_active: bool = False
    """Work without holding the lease. Correct (the guards decide, not the lease), but replicas then compete."""
    tick_s: float = 0.5

    def __post_init__(self) -> None:
        """Refuse numbers that would stop the allocator from working."""
        if not 1 <= self.max_gpus_per_node <= 64:
            raise ValueError(f"max_gpus_per_node = {self.max_gpus_per_node}: from 1 to 64")
        if self.closing_ttl_s < 1 or self.lease_ttl_s < 1:
            raise ValueError("closing_ttl_s and lease_ttl_s are whole seconds, at least 1")
        if self.orphan_grace_s < 0 or self.tick_s <= 0:
            raise ValueError("orphan_grace_s is at least 0, tick_s more than 0")

    def rules(self) -> Rules:
        """The part that the core takes."""
        return Rules(
            max_gpus_per_node=self.max_gpus_per_node,
            orphan_grace_s=self.orphan_grace_s,
            closing_ttl_s=self.closing_ttl_s,
        )

"""What the inventory may be told."""

from dataclasses import fields
from pathlib import Path

from sluice.runtime.settings import TICK_MAX_S, CommonSettings
from sluice_inventory.core.node import InventoryConfig


class InventorySettings(CommonSettings, frozen=True, kw_only=True):
    """The tunables of `InventoryConfig`, and what is served."""

    grpc_address: str = "127.0.0.1:9410"
    """gRPC API: `host:port` (port 0 is any free one) or `unix:path`."""
    health_address: str = ""
    """`host:port` of `grpc.health.v1` in plain text; empty serves none."""
    pull_interval_s: float = 15.0
    """Pull interval of a node without changes."""
    pull_timeout_s: float = 3.0
    """Limit of one pull."""
    stale_after_s: float = 30.0
    """A node is stale after this. Above interval plus timeout."""
    retry_first_s: float = 0.5
    """Pause after a failed pull; it doubles."""
    retry_max_s: float = 10.0
    """Longest such pause."""
    pulls_max: int = 64
    """Most pulls in flight, one per node."""
    retries_max: int = 16
    """How many of these may be retries."""
    watchers_max: int = 64
    """Most clients that watch the fleet."""
    watch_pending_max: int = 4096
    """Most changes pending for one watcher; beyond it the watcher starts again."""
    record_file: Path | None = None
    """SQLite file of usage over time (docs/report.md); none records nothing. One inventory of a fleet needs it."""
    record_minutes_h: float = 48.0
    """How long rollups of a minute are kept, in hours; at least one."""
    record_days: float = 90.0
    """How long rollups of 15 minutes are kept, in days; at least one."""
    tick_s: float = 0.5
    """Timer interval; at most 10."""

    def __post_init__(self) -> None:
        times = (self.pull_interval_s, self.pull_timeout_s, self.retry_first_s, self.retry_max_s, self.tick_s)
        if min(times) <= 0:
            raise ValueError("pull_interval_s, pull_timeout_s, retry_first_s, retry_max_s and tick_s are more than 0")
        if self.tick_s > TICK_MAX_S:
            raise ValueError(f"tick_s is {self.tick_s:g}; at most {TICK_MAX_S:g}")
        if self.stale_after_s <= self.pull_interval_s + self.pull_timeout_s:
            raise ValueError(
                f"stale_after_s = {self.stale_after_s:g}: more than pull_interval_s + pull_timeout_s "
                f"({self.pull_interval_s + self.pull_timeout_s:g}), or healthy nodes would be stale between two pulls"
            )
        if not 1 <= self.retries_max <= self.pulls_max:
            raise ValueError(f"retries_max = {self.retries_max}: from 1 to pulls_max ({self.pulls_max})")
        if min(self.record_minutes_h, self.record_days) < 1:
            raise ValueError("record_minutes_h and record_days are at least 1")
        if self.watchers_max < 0 or self.watch_pending_max < 1:
            raise ValueError("watchers_max is at least 0, watch_pending_max at least 1")

    def config(self) -> InventoryConfig:
        """The part that the core takes."""
        names = [each.name for each in fields(InventoryConfig) if hasattr(self, each.name)]
        return InventoryConfig(**{name: getattr(self, name) for name in names})

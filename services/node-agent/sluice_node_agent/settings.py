"""What a node agent may be told."""

from pathlib import Path

from sluice.runtime.settings import CommonSettings
from sluice_node_agent.core.rules import Rules


class NodeAgentSettings(CommonSettings, frozen=True, kw_only=True):
    """Which nodes this process serves, with which devices, and the tunables of `Rules`."""

    nodes: tuple[str, ...] = ()
    """On real nodes just this one; a process may serve many simulated ones. None named means all of the fleet."""
    fleet_file: Path | None = None
    """The fleet of simulated nodes."""
    grpc_address: str = "127.0.0.1:0"
    """Where the inventory pulls; port 0 takes any free one, and the bus says which."""
    closing_ttl_s: int = 4 * 3600
    tombstone_ttl_s: float = 8 * 3600
    back_off_first_s: float = 0.5
    back_off_max_s: float = 30.0
    quarantine_after: int = 5
    remake_retry_s: float = 30.0
    read_devices_s: float = 10.0
    tick_s: float = 0.5

    def __post_init__(self) -> None:
        """Refuse numbers that would stop the agent from working."""
        if self.closing_ttl_s < 1:
            raise ValueError("closing_ttl_s is whole seconds, at least 1")
        if self.tombstone_ttl_s <= self.closing_ttl_s:
            raise ValueError("tombstone_ttl_s must be longer than closing_ttl_s: a late order must find the tombstone")
        if not 0 < self.back_off_first_s <= self.back_off_max_s:
            raise ValueError("back_off_first_s is more than 0 and at most back_off_max_s")
        if self.quarantine_after < 1:
            raise ValueError("quarantine_after is at least 1")
        if min(self.remake_retry_s, self.read_devices_s, self.tick_s) <= 0:
            raise ValueError("remake_retry_s, read_devices_s and tick_s are more than 0")

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
        )

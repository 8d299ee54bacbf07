"""The tunables of the inventory's decisions, with the reason for each default."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InventoryConfig:
    """Times in seconds of the caller's clock."""

    pull_interval_s: float = 15.0
    """A node without announcements is pulled this often: it covers lost announcements and detects a dead node."""
    stale_after_s: float = 30.0
    """Without a usable answer for this long a node is marked stale: two rounds, so that one lost answer is no alarm."""
    closing_ttl_s: int = 4 * 3600  # how long the last message about a removed node stays on the bus
    retry_first_s: float = 0.5  # the pause after a failed pull, then twice as long, ...
    retry_max_s: float = 10.0  # ... up to this. A node is retried for as long as the bus lists it.
    pulls_max: int = 64  # unanswered pulls at a time, over all nodes; one for each node
    retries_max: int = 16
    """Of these, for nodes whose last pull failed: nodes that never answer must not hold up those that do."""

"""The tunables of the allocator's decisions, with the reason for each default."""

from dataclasses import dataclass, field

from sluice_allocator.core.placement import PlacingRules


@dataclass(frozen=True, slots=True)
class Rules:
    """Times in seconds of the caller's clock."""

    max_gpus_per_node: int = 8
    """More devices in one request are refused: no node could ever hold them."""
    orphan_grace_s: float = 30.0
    """How long a grant without a request lives on after its source has said all it has (PROTOCOL §6)."""
    removed_grace_s: float = 30.0
    """How long a removed node's grants stand before they are closed. Its agent looks every few seconds whether the bus
    has its news: one that lives has said them again by then, and nothing of its node is lost."""
    closing_ttl_s: int = 4 * 3600
    """How long closing words stay on the bus: far above any pause of any process (PROTOCOL W5)."""
    pending_refresh_s: float = 5.0
    """The reasons of one waiting request are written at most this often, unless the first reason changes."""
    pending_refresh_batch: int = 24
    """At most so many waiting requests are looked at again in one tick."""
    rebind_anyway_s: float = 60.0
    """Strings that differ from the binding's for this long replace them, even if STATE numbered them lower (it may
    forget what it acknowledged, and number anew)."""
    wake_tries: int = 48
    """One event is worth this many tries of waiting requests at what was freed; the rest goes on with the next one."""
    tries_per_grant: int = 4
    """A try that finds a place counts as so many: it also books, and writes."""
    new_tries: int = 24
    """One event is worth this many tries of new requests."""
    settle_batch: int = 200
    """One event is worth a look at so many requests and nodes about which something changed; the rest goes on with the
    next one. More than a few are due only when a stream was read whole or the lease was won."""
    orphans_batch: int = 1000
    """At most so many grants without a request are looked at in one tick."""
    ensure_retry_s: float = 5.0
    """How long to wait for a node's durable before asking for it again."""
    retry_first_s: float = 1.0
    """A GPU on which making a slice failed is avoided by that request for this long, then twice as long, ..."""
    retry_max_s: float = 300.0
    """... and never longer than this."""
    placing: PlacingRules = field(default_factory=PlacingRules)
    """What the operator says about places."""
